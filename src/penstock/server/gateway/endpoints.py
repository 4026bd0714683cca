"""An endpoint: an attachment of a remote client, with one ordinary session to the node behind it.

    attaching --Welcome of the node--> open --Detach, connection or node gone--> ended

The loop does not publish tickets (see `penstock.ipc.doorbell`) before each sleep, for there are
many endpoints. A waiter *arms* its endpoint once: a fresh ticket, a fence, another look. It stays
armed, also while the loop is awake, until the doorbell rings. Then the waiter looks and arms it
again.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster.frames import codec
from penstock.ipc import layout as lo
from penstock.server.gateway.peers import Peer

if TYPE_CHECKING:
    from penstock.client.session import Session
    from penstock.server.gateway.events import Task
    from penstock.server.gateway.partition_states import PageStates
    from penstock.server.gateway.request_queue import RequestQueue

_tickets = itertools.count(time.monotonic_ns())


def fresh_ticket() -> int:
    """One that nobody has published before."""
    return next(_tickets)


class GatewayEndpoint:
    """One endpoint. `session` is there from `Attached` on. The loop watches its descriptors, and
    calls the endpoint's handlers when the doorbell rang."""

    __slots__ = ("client_id", "is_open", "kind", "notice", "number", "peer", "principal",
                 "requests", "session", "states", "task", "window")  # fmt: skip

    session: Session
    states: PageStates

    def __init__(self, peer: Peer, number: int, kind: int, client_id: str) -> None:
        self.peer = peer
        self.number = number
        self.kind = kind
        self.principal = peer.principal
        self.client_id = client_id
        self.window = 0
        self.notice = 0
        self.is_open = False
        self.task: Task | None = None
        """Its attaching, while that is under way."""
        self.requests: RequestQueue | None = None

    @property
    def is_producer(self) -> bool:
        return self.kind == lo.KIND_PRODUCER

    @property
    def has_room(self) -> bool:
        """Whether more may be sent by those who can wait; asked before a `Fetched` is made."""
        return self.peer.has_room

    def post(self, message: msgspec.Struct) -> bool:
        """Send, now or later; never waits. False: the peer is gone."""
        return self.peer.send(codec.encode(message))

    def __str__(self) -> str:
        return f"endpoint {self.number} of {self.peer}"
