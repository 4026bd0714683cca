"""Work on the node's loop that may take long for one principal: in slices, with pauses between.

The cost of a principal's request also depends on what others have: names that a pattern is matched
with, ids that it may not see. Others have their turn in the pauses, and requests of one principal
wait for each other, however many connections it has. Owns the slices; knows nothing of the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

SLICE: Final = 0.002
"""Seconds of processor time in one go."""
PAUSES: Final = 4
"""A pause lasts so many times as long as the slice before it."""


class PrincipalTurn:
    """Of one request. `spent`: seconds of processor time, that of this slice too."""

    def __init__(self) -> None:
        self._before = 0.0
        self._begun = time.thread_time()

    @property
    def spent(self) -> float:
        return self._before + time.thread_time() - self._begun

    async def rest(self) -> None:
        """A pause, if the slice is over."""
        took = time.thread_time() - self._begun
        if took >= SLICE:
            await asyncio.sleep(PAUSES * took)
            self._before, self._begun = self._before + took, time.thread_time()


class PrincipalTurns:
    """Those of all principals."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, principal: str) -> AsyncIterator[PrincipalTurn]:
        """Once no other request of that principal has its turn."""
        lock = self._locks.setdefault(principal, asyncio.Lock())
        async with lock:
            yield PrincipalTurn()
