"""A line on a terminal that says how far something is; elsewhere nothing."""

from __future__ import annotations

import sys
import time
from typing import Final

from penstock.cli.command import Env

SHOWN_EVERY: Final = 0.2
WIDTH: Final = 30


class ProgressBar:
    """`noun` and `whole` say of what there is how much; `at` is told how much of it is done. The
    line goes when its block is left."""

    def __init__(self, env: Env, noun: str, whole: int) -> None:
        self._is_shown = env.shows_progress and whole > 0
        self._noun = noun
        self._whole = whole
        self._next = 0.0

    def at_of(self, done: int, whole: int) -> None:
        """`at`, where only now is known how much there is."""
        self._whole = max(whole, 1)
        self.at(done)

    def at(self, done: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + SHOWN_EVERY
        done = min(max(done, 0), self._whole)
        filled = WIDTH * done // self._whole
        bar = "#" * filled + "." * (WIDTH - filled)
        self._write(f"[{bar}] {done} of {self._whole} {self._noun}")

    def __enter__(self) -> ProgressBar:
        self.at(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
