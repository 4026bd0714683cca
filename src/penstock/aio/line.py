"""Records that a producer cannot take at once, and so wait in line: for room, or for the look-up of
their topic.

One line a topic, first come, first served, so that order stays that of the calls. What waits is
bounded, and so is how long. Owns the lines and the tasks that see to them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.aio.delivery import Awaitable, News, Refused
from penstock.aio.waiting import Turns, in_thread
from penstock.core import errors as er
from penstock.delivery import AnyDelivery
from penstock.producer import Producer as BlockingProducer

RECORD_COST: Final = 200
"""What a record in line is reckoned to take besides its bytes."""


class _Entry(NamedTuple):
    """`streams`: what `send` returns is to be gone through, step by step."""

    delivery: Awaitable[Any]
    send: Callable[[], Any]
    topic: str
    records: int
    size: int
    since: float
    streams: bool


class Lines:
    """See the module. `waits`: whether records wait for room, up to `timeout` seconds."""

    def __init__(
        self, core: BlockingProducer, news: News, *, bytes_max: int, waits: bool, timeout: float
    ) -> None:
        self._core = core
        self._news = news
        self._bytes_max = bytes_max
        self._waits = waits
        self._timeout = timeout
        self._lines: dict[str, deque[_Entry]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._bytes = 0
        self._turns = Turns()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, topic: str) -> bool:
        return topic in self._lines

    def add(
        self,
        topic: str,
        delivery: Awaitable[Any],
        send: Callable[[], Any],
        records: int,
        size: int,
        *,
        streams: bool = False,
    ) -> None:
        """Raises `BufferFullError` where too much waits already."""
        if self._bytes >= self._bytes_max:
            raise er.BufferFullError(
                f"{self._bytes} bytes wait in line for the producer's buffer, as many as it takes "
                f"(buffer_bytes_max={self._bytes_max}): await drain() or deliveries now and then"
            )
        size += records * RECORD_COST
        self._bytes += size
        entry = _Entry(delivery, send, topic, records, size, time.monotonic(), streams)
        line = self._lines.get(topic)
        if line is not None:
            line.append(entry)
            return
        self._lines[topic] = deque([entry])
        self._tasks[topic] = asyncio.get_running_loop().create_task(
            self._serve(topic), name=f"penstock: line of {topic}"
        )

    async def empty(self) -> None:
        """Wait until nobody is in line."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def give_up(self, error: Exception) -> None:
        """Who is in line now fails."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for topic in list(self._lines):
            self._refuse(topic, error)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, topic: str) -> None:
        try:
            line = self._lines[topic]
            while line:
                try:
                    if not self._core.unthreaded.knows(topic):
                        await in_thread(partial(self._core.unthreaded.learn, topic))
                except Exception as error:  # theirs to see, whatever it is
                    self._refuse(topic, error)
                    return
                if line[0].streams:
                    await self._go_through(line[0])
                elif not self._take(line[0]):
                    await self._until_room(line[0].since + self._timeout - time.monotonic())
                    continue
                self._bytes -= line.popleft().size
                await self._turns.share()
        finally:
            self._lines.pop(topic, None)
            self._tasks.pop(topic, None)

    def _take(self, entry: _Entry) -> bool:
        """Hand an entry over; False while it has to wait for room."""
        try:
            entry.delivery.accept(entry.send())
        except er.BufferFullError as error:
            if self._waits and time.monotonic() < entry.since + self._timeout:
                return False
            self._fail(entry, error)
        except Exception as error:  # of the call that put it in line
            self._fail(entry, error)
        return True

    async def _go_through(self, entry: _Entry) -> None:
        """Hand a stream over. Its steps may take long: a thread makes each of them."""
        steps: Generator[None, None, AnyDelivery] = entry.send()

        def step() -> AnyDelivery | None:
            try:
                next(steps)
            except StopIteration as done:
                taken: AnyDelivery = done.value
                return taken
            return None

        try:
            while (taken := await in_thread(step, discard=lambda _: steps.close())) is None:
                if self._waits and not self._core.unthreaded.has_room():
                    await self._until_room(self._timeout)
            entry.delivery.accept(taken)
        except Exception as error:  # of the stream, or of the call that put it in line
            self._fail(entry, error)

    def _fail(self, entry: _Entry, error: Exception) -> None:
        refused = Refused(entry.topic, entry.records, error)
        entry.delivery.fail(refused)
        self._core.unthreaded.note(refused)

    async def _until_room(self, bound: float) -> None:
        with_room = self._news.future()
        callback = partial(self._news.tell, with_room)
        self._core.unthreaded.call_when_room(callback)
        try:
            await asyncio.wait([with_room], timeout=max(bound, 0.0))
        finally:
            self._core.unthreaded.forget(callback)

    def _refuse(self, topic: str, error: Exception) -> None:
        for entry in self._lines.pop(topic, ()):
            self._bytes -= entry.size
            self._fail(entry, error)
