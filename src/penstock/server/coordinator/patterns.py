"""Matches the topics there are against a new pattern, without holding up the node.

A pattern may take milliseconds for each long name, and a group's decision asks about all of them
in one go. So they are asked beforehand, in slices with pauses between, and remembered
(`groups.patterns.matches`). Who brings a pattern waits for that; patterns of one principal wait for
each other. Owns the slices and the bound; decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final
from weakref import WeakValueDictionary

from penstock.cluster.groups.patterns import check_pattern, matches
from penstock.core.errors import ResourceLimitError

SLICE: Final = 0.002
"""Seconds of processor time in one go."""
PAUSES: Final = 4
"""A pause lasts so many times as long as the slice before it."""
PATTERN_SECONDS_MAX: Final = 0.25
"""Seconds of processor time for one pattern and all topics."""


class Patterns:
    """Those of all principals."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def learn(self, principal: str, pattern: str, names: Iterable[str]) -> None:
        """Find out which of these topics the pattern matches. Raises ConfigError, and
        ResourceLimitError where that takes too long."""
        lock = self._locks.setdefault(principal, asyncio.Lock())
        async with lock:
            spent, begun = 0.0, time.thread_time()
            check_pattern(pattern)
            for name in list(names):
                matches(pattern, name)
                took = time.thread_time() - begun
                if spent + took > PATTERN_SECONDS_MAX:
                    raise ResourceLimitError(
                        f"the pattern {pattern!r} takes more than {PATTERN_SECONDS_MAX:g} s to be "
                        "matched with the topics there are (PATTERN_SECONDS_MAX): write it with "
                        "fewer repeats, or name the topics"
                    )
                if took >= SLICE:
                    await asyncio.sleep(PAUSES * took)
                    spent, begun = spent + took, time.thread_time()
