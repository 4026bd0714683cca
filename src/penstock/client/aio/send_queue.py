"""Keeps records in line that a producer cannot take at once.

They wait for room, or for the look-up of their topic. There is one line per topic, first come,
first served, so that the order stays that of the calls. Size and time are bounded. Owns the lines
and the tasks that serve them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.client.aio.delivery import Awaitable, News, RefusedRecords
from penstock.client.aio.waits import Turns, in_thread
from penstock.client.producer.delivery import AnyDelivery
from penstock.client.producer.producer import Producer as BlockingProducer
from penstock.core import errors as er

RECORD_COST: Final = 200
"""Estimated bytes that a record in line takes besides its own bytes."""


class _Entry(NamedTuple):
    """`streams`: what `send` returns is to be gone through, step by step."""

    delivery: Awaitable[Any]
    send: Callable[[], Any]
    topic: str
    records: int
    size: int
    since: float
    streams: bool


class _Stream:
    """Steps that one thread at a time goes through, and not always the same thread."""

    def __init__(self, steps: Generator[None, None, AnyDelivery]) -> None:
        self._steps = steps
        self._turn = threading.Lock()
        self.taken: AnyDelivery | None = None

    def step(self) -> AnyDelivery | None:
        """The delivery, once all is handed over."""
        with self._turn:
            if self.taken is None:
                try:
                    next(self._steps)
                except StopIteration as done:
                    self.taken = done.value
            return self.taken

    def close(self) -> None:
        with self._turn:
            self._steps.close()


class Lines:
    """Lines of records. `waits`: whether records wait for room, up to `timeout` seconds."""

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
        self._streams: dict[str, _Stream] = {}  # by topic: what its line has begun
        self._bytes = 0
        self._turns = Turns()
        core.unthreaded.hand_over = self.hand_over

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
        self._lines.setdefault(topic, deque()).append(entry)
        self._attend(topic)

    def _attend(self, topic: str) -> None:
        """See to it that a task serves this line. One may have been cancelled, as all are when a
        loop ends."""
        task = self._tasks.get(topic)
        if task is not None and not task.done():
            return
        self._tasks[topic] = asyncio.get_running_loop().create_task(
            self._serve(topic, self._lines[topic]), name=f"penstock: line of {topic}"
        )

    async def empty(self) -> None:
        """Waits until nobody is in line."""
        while self._lines:
            for topic in self._lines:
                self._attend(topic)
            await asyncio.wait(list(self._tasks.values()))

    async def give_up(self, error: Exception) -> None:
        """Fails the records that are in line now."""
        tasks, streams = list(self._tasks.values()), list(self._streams.values())
        self._tasks.clear()
        self._streams.clear()
        for task in tasks:
            task.cancel()
        for topic in list(self._lines):
            self._refuse(topic, error)
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await in_thread(stream.close)

    async def _serve(self, topic: str, line: deque[_Entry]) -> None:
        """See to a line. Cancelled, it leaves the rest to who empties it, or hands it over."""
        try:
            while line:
                if not self._core.unthreaded.knows(topic):
                    await in_thread(partial(self._core.unthreaded.learn, topic))
                if line[0].streams:
                    await self._go_through(line[0])
                elif not self._take(line[0], until := line[0].since + self._timeout):
                    await self._until_room(until - time.monotonic())
                    continue
                self._bytes -= line.popleft().size
                await self._turns.share()
        except Exception as error:  # theirs to see, whatever it is
            self._refuse(topic, error)
        finally:
            if self._lines.get(topic, line) is line:  # and not one begun since this was given up
                self._tasks.pop(topic, None)
                if not line:
                    self._lines.pop(topic, None)

    def hand_over(self, until: float) -> None:
        """At the end of the process: have the producer take what is in line. Blocks, until then."""
        loop = self._news.loop
        if loop.is_running():  # in a daemon thread
            emptied = asyncio.run_coroutine_threadsafe(self.empty(), loop)
            with suppress(TimeoutError, CancelledError):
                emptied.result(max(0.0, until - time.monotonic()))
            if loop.is_running():
                return
        for topic, line in list(self._lines.items()):
            try:
                while line:
                    if not self._core.unthreaded.knows(topic):
                        self._core.unthreaded.learn(topic)
                    if line[0].streams:
                        self._end_stream(line[0], until)
                    elif not self._take(line[0], until):
                        self._wait_for_room(until)
                        continue
                    self._bytes -= line.popleft().size
            except Exception as error:
                self._refuse(topic, error)

    def _take(self, entry: _Entry, until: float) -> bool:
        """Hands an entry over; False while it has to wait for room."""
        try:
            entry.delivery.accept(entry.send())
        except er.BufferFullError as error:
            if self._waits and time.monotonic() < until:
                return False
            self._fail(entry, error)
        except Exception as error:  # of the call that put it in line
            self._fail(entry, error)
        return True

    def _stream(self, entry: _Entry) -> _Stream:
        """The one that this entry is, perhaps begun before by a task that was cancelled."""
        stream = self._streams.get(entry.topic)
        if stream is None:
            stream = self._streams[entry.topic] = _Stream(entry.send())
        return stream

    async def _go_through(self, entry: _Entry) -> None:
        """Hands a stream over. Its steps may take long: a thread makes each of them."""
        stream = self._stream(entry)
        try:
            while (taken := await in_thread(stream.step)) is None:
                if self._waits and not self._core.unthreaded.has_room():
                    await self._until_room(self._timeout)
            entry.delivery.accept(taken)
        except Exception as error:  # of the stream, or of the call that put it in line
            self._fail(entry, error)
        self._streams.pop(entry.topic, None)

    def _end_stream(self, entry: _Entry, until: float) -> None:
        """`_go_through`, by no loop."""
        stream = self._stream(entry)
        try:
            while (taken := stream.step()) is None:
                if self._waits and not self._core.unthreaded.has_room():
                    self._wait_for_room(until)
                if time.monotonic() > until:
                    stream.close()
                    raise er.BufferFullError("the process ended before all of a stream was sent")
            entry.delivery.accept(taken)
        except Exception as error:
            self._fail(entry, error)
        self._streams.pop(entry.topic, None)

    def _fail(self, entry: _Entry, error: Exception) -> None:
        refused = RefusedRecords(entry.topic, entry.records, error)
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

    def _wait_for_room(self, until: float) -> None:
        with_room = threading.Event()
        callback = with_room.set
        self._core.unthreaded.call_when_room(callback)
        try:
            with_room.wait(max(0.0, until - time.monotonic()))
        finally:
            self._core.unthreaded.forget(callback)

    def _refuse(self, topic: str, error: Exception) -> None:
        for entry in self._lines.pop(topic, ()):
            self._bytes -= entry.size
            self._fail(entry, error)
