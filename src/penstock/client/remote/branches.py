"""What one attachment has at one broker: an endpoint there, and the ways to its writers.

    asked for ──connection──> attaching ──Attached──> open ──its broker or client gone──> over

Its *home* branch makes an attachment; in a cluster it gets others where they are needed, of the
same kind and under the same producer id. Owns numbers and what is under way. Used by the carrier's
thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.client.remote.connection import Wire
from penstock.client.remote.lanes import Flight, Flow
from penstock.client.remote.leaders import Brokers
from penstock.client.remote.proofs import Proofs
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece

if TYPE_CHECKING:
    from penstock.client.remote.endpoint import Endpoint


class Branch:
    """See the module. `number` names it at its gateway: a new one for each try of each connection.
    `serves_groups`: the coordinator has answered by it, and knows the client by it."""

    __slots__ = ("attached", "broker", "endpoint", "flows", "notice", "number", "serves_groups",
                 "told", "wire")  # fmt: skip

    def __init__(self, endpoint: Endpoint, wire: Wire, number: int) -> None:
        self.endpoint = endpoint
        self.wire = wire
        self.broker = wire.broker
        self.number = number
        self.attached: fr.Attached | None = None
        self.flows: dict[int, Flow] = {}
        self.notice = 0
        """What stands in the client slot there."""
        self.serves_groups = False
        self.told: tuple[list[tuple[int, int]], int, int] = ([], 0, 0)
        """Where its client stands, as the gateway has heard it last."""

    @property
    def is_open(self) -> bool:
        return self.attached is not None

    @property
    def is_home(self) -> bool:
        return self.endpoint.home is self

    def opens(self, attached: fr.Attached) -> None:
        self.attached, self.notice = attached, attached.notice

    def send(self, message: msgspec.Struct, payload: Piece | None = None) -> None:
        self.wire.send(message, payload)

    def flow(self, page: int) -> Flow:
        """The way to the writer of that page."""
        assert self.attached is not None
        writer = page % self.attached.writers
        flow = self.flows.get(writer)
        if flow is None:
            flow = self.flows[writer] = Flow(self, writer, self.attached.window)
        return flow

    def flights(self) -> Iterator[Flight]:
        """What is under way by it, without an answer."""
        for flow in self.flows.values():
            yield from flow.flights

    def close(self) -> None:
        """Let go of what is in lanes."""
        for flow in self.flows.values():
            flow.flights.clear()
        self.flows.clear()


class Ways(Protocol):
    """How an attachment comes to brokers. `proofs`: what transactions show there."""

    proofs: Proofs

    @property
    def brokers(self) -> Brokers:
        """Who leads what."""

    @property
    def is_cluster(self) -> bool:
        """Whether there is more than the home branch at all."""

    def branch(self, endpoint: Endpoint, broker: int) -> Branch | None:
        """Its branch at that broker. None while there is none that is open: it is attached then,
        and who waits is asked again."""

    def knows(self, page: int) -> bool:
        """Whether it was ever heard how that page stands."""
