"""How long something took, counted by bounds: one observation is two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LATENCY_BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)
"""Seconds: from a request that only touches shared memory to one that waits for a coordinator."""


class Histogram:
    """`counts[i]` observations were up to `bounds[i]` and over the bound before; the last ones over
    all bounds. One thread observes, any may read."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def numbers(self) -> list[float]:
        """The sum, then the counts; nothing while there was no observation."""
        return [self.total, *self.counts] if any(self.counts) else []
