"""Pauses a share group: an operator does, or the breaker, when too much of what it ends dies."""

from __future__ import annotations

from typing import Final

import msgspec

WINDOW: Final = 60.0
"""Seconds: the breaker looks at what ended within the last half of it, to the whole."""
DEAD_MIN: Final = 20
"""Records that have to die within the window, whatever share of all that is."""


class SharePause(msgspec.Struct, frozen=True, array_like=True):
    """Nobody gets records of the group. `by`: who paused it; "" for the breaker."""

    at_us: int
    by: str
    reason: str


decode_pause: Final = msgspec.msgpack.Decoder(SharePause).decode


class Breaker:
    """Counts records that were done and that died, in the half of the window that goes on and in
    the one before. Volatile: another coordinator begins to count."""

    __slots__ = ("_before", "_dead", "_done", "_since")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._since = 0.0
        self._done = self._dead = 0
        self._before = (0, 0)

    def note(self, done: int, dead: int) -> None:
        self._done += done
        self._dead += dead

    def turn(self, now: float) -> None:
        """Leave out what is too long ago."""
        halves = int((now - self._since) / (WINDOW / 2))
        if halves:
            self._before = (self._done, self._dead) if halves == 1 else (0, 0)
            self._done = self._dead = 0
            self._since = now

    def complaint(self, dead_share: float) -> str:
        """Why the group is to be paused; nothing where it is not."""
        done, dead = self._before[0] + self._done, self._before[1] + self._dead
        if not dead_share or dead < DEAD_MIN or dead <= dead_share * (done + dead):
            return ""
        return (
            f"{dead} of {done + dead} records that ended within {WINDOW:g} s became dead letters, "
            f"more than dead_share, {dead_share:g}"
        )
