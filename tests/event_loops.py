"""What tests of the asyncio client share: a loop that is watched, and run to its end."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

WITHIN = 25.0
"""Seconds. A member's session lasts 30, and what is to come before its end has to come in time."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test in a loop of its own, within a bound; no task of it is left over."""

    async def bounded() -> T:
        async with asyncio.timeout(WITHIN * 2):
            result = await main
        for _ in range(10):  # the loop closes iterators that a cancelled task has left, by tasks
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            await asyncio.sleep(0)
        assert not left, f"tasks that nobody waits for: {left}"
        return result

    return asyncio.run(bounded())


class Ticker:
    """Counts how often the loop comes round while something else goes on in it."""

    def __init__(self) -> None:
        self.count = 0

    async def _tick(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0.002)

    async def more(self, ticks: int) -> None:
        """Wait until it has ticked so often from now on."""
        target = self.count + ticks
        async with asyncio.timeout(WITHIN):
            while self.count < target:
                await asyncio.sleep(0.002)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait in the loop until a condition holds."""
    try:
        async with asyncio.timeout(WITHIN):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN:g} s: {what}") from None


def held() -> tuple[int, int]:
    """How many descriptors and threads this process has."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def no_more_than(before: tuple[int, int]) -> bool:
    """Whether nothing was added; garbage of other tests may have gone meanwhile."""
    return all(now <= then for now, then in zip(held(), before, strict=True))
