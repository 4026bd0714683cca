"""The open boxes of a producer: one a topic, until it is full, has lingered, or is asked for.

Owns which boxes are open and when they are due. Never sends and never locks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.client.producer import batch_builder
from penstock.client.producer.delivery import Box

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer

GATHER_MAX: Final = 0.005
"""Seconds for which records gather at most that were sent with linger 0 while others wait for their
answers (see `penstock.client.producer.sender.IN_FLIGHT_EAGER`)."""


class Boxes:
    """`open`: by topic. `seen` is where `send` looks without a lock: the same boxes, or with linger
    0 ones that are full, so that every record goes the way of those that leave at once."""

    def __init__(
        self, owner: Producer, *, room: int, linger: float, delivery_timeout: float
    ) -> None:
        self._owner = owner
        self._room = room
        self._linger = linger
        self._delivery_timeout = delivery_timeout
        self.open: dict[str, Box] = {}
        self.closing: Box | None = None
        """One that `close` was called for, until it is `closed`: see `Producer.mend`."""
        self.seen: dict[str, Box] = self.open if linger else {}

    def know(self, topic: str) -> None:
        """The topic was looked up: its records may be sent."""
        if not self._linger:
            self.seen[topic] = self.new(topic)
            self.seen[topic].room = -1

    def new(self, topic: str) -> Box:
        """A box that is not among the open ones."""
        now = time.monotonic()
        return Box(
            self._owner, topic, self._room, time.time_ns() // 1000,
            now + (self._linger or GATHER_MAX), now + self._delivery_timeout,
            self._owner.incarnation,
        )  # fmt: skip

    def add(self, topic: str, *, wide: bool) -> Box:
        """Open a box for a topic that has none."""
        box = self.new(topic)
        if wide or self._linger == 0:
            box.slow(wide=wide)
        self.open[topic] = box  # whole: from here on records may come into it
        return box

    @property
    def gather(self) -> bool:
        """Whether records are kept that are to leave as soon as others are answered for."""
        return not self._linger and bool(self.open)

    def due(self, now: float | None) -> list[Box]:
        """Boxes that have lingered enough (all, if `now` is None)."""
        return [box for box in list(self.open.values()) if now is None or now >= box.linger_until]

    def linger_until(self) -> float | None:
        """When the next open box is due (monotonic seconds); None while none is open."""
        return min((box.linger_until for box in list(self.open.values())), default=None)

    def close(self, box: Box) -> batch_builder.Rows | None:
        """Seal a box; its records, None where there are none or it was sealed before. Once they
        have another place or an outcome, `closed` is to be called."""
        if box.sealed and self.closing is not box:
            return None
        self.closing = box
        if self.open.get(box.topic) is box:
            del self.open[box.topic]
        box.sealed = True
        rows = batch_builder.close_lid(box)
        if rows.values:
            return rows
        self.closing = None
        return None

    def closed(self, box: Box) -> None:
        """The records of a box that is closed are taken care of."""
        box.items.clear()
        self.closing = None
