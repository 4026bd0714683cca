"""One token bucket.

Tokens are bytes. They come at `rate` a second, up to one second's worth. The level may go below
zero: a batch larger than the burst passes, and the next one waits longer.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 1.0
"""Seconds of its rate that a bucket holds at most."""


class Bucket:
    __slots__ = ("_at", "_level", "rate")

    def __init__(self, now: float, rate: float) -> None:
        self.rate = rate
        self._level = rate * BURST
        self._at = now

    def set_rate(self, now: float, rate: float) -> None:
        """Another rate from now on; a debt stays what it is."""
        self._fill(now)
        self.rate = rate
        self._level = min(self._level, rate * BURST)

    def take(self, now: float, amount: int) -> float:
        """Take these bytes; the seconds to wait before the next are taken, 0 for none."""
        self._fill(now)
        self._level -= amount
        return self._wait()

    def delay(self, now: float) -> float:
        """Seconds to wait before anything is taken."""
        self._fill(now)
        return self._wait()

    def _fill(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:  # clocks of callers may differ by a little
            self._level = min(self._level + passed * self.rate, self.rate * BURST)
            self._at = now

    def _wait(self) -> float:
        return -self._level / self.rate if self._level < 0 else 0.0
