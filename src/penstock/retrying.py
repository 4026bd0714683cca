"""When to try again: exponential backoff with full jitter.

Each wait is drawn evenly from 0 to a bound that doubles from `first` to `last`. Many clients that
lost the same node at the same moment so come back spread over that time, and not in step.

Owns the waits' lengths. Never waits, and never looks at a clock.
"""

from __future__ import annotations

import random
from typing import Final

_DOUBLINGS_MAX: Final = 60


class Retries:
    """The waits between the tries of one thing. Not thread-safe."""

    __slots__ = ("_draw", "_first", "_last", "tries")

    def __init__(self, first: float, last: float, chance: random.Random | None = None) -> None:
        self._first = first
        self._last = last
        self._draw = (chance or random).uniform
        self.tries = 0
        """Waits handed out since the last success."""

    def bound(self) -> float:
        """What the next wait is at most, in seconds."""
        return min(self._last, self._first * (1 << min(self.tries, _DOUBLINGS_MAX)))

    def next(self) -> float:
        """Seconds to wait until the next try."""
        bound = self.bound()
        self.tries += 1
        return self._draw(0.0, bound)

    def reset(self) -> None:
        """It worked."""
        self.tries = 0
