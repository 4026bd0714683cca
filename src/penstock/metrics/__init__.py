"""Metrics of clients for Prometheus: `collector`."""

from __future__ import annotations

from penstock.client.metrics import Collector, collector

__all__ = ["Collector", "collector"]
