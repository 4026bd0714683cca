"""Slows down connections that send more than any other bound allows.

Batches have windows, consumption has credit, requests to the node a short queue. All else costs
from the budget of its connection: pings, messages without an endpoint, refused ones. A connection
that is no peer has no budget. ZeroMQ gives a message of each connection in turn, and cannot leave
one out. When a connection over its budget comes up again with only such between, everybody else was
served. Then nothing is read for `PAUSE`, or until a connection that was silent sends something. A
flood waits meanwhile in its own queue and then in TCP. It costs the gateway three messages a pause
instead of a processor.
"""

from __future__ import annotations

from typing import Final

RATE: Final = 2000
"""Messages a second that a connection may send beyond what is bounded otherwise."""
BURST: Final = 20_000
"""So many at once: a consumer may begin and drop thousands of cursors."""
PAUSE: Final = 0.001


class Budget:
    """Of one connection. `is_over` from when it is used up until half of it is there again."""

    __slots__ = ("_at", "_level", "is_over")

    def __init__(self, now: float) -> None:
        self._level = float(BURST)
        self._at = now
        self.is_over = False

    def take(self, now: float, cost: int) -> bool:
        """Whether it is used up by this, and was not before."""
        if now > self._at:
            self._level = min(self._level + (now - self._at) * RATE, BURST)
            self._at = now
        self._level = max(self._level - cost, 0.0)
        was_over, self.is_over = self.is_over, self._level < (BURST / 2 if self.is_over else 1)
        return self.is_over and not was_over


class Pacing:
    """When the loop reads on."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._is_first = True
        self._until = 0.0

    def took(self, identity: bytes, is_over: bool, now: float) -> None:
        """A message of that connection was read."""
        is_first, self._is_first = self._is_first, False
        if not is_over:
            self._seen.clear()
        elif is_first:
            pass  # chosen before the pause, when others may have had nothing to say
        elif identity not in self._seen:
            self._seen.add(identity)
        else:
            self._seen.clear()
            self._is_first = True
            self._until = now + PAUSE

    @property
    def is_slow(self) -> bool:
        """Whether some connection is over its budget, and was read since nobody else was."""
        return bool(self._seen or self._until)

    def pause(self, now: float) -> float:
        """Seconds for which nothing is to be read."""
        return max(0.0, self._until - now)

    def rang(self) -> None:
        """A connection that had nothing to say may have now."""
        self._until = 0.0
