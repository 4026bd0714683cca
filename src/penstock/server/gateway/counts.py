"""The gateway's counts and gauges, as plain numbers: its loop counts, the metrics read.

Keys of the dictionaries are few and fixed words (types of messages, reasons), never a client's
text, so nothing here grows.
"""

from __future__ import annotations

from collections import defaultdict

from penstock.server.health.histogram import Histogram


class GatewayCounts:
    """One thread adds, any may read a copy."""

    def __init__(self) -> None:
        self.connections = 0
        """Connections now."""
        self.connections_opened = 0
        self.endpoints = 0
        """Producers, consumers and admins attached now."""
        self.cursors = 0
        """Partitions that are being fetched now."""
        self.requests: defaultdict[str, int] = defaultdict(int)
        """Messages that came, by their type."""
        self.produced_batches = 0
        self.produced_records = 0
        self.produced_bytes = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.outbox_bytes = 0
        """Waiting for peers that read slowly, of all connections together."""
        self.refusals: defaultdict[str, int] = defaultdict(int)
        """Refused requests, by reason: a bad batch, no access, a limit."""
        self.drops: defaultdict[str, int] = defaultdict(int)
        """Connections that the gateway gave up, by reason."""
        self.throttles: defaultdict[str, int] = defaultdict(int)
        """How often a quota held an endpoint back, by "produce" and "consume"."""
        self.throttled_seconds: defaultdict[str, float] = defaultdict(float)
        self.keys_expire: dict[str, float] = {}
        """When keys of clients expire, by their names; replaced, never changed."""
        self.latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
        """Seconds from a request's coming to its answer, by type: "produce" and "ask"."""
