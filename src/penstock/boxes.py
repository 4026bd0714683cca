"""The open boxes of a producer: one a topic, until it is full, has lingered, or is asked for.

Owns which boxes are open and when they are due. Never sends and never locks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock import sealing
from penstock.delivery import Box

if TYPE_CHECKING:
    from penstock.producer import Producer

GATHER_MAX: Final = 0.005
"""Seconds for which records gather at most that were sent with linger 0 while others wait for their
answers (see `penstock.outbox.IN_FLIGHT_EAGER`)."""


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
        box = self.open[topic] = self.new(topic)
        if wide or self._linger == 0:
            box.slow(wide=wide)
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

    def close(self, box: Box) -> sealing.Rows | None:
        """Seal a box; its records, None where there are none or it was sealed before."""
        if self.open.get(box.topic) is box:
            del self.open[box.topic]
        if box.sealed:
            return None
        box.sealed = True
        rows = sealing.close_lid(box)
        return rows if rows.values else None
