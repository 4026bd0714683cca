"""Connections of remote clients: their identities, their outboxes, and the times of their last
messages.

Nothing here blocks. Messages for which a connection has no room wait in its outbox, which is
bounded. A client that does not read is dropped, and delays nobody else.

Sending ends nothing. A peer that turns out to be lost is only noted: the sender may be in the
middle of something for it. It gets nothing more, and the loop ends it when its turn is over.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final, NamedTuple

from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.line import ClientLine, ConnectionGone
from penstock.server.gateway.slow_readers import Budget

logger = logging.getLogger("penstock.gateway")

Piece = bytes | bytearray | memoryview
Parts = tuple[bytes, Piece | None]
"""Head and payload."""

MESSAGE_OVERHEAD: Final = 256
CONGESTED_AT: Final = 1 << 20
"""Bytes in the outbox from which on senders that can wait should not add to it."""


class Peer:
    """One connection, after its hello."""

    __slots__ = (
        "_peers",
        "address",
        "budget",
        "bytes_reserved",
        "fd",
        "heard_at",
        "identity",
        "incarnation",
        "is_gone",
        "leaders",
        "outbox",
        "outbox_bytes",
        "principal",
        "received_by",
        "received_bytes",
        "software",
        "user_id",
    )  # fmt: skip

    def __init__(
        self, peers: Peers, identity: bytes, principal: str, address: str, incarnation: bytes
    ) -> None:
        self._peers = peers
        self.identity = identity
        self.principal = principal
        self.address = address
        self.incarnation = incarnation
        self.software = ""
        self.user_id = ""
        """ZeroMQ's name of its key."""
        self.fd = -1
        self.outbox: deque[Parts] = deque()
        self.outbox_bytes = 0
        self.bytes_reserved = 0
        self.received_by = 0.0
        self.received_bytes = 0
        """The bytes received on its connection at its last message, at `received_by`."""
        self.heard_at = time.monotonic()
        self.budget = Budget(self.heard_at)
        self.leaders = b""
        """The last state of the cluster that it was told."""
        self.is_gone = False
        """Nothing is sent to it any more; it may still have to be ended."""

    @property
    def has_room(self) -> bool:
        """Whether more may be sent by those who can wait, such as fetches."""
        return not self.is_gone and self.outbox_bytes < CONGESTED_AT

    def send(self, head: bytes, payload: Piece | None = None) -> bool:
        """Send, now or as soon as the connection takes it; never waits. False: it is gone. A large
        payload is sent from where it lies, which must not change any more."""
        return self._peers.send(self, head, payload)

    def charge(self, cost: int = 1) -> None:
        """It has sent what nothing else bounds."""
        if self.budget.take(time.monotonic(), cost):
            self._peers.note_flood(self)

    def __str__(self) -> str:
        return f"{self.principal}@{self.address}"


class Lost(NamedTuple):
    """A peer that is to be ended: for a reason of ours (`kind`), or because it has gone."""

    peer: Peer
    kind: str
    why: str


class Peers:
    """All connections, and the line's sending half."""

    def __init__(self, line: ClientLine, counts: GatewayCounts, bytes_max: int) -> None:
        self.line = line
        self._counts = counts
        self._bytes_max = bytes_max
        self._lost: list[Lost] = []
        self.by_identity: dict[bytes, Peer] = {}
        self.waiting: dict[bytes, Peer] = {}
        """Those with an outbox that is not empty."""

    def send(self, peer: Peer, head: bytes, payload: Piece | None) -> bool:
        if peer.is_gone:
            return False
        parts = (head, payload)
        if not peer.outbox and self._try(peer, parts):
            return True
        if peer.is_gone:
            return False
        peer.outbox.append(parts)
        peer.outbox_bytes += _size(parts)
        self.waiting[peer.identity] = peer
        self._counts.outbox_bytes += _size(parts)
        if peer.outbox_bytes > self._bytes_max:
            self._lose(
                peer,
                "does not read",
                f"{peer.outbox_bytes} bytes wait to be read by it, over client_bytes_max",
            )
            return False
        return True

    def _lose(self, peer: Peer, kind: str, why: str) -> None:
        if not peer.is_gone:
            peer.is_gone = True
            self.waiting.pop(peer.identity, None)
            self._lost.append(Lost(peer, kind, why))

    def note_flood(self, peer: Peer) -> None:
        self._counts.throttles["messages"] += 1
        logger.warning(
            "%s floods: it is read slowly from now on", peer,
            extra={"principal": peer.principal, "address": peer.address},
        )  # fmt: skip

    def take_lost(self) -> list[Lost]:
        """Takes the peers that are lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def forget(self, peer: Peer) -> None:
        """It is gone: nothing is sent to it any more."""
        peer.is_gone = True
        self.by_identity.pop(peer.identity, None)
        self.waiting.pop(peer.identity, None)
        self._counts.outbox_bytes -= peer.outbox_bytes
        peer.outbox.clear()
        peer.outbox_bytes = 0

    def say_last(self, peer: Peer, head: bytes) -> None:
        """Send this if it can be sent at once."""
        peer.is_gone = True
        self._try(peer, (head, None))

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        for identity, peer in list(self.waiting.items()):
            while peer.outbox and self._try(peer, peer.outbox[0]):
                size = _size(peer.outbox.popleft())
                peer.outbox_bytes -= size
                self._counts.outbox_bytes -= size
            if not peer.outbox:
                self.waiting.pop(identity, None)

    def _try(self, peer: Peer, parts: Parts) -> bool:
        """False: it has no room, or is gone."""
        head, payload = parts
        try:
            if not self.line.send(peer.identity, head, payload):
                return False
        except ConnectionGone:
            self._lose(peer, "", "it has gone")
            return False
        self._counts.sent_bytes += len(head) + (0 if payload is None else len(payload))
        return True


def _size(parts: Parts) -> int:
    """Returns the memory that these parts take here; small ones cost mostly as objects."""
    head, payload = parts
    return MESSAGE_OVERHEAD + len(head) + (0 if payload is None else len(payload))
