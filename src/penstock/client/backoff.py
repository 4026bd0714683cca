"""When to try again: exponential backoff with full jitter.

Each wait is drawn evenly from 0 to a bound that grows from `first` to `last`. Many clients that
lost the same node at the same moment so come back spread over that time, and not in step.

A bound that doubles is about twice the time that all waits before have taken; with a growth of 1.25
it is half of it. That is for what may be back soon: who waits for it is late by a quarter or so of
the time it was away, and not by all of it again.

Owns the waits' lengths. Never waits, and never looks at a clock.
"""

from __future__ import annotations

import random
from typing import Final

SOON: Final = 1.25
"""A growth for what may be back soon."""
_STEPS_MAX: Final = 60


class Retries:
    """The waits between the tries of one thing. Not thread-safe."""

    __slots__ = ("_draw", "_first", "_growth", "_last", "tries")

    def __init__(
        self, first: float, last: float, chance: random.Random | None = None, growth: float = 2.0
    ) -> None:
        self._first = first
        self._last = last
        self._growth = growth
        self._draw = (chance or random).uniform
        self.tries = 0
        """Waits handed out since the last success."""

    def bound(self) -> float:
        """Returns the longest time that the next wait can take, in seconds."""
        return min(self._last, self._first * self._growth ** min(self.tries, _STEPS_MAX))

    def next(self) -> float:
        """Seconds to wait until the next try."""
        bound = self.bound()
        self.tries += 1
        return self._draw(0.0, bound)

    def reset(self) -> None:
        """It worked."""
        self.tries = 0
