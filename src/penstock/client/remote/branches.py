"""What one attachment has at one broker: an endpoint there, and the ways to its writers.

    asked for ──connection──> attaching ──Attached──> open ──its broker or client gone──> over

Its *home* branch makes an attachment; in a cluster it gets others where they are needed, of the
same kind and under the same producer id. Owns numbers and what is under way. Used by the carrier's
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from penstock.client.remote.connection import Wire
from penstock.client.remote.lanes import Flight, Flow
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece

Reach = Callable[[int], "Branch | None"]
"""An attachment's branch at that broker. None while there is none that is open: it is attached
then, and who waits is asked again."""


class Branch:
    """See the module. `number` names it at its gateway: a new one for each try of each connection.
    `serves_groups`: the coordinator has answered by it, and knows the client by it."""

    __slots__ = ("attached", "broker", "flows", "is_home", "notice", "number", "serves_groups",
                 "told", "wire")  # fmt: skip

    def __init__(self, wire: Wire, number: int, *, is_home: bool) -> None:
        self.wire = wire
        self.broker = wire.broker
        self.number = number
        self.is_home = is_home
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
            flow = self.flows[writer] = Flow(self.wire, self.number, writer, self.attached.window)
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
