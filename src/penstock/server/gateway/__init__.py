"""The gateway: the process through which remote clients reach a node."""

from __future__ import annotations
