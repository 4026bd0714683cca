"""The progress of a run at a terminal: one line on stderr, rewritten in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

_WIDTH: Final = 30
_EVERY: Final = 0.2


class BenchProgress:
    """Shown only where stderr is a terminal, unless `quiet`."""

    def __init__(self, title: str = "", *, quiet: bool = False) -> None:
        self._stream = sys.stderr
        self.is_shown = not quiet and self._stream.isatty()
        self._title = f"{title}: " if title else ""
        self._total = 0
        self._begun = 0.0
        self._next = 0.0

    def say(self, what: str) -> None:
        """Shows what the run is doing."""
        if self.is_shown:
            self._stream.write(f"\r\x1b[K{self._title}{what} ...")
            self._stream.flush()

    def begin(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()

    def at(self, done: int) -> None:
        """Shows that so many of the total are there; drawn a few times a second at most."""
        now = time.monotonic()
        if not self.is_shown or now < self._next:
            return
        self._next = now + _EVERY
        share = min(max(done / self._total, 0.0), 1.0) if self._total else 0.0
        bar = "#" * round(share * _WIDTH)
        rate = done / max(now - self._begun, 1e-3)
        self._stream.write(f"\r\x1b[K{self._title}[{bar:<{_WIDTH}}] {share:4.0%} {rate:12,.0f}/s")
        self._stream.flush()

    def watching(self, count: Callable[[], int]) -> Callable[[], None] | None:
        """Returns a function that draws `count()` whenever it is called; None where nobody
        looks."""
        return (lambda: self.at(count())) if self.is_shown else None

    def end(self) -> None:
        """Leaves an empty line."""
        if self.is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
