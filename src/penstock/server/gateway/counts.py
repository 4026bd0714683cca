"""The gateway's counts and gauges, as plain numbers: its loop counts, the metrics read.

Keys of the dictionaries are few and fixed words (types of messages, reasons), never a client's
text, so nothing here grows. Where they are topics and principals, `KEYS_MAX` bounds them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from penstock.server.health.histogram import Histogram

KEYS_MAX: Final = 200
"""Topics and principals that are counted by themselves, each kind."""
OTHERS: Final = "(others)"
"""All that come later, together. Neither a topic nor a principal has this name."""


class TopicLatencies:
    """Seconds by topic id; b"" has those of all topics beyond `KEYS_MAX`."""

    def __init__(self) -> None:
        self.by_topic: dict[bytes, Histogram] = {}

    def of(self, topic_id: bytes) -> Histogram:
        found = self.by_topic.get(topic_id)
        if found is None:
            if len(self.by_topic) >= KEYS_MAX:
                topic_id = b""
            found = self.by_topic.setdefault(topic_id, Histogram())
        return found


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
        self.acknowledged = TopicLatencies()
        """Seconds from a batch's coming to its acknowledgement."""
        self.delivered = TopicLatencies()
        """Seconds from a batch's append to its sending to a consumer."""
        self.used: dict[tuple[str, str], int] = {}
        """Bytes by principal, and "produce" or "consume"."""

    def use(self, principal: str, what: str, nbytes: int) -> None:
        """Counts bytes of a principal."""
        key = principal, what
        if key not in self.used and len(self.used) >= 2 * KEYS_MAX:
            key = OTHERS, what
        self.used[key] = self.used.get(key, 0) + nbytes
