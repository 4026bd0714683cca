"""How many batches of single records may be without an answer, with linger 0.

Answers that take longer than the best ones do tell of batches that wait for each other: for a
processor, a disk or a network. More of them make that worse, and each costs about as much as one
with fifty records. So the bound follows how long answers take (as in the congestion control Copa):

    bound = 2 x usual / (usual - best), within EAGER_MIN and EAGER_MAX

A way that is long and free has the best time and the largest bound. The sender times one batch at a
time, and none by shared memory: the bound stays the largest there. A batch costs little there, and
p50 was a quarter higher where the bound followed (measured).
"""

from __future__ import annotations

import math
from typing import Final

EAGER_MAX: Final = 8
EAGER_MIN: Final = 2
"""One is on its way while the other is answered, also where all answers take long."""
BEST_FOR: Final = 5.0
"""Seconds for which a best time counts at least, twice as long at most: the way may change."""
WEIGHT: Final = 1 / 8
"""Of one answer in the usual time."""


class Pace:
    """The bound of batches without an answer."""

    __slots__ = ("_best", "_best_before", "_changes_at", "_usual", "eager_max")

    def __init__(self) -> None:
        self.eager_max = EAGER_MAX
        self._usual = self._changes_at = 0.0
        self._best = self._best_before = math.inf

    def answered(self, took: float, now: float) -> None:
        """Notes how many seconds an answer took, which came just now."""
        if now >= self._changes_at:
            self._changes_at = now + BEST_FOR
            self._best_before, self._best = self._best, math.inf
        self._best = min(self._best, took)
        best = min(self._best, self._best_before)
        self._usual += (took - self._usual) * WEIGHT if self._usual else took
        waits = self._usual - best
        bound = EAGER_MAX if waits <= 0 else int(min(2 * self._usual / waits, EAGER_MAX))
        self.eager_max = max(EAGER_MIN, bound)
