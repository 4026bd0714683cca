"""How fast the cleaner reads and writes: so many bytes a second, and no great bursts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST: Final = 0.1
"""Seconds' worth of bytes that may go at once after a pause."""


class RateLimit:
    """A token bucket. Call it with the bytes that are about to be read or written: it waits until
    they may. `meanwhile` is called now and then, for what cannot wait until all is done."""

    def __init__(self, rate: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._rate = rate
        self._meanwhile = meanwhile
        self._left = rate * BURST
        self._last = time.monotonic()

    def __call__(self, nbytes: int) -> None:
        now = time.monotonic()
        self._left = min(self._rate * BURST, self._left + (now - self._last) * self._rate)
        self._last = now
        self._left -= nbytes
        if self._left < 0:
            time.sleep(-self._left / self._rate)
        self._meanwhile()
