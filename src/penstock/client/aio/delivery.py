"""Deliveries to await.

A delivery costs a future only when somebody awaits it before it is done. The producer's thread
tells the loop about many deliveries by one call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar, cast

from penstock.client.producer.delivery import AnyDelivery, BatchReceipt, Receipt

R = TypeVar("R")


class News:
    """Futures that a producer's thread asks a loop to resolve, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: deque[asyncio.Future[None]] = deque()
        self._told = False

    def future(self) -> asyncio.Future[None]:
        return self.loop.create_future()

    def tell(self, future: asyncio.Future[None], _delivery: object = None) -> None:
        """From any thread. One call into the loop for all that come before it has its turn."""
        self._due.append(future)
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._told = False  # first: what comes from here on calls again
        while self._due:
            future = self._due.popleft()
            if not future.done():
                future.set_result(None)


class RefusedRecords:
    """Records that a producer has not taken: their outcome, for their sender and for `flush`."""

    def __init__(self, topic: str, count: int, error: Exception) -> None:
        self.topic = topic
        self.count = count
        self.error = error
        self.looked_at = 0

    def unseen(self) -> tuple[str, int, Exception, int]:
        return self.topic, -1, self.error, self.count - self.looked_at


class Awaitable(Generic[R]):
    """A delivery. `taken`: the producer's own, None while the records wait in line."""

    __slots__ = ("_in_line", "_news", "_refused", "_taken")

    def __init__(self, news: News, taken: AnyDelivery | None = None) -> None:
        self._news = news
        self._taken = taken
        self._in_line: asyncio.Future[None] | None = None
        self._refused: RefusedRecords | None = None

    # --- the line ---
    def accept(self, taken: AnyDelivery) -> None:
        """The producer has it now."""
        self._taken = taken
        self._leave_line()

    def fail(self, refused: RefusedRecords) -> None:
        """The producer will not have it."""
        self._refused = refused
        self._leave_line()

    def _leave_line(self) -> None:
        if self._in_line is not None and not self._in_line.done():
            with suppress(RuntimeError):  # the loop is closed
                self._in_line.set_result(None)

    # --- who sent it ---
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._refused is not None or (self._taken is not None and self._taken.done())

    def result(self) -> R:
        """The outcome, where it is known: `asyncio.InvalidStateError` before."""
        if self._refused is not None:
            self._refused.looked_at = self._refused.count
            raise self._refused.error
        if self._taken is None or not self._taken.done():
            raise asyncio.InvalidStateError("this delivery has no outcome yet: await it")
        return cast(R, self._taken.result(0.0))

    def __await__(self) -> Generator[object, None, R]:
        if self._taken is None and self._refused is None:
            if self._in_line is None:
                self._in_line = self._news.future()
            yield from asyncio.shield(self._in_line).__await__()  # others may wait for it too
        if not self.done():
            future = self._news.future()
            assert self._taken is not None
            self._taken.add_done_callback(partial(self._news.tell, future))
            yield from future.__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "done" if self.done() else "in line" if self._taken is None else "pending"
        return f"<{type(self).__name__}: {state}>"


class Delivery(Awaitable[Receipt]):
    """The outcome of one record: await it, as often as you like, or leave it. Giving up an await
    takes nothing back."""

    __slots__ = ()


class BatchDelivery(Awaitable[list[BatchReceipt]]):
    """The outcome of one `send_batch`: one receipt per run of records."""

    __slots__ = ()
