"""Batches of remote producers: checked, put into lanes, answered in order."""

from __future__ import annotations


class Outgoing:
    """The lanes of one endpoint."""
