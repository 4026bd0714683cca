"""Dead letters from an event loop, where a call is cancelled that goes on in its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client.aio.dead_letters import AT_ONCE, DeadLetterQueue


class SlowLetters:
    """A queue whose letters come once they may."""

    topic = "jobs.dlq"

    def __init__(self) -> None:
        self.asked, self.may_come = threading.Event(), threading.Event()
        self.is_closed = threading.Event()

    def letters(self, **_: Any) -> Iterator[int]:
        try:
            self.asked.set()
            self.may_come.wait(20)
            yield from range(2 * AT_ONCE)
        finally:
            self.is_closed.set()


def test_letters_that_are_cancelled_while_a_thread_reads_are_closed_there() -> None:
    core = SlowLetters()

    async def cancelled() -> None:
        reading = asyncio.ensure_future(anext(DeadLetterQueue(core).letters()))  # type: ignore[arg-type]
        await asyncio.to_thread(core.asked.wait, 20)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not core.is_closed.is_set()
        core.may_come.set()
        assert await asyncio.to_thread(core.is_closed.wait, 20)

    asyncio.run(cancelled())


def test_letters_that_are_left_are_closed() -> None:
    core = SlowLetters()
    core.may_come.set()

    async def left() -> None:
        letters = DeadLetterQueue(core).letters()  # type: ignore[arg-type]
        first: object = await anext(letters)
        assert first == 0
        await letters.aclose()  # type: ignore[attr-defined]
        assert core.is_closed.is_set()

    asyncio.run(left())
