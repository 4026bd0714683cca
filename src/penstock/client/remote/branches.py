"""The branch of one attachment at one broker: an endpoint there, and the flows to its writers.

    asked for ──connection──> attaching ──Attached──> open ──its broker or client gone──> over

Its *home* branch makes an attachment. In a cluster it gets others where they are needed, of the
same kind and under the same producer id. Owns numbers and batches without an answer. Used by the
carrier's thread only.
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
    """One attachment at one broker.

    `number` names it at its gateway: a new one for each try of each connection. `serves_groups`:
    the coordinator has answered through it, and knows the client by it."""

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
        """The notice word of the client slot there."""
        self.serves_groups = False
        self.told: tuple[list[tuple[int, int]], int, int] = ([], 0, 0)
        """The positions of its client, as the gateway has heard them last."""

    @property
    def is_open(self) -> bool:
        return self.attached is not None

    def opens(self, attached: fr.Attached) -> None:
        self.attached, self.notice = attached, attached.notice

    def send(self, message: msgspec.Struct, payload: Piece | None = None) -> None:
        self.wire.send(message, payload)

    def flow(self, page: int) -> Flow:
        """Returns the flow to the writer of that page."""
        assert self.attached is not None
        writer = page % self.attached.writers
        flow = self.flows.get(writer)
        if flow is None:
            flow = self.flows[writer] = Flow(self.wire, self.number, writer, self.attached.window)
        return flow

    def flights(self) -> Iterator[Flight]:
        """Yields its batches without an answer."""
        for flow in self.flows.values():
            yield from flow.flights

    def close(self) -> None:
        """Forgets the batches in flight."""
        for flow in self.flows.values():
            flow.flights.clear()
        self.flows.clear()
