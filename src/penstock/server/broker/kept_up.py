"""Keeps a broker's endless tasks going: an exception that nobody expected ends none of them.

Such a task has no caller. Its end would be seen only by what does not happen any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger("penstock.cluster")

AGAIN: Final = 1.0
"""Seconds until a task that failed begins again."""


def kept_up(
    work: Callable[[], Coroutine[Any, Any, None]], wake: asyncio.Event, name: str
) -> asyncio.Task[None]:
    """Returns a task that runs `work`, and begins it again where an exception ends it. `wake`: what
    `work` waits for; it is set then, since what woke it last is not done."""

    async def run() -> None:
        while True:
            try:
                await work()
            except Exception:
                logger.exception("the task of %s failed, and begins again in %g s", name, AGAIN)
            await asyncio.sleep(AGAIN)
            wake.set()

    return asyncio.get_running_loop().create_task(run(), name=name)
