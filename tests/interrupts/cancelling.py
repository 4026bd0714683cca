"""Cancels what a program in an event loop awaits, and lets that program block.

`Blocking` stands for an object of `penstock.aio`: each of its calls is a task of a loop that runs
until the task is done. So the trials of the blocking client, and what judges them, try this one.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from interrupts.striking import Alarm, Blow, Interrupted

from penstock import aio
from penstock.client.aio.delivery import Awaitable
from penstock.client.aio.waits import Opening
from penstock.client.transport import Transport
from penstock.testing import Broker, Cluster

WITHIN = 30.0
"""Seconds in which each call has to end, cancelled or not."""

Call = Coroutine[Any, Any, Any]


class Cancelling(Blow):
    """What cancels a task. `armed` is a matter of the program, and not of a loop."""

    now: ClassVar[Cancelling | None] = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        Cancelling.now = self
        began = time.perf_counter()
        try:
            yield
            self.unstruck(time.perf_counter() - began)
        finally:
            Cancelling.now = None

    def unstruck(self, seconds: float) -> None:
        """Nothing has struck a call that took so long."""

    def through(self, call: Call) -> Call:
        """The call, as it is to be run."""
        raise NotImplementedError

    def cancel(self, call: Call, task: asyncio.Task[Any]) -> None:
        self.places.append(_place(call))
        task.cancel()


class Cancel(Cancelling):
    """Cancels at one point: at a suspension (even), or once what is awaited there has come and
    nobody has looked at it (odd)."""

    def __init__(self, at: int, _error: type[BaseException]) -> None:
        super().__init__()
        self._at = at
        self.points = 0

    def through(self, call: Call) -> Call:
        return self._stepped(call)

    @types.coroutine
    def _stepped(self, call: Call) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                awaited = call.send(None) if error is None else call.throw(error)
            except StopIteration as done:
                return done.value
            error = None
            if not self.has_struck:
                if self._at == self.points or (awaited is None and self._at == self.points + 1):
                    self.cancel(call, task)
                elif self._at == self.points + 1:
                    awaited.add_done_callback(lambda _: self._late(call, task))
                self.points += 2
            try:
                yield awaited
            except BaseException as raised:
                error = raised

    def _late(self, call: Call, task: asyncio.Task[Any]) -> None:
        if not self.has_struck:
            self.cancel(call, task)


class Cancels(Cancelling, Alarm):
    """Cancels at random moments."""

    async def through(self, call: Call) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        due = time.perf_counter() + self.after()

        def look() -> None:
            if Cancelling.now is not self or ended or self.is_over:
                return
            if time.perf_counter() >= due:
                self.cancel(call, task)
            else:
                loop.call_soon(look)  # no timer of a loop is as fine

        ended = False
        loop.call_soon(look)
        try:
            return await call
        finally:
            ended = True


def _place(call: Any) -> str:
    """Where it is suspended, in Penstock's own code."""
    place = "?"
    while call is not None:
        frame = getattr(call, "cr_frame", None) or getattr(call, "ag_frame", None)
        if frame is not None and "/penstock/" in frame.f_code.co_filename:
            name = Path(frame.f_code.co_filename).name
            place = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        call = getattr(call, "cr_await", None) or getattr(call, "ag_await", None)
    return place


class Loop:
    """An event loop that runs while a call does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def connect(self, node: Broker | Cluster) -> Any:
        transport: Transport = "tcp" if node.transport == "tcp" else "auto"
        return self.call(lambda: aio.connect(node.url, transport=transport))

    def call(self, make: Callable[[], Any]) -> Any:
        """Make a call in the loop, and wait for what is to be awaited of it."""

        async def whole() -> Any:
            made = make()
            if inspect.iscoroutine(made) or isinstance(made, Opening):
                return await made
            return made

        return self._blocking(self.run(whole()))

    def run(self, call: Call) -> Any:
        """Raises `Interrupted` where it was cancelled."""
        blow = Cancelling.now
        task = self._loop.create_task(call if blow is None else blow.through(call))
        self._loop.run_until_complete(asyncio.wait([task], timeout=WITHIN))
        assert task.done(), f"no end within {WITHIN} s: {task.get_stack()}"
        if task.cancelled():
            raise Interrupted("cancelled")
        return task.result()

    def _blocking(self, made: Any) -> Any:
        if isinstance(made, Awaitable):
            return BlockingDelivery(self, made)
        if hasattr(made, "__aenter__"):
            return Blocking(self, made)
        if hasattr(made, "__anext__"):
            return self.iterated(made)
        return made

    def iterated(self, records: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.run(_next(records))
                except StopAsyncIteration:
                    return
        finally:
            self.run(records.aclose())

    def close(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _next(records: Any) -> Any:
    return await anext(records)


class Blocking:
    """See the module. Of an object that is to be closed, or of a transaction."""

    def __init__(self, loop: Loop, awaited: Any) -> None:
        self._loop = loop
        self._awaited = awaited

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._awaited, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            names = {key: _bare(each) for key, each in named.items()}
            return self._loop.call(lambda: found(*given, **names))

        return call

    def __iter__(self) -> Iterator[Any]:
        return self._loop.iterated(aiter(self._awaited))

    def __enter__(self) -> Self:
        self._loop.call(self._awaited.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return self._loop.call(lambda: self._awaited.__aexit__(kind, error, trace))


def _bare(given: Any) -> Any:
    return given._awaited if isinstance(given, Blocking) else given


class BlockingDelivery:
    """See `Blocking`."""

    def __init__(self, loop: Loop, awaited: Awaitable[Any]) -> None:
        self._loop = loop
        self._awaited = awaited

    def done(self) -> bool:
        return self._awaited.done()

    def result(self, timeout: float | None = None) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(timeout):
                return await self._awaited

        if self.done():
            return self._awaited.result()
        return self._loop.run(bounded())

    def exception(self, timeout: float | None = None) -> Exception | None:
        try:
            self.result(timeout)
        except Exception as error:
            return error
        return None
