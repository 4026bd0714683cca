"""How an event loop waits: for descriptors and times, for threads, for its own turn.

Owns what a wait registers with the loop, and takes it back however the wait ends. Knows nothing of
records.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, Self, TypeVar

from penstock.ipc.waits import Wait, Waits

T = TypeVar("T")

HOLD_MAX: Final = 0.005
"""Seconds that a call which need not wait may keep the loop, before others get their turn."""


class WaitRunner:
    """Carries out calls that are generators of waits (see `penstock.ipc.waits`), one at a time.

    A descriptor is registered with the loop only while a call waits for it: between two waits the
    call may close it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._steps: Waits[object] | None = None
        self._future: asyncio.Future[None] | None = None
        self._unhook: Callable[[], object] = _nothing
        self._ended: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, or none will be any more."""
        return self._steps is not None or self._ended is not None

    async def carry(self, steps: Waits[T]) -> T:
        """Returns or raises what the call does. Cancelled at a wait, the call is given up there."""
        if self._steps is not None or self._ended is not None:
            steps.close()
            raise self._ended or RuntimeError(
                f"another task waits on this {self._what}, which serves one at a time"
            )
        self._steps = steps
        try:
            while True:
                try:
                    wait = next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result
                await self._until(wait)
        finally:
            self._steps = None
            steps.close()

    async def _until(self, wait: Wait) -> None:
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        timer = loop.call_later(wait.seconds, _settle, future)
        fd = -1 if wait.on is None else wait.on.fileno()

        def unhook() -> None:
            timer.cancel()
            if fd >= 0:
                loop.remove_reader(fd)
            self._unhook = _nothing

        self._unhook = unhook
        try:
            if fd >= 0:
                loop.add_reader(fd, _settle, future)
            await future
        finally:
            self._unhook()
        if self._ended is not None:
            raise self._ended

    def wake(self) -> None:
        """Lets the call look again now: what it waits for may be there by another way."""
        if self._future is not None:
            _settle(self._future)

    def end(self, error: Exception) -> None:
        """Ends all calls: the call under way is given up now, and raises."""
        self._ended = error
        if self._steps is not None:
            self._unhook()
            self._steps.close()
            self.wake()


def _nothing() -> None:
    pass


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Turns:
    """Lets others run, once in a while, between calls that find what they want at once."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def share(self) -> None:
        if time.monotonic() - self._since > HOLD_MAX:
            await asyncio.sleep(0)
            self.had()

    def had(self) -> None:
        """Others have run just now."""
        self._since = time.monotonic()


def going_on(steps: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that goes on when the one that waits for it is cancelled."""
    task = asyncio.get_running_loop().create_task(steps, name=name)
    task.add_done_callback(_looked_at)
    return task


async def in_thread(work: Callable[[], T], discard: Callable[[T], object] | None = None) -> T:
    """Lets the loop's own threads do what blocks and is rare. Cancelled, it is done all the same,
    and what comes of it is handed to `discard`, there too."""

    lock, given_up, came = threading.Lock(), False, []

    def whole() -> T:
        result = work()
        with lock:
            came.append(result)
            unwanted = given_up
        if unwanted and discard is not None:
            discard(result)
        return result

    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, whole)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_looked_at)
        with lock:
            given_up = True
        if came and discard is not None:
            loop.run_in_executor(None, discard, came[0])
        raise


def _looked_at(future: asyncio.Future[T]) -> None:
    """Its error is nobody's any more."""
    if not future.cancelled():
        future.exception()


class _Entered(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


E = TypeVar("E", bound=_Entered)


class Opening(Generic[E]):
    """An object that is still to be made. Await it, or use `async with`, which also closes it."""

    def __init__(self, make: Callable[[], Awaitable[E]]) -> None:
        self._make = make
        self._made: E | None = None

    if not TYPE_CHECKING:  # to a type checker it has no other attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"nothing has a {name!r} yet: `await` this first, or enter it by `async with`"
            )

    def __await__(self) -> Generator[object, None, E]:
        return self._make().__await__()

    async def __aenter__(self) -> E:
        self._made = await self._make()
        return await self._made.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)
