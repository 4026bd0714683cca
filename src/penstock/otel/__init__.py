"""Traces by OpenTelemetry: `Tracing`. Needs the extra `penstock[otel]`."""

from __future__ import annotations

from penstock.client.tracing import SEMANTIC_CONVENTIONS, Tracing

__all__ = ["SEMANTIC_CONVENTIONS", "Tracing"]
