"""The clock by which the coordinator judges what is due, too old or over."""

from __future__ import annotations

import time
from collections.abc import Callable


class CoordinatorClock:
    """Seconds since the epoch, never set back: the wall clock at the start, or what is believed
    where that is later, and from then on what really passed. A test may move it ahead; `moved` is
    called then."""

    def __init__(self) -> None:
        self._start = 0.0
        self._ahead = 0.0
        self.moved: Callable[[], None] = lambda: None

    def begin(self, believed: float) -> None:
        self._start = max(time.time(), believed) - time.monotonic()

    def now(self) -> float:
        return self._start + self._ahead + time.monotonic()

    def move(self, ahead: float) -> None:
        """Be so many seconds ahead in all, but never behind what was told before."""
        self._ahead = max(self._ahead, ahead)
        self.moved()
