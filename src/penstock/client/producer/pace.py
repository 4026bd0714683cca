"""How many batches of single records may be without an answer, with linger 0.

Answers that take longer than the best ones do tell of batches that wait for each other: for a
processor, a disk or a network. More of them make that worse, and each costs about as much as one
with fifty records. So the bound follows how long answers take (as in the congestion control Copa):

    bound = 2 x usual / (usual - best), within EAGER_MIN and EAGER_MAX

A way that is long and free has the best time and the largest bound. Times one batch at a time. By
shared memory the bound is always the largest: a batch costs little there, and p50 was a quarter
higher where it followed (measured).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.client.producer.routes import Batch

EAGER_MAX: Final = 8
EAGER_MIN: Final = 2
"""One is on its way while the other is answered, also where all answers take long."""
BEST_FOR: Final = 5.0
"""Seconds for which a best time counts at least, twice as long at most: the way may change."""
WEIGHT: Final = 1 / 8
"""Of one answer in the usual time."""


class Pace:
    """The bound of batches without an answer; it follows the answers of another host (`is_far`).
    `timed`: the batch whose answer is awaited."""

    __slots__ = ("_best", "_best_before", "_changes_at", "_is_far", "_since", "_usual",
                 "eager_max", "timed")  # fmt: skip

    def __init__(self, *, is_far: bool) -> None:
        self._is_far = is_far
        self.eager_max = EAGER_MAX
        self.timed: Batch | None = None
        self._since = self._usual = self._changes_at = 0.0
        self._best = self._best_before = math.inf

    def sent(self, batch: Batch) -> None:
        """Notes that a batch is in flight."""
        if not self._is_far:
            return
        timed = self.timed
        if timed is None or timed.flight is None:  # one without a flight gets no answer any more
            self._since = time.monotonic()
            self.timed = batch

    def answered(self, now: float) -> None:
        """Notes that the batch `timed` has its answer."""
        self.timed = None
        took = now - self._since
        if now >= self._changes_at:
            self._changes_at = now + BEST_FOR
            self._best_before, self._best = self._best, math.inf
        self._best = min(self._best, took)
        best = min(self._best, self._best_before)
        self._usual += (took - self._usual) * WEIGHT if self._usual else took
        waits = self._usual - best
        bound = EAGER_MAX if waits <= 0 else int(min(2 * self._usual / waits, EAGER_MAX))
        self.eager_max = max(EAGER_MIN, bound)
