"""Requests of endpoints, one at a time each, forwarded to the node and answered."""

from __future__ import annotations


class Asks:
    """The requests of one endpoint that wait for the node."""
