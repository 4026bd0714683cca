"""The consumer of a share group in an event loop: the blocking one decides, the loop waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self, TypeVar

from penstock.client.aio.consumer import attached
from penstock.client.aio.waits import Turns, WaitRunner, going_on
from penstock.client.closing import AsyncClosing
from penstock.client.remote.address import Place
from penstock.client.share.consumer import ShareConsumer as BlockingShareConsumer
from penstock.client.share.jobs import Job
from penstock.client.typed import K, Typed, V
from penstock.core import errors as er
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")
T = TypeVar("T")


class ShareConsumer(Typed[V, K], AsyncClosing):
    """Works on a queue in an event loop. Made by `Client.share_consumer`; options, verbs and errors
    are those of `penstock.client.share.consumer.ShareConsumer`. One task polls; any task, and any
    thread, may answer for jobs. A job's answers are plain calls.

    A call that is cancelled has brought nothing: what it would have brought comes with the next.
    A call of `Job.extend` is sent at once: by the call under way, or by a task.
    """

    def __init__(self, core: BlockingShareConsumer[V, K], carrier: WaitRunner) -> None:
        self._core = core
        self.group = core.group
        self._carrier = carrier
        self._turns = Turns()
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None
        core.on_extension(self._extending)

    def _extending(self) -> None:
        self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Sends what asks for more time, unless a call is under way: that takes it along."""
        if self._sending is None and not self._carrier.is_busy:
            self._sending = going_on(self._flushed(), "penstock: more time for jobs")

    async def _flushed(self) -> None:
        try:
            await self._carrier.carry(self._core.flushing())
        except er.PenstockError as error:
            logger.info("group %s: more time is asked for again later: %s", self.group, error)
        finally:
            self._sending = None

    async def _carry(self, steps: Waits[T]) -> T:
        while self._sending is not None:
            await asyncio.wait([self._sending])
        return await self._carrier.carry(steps)

    @classmethod
    async def make(cls, socket: Place, topics: tuple[str, ...], options: Mapping[str, Any]) -> Self:
        """Attaches, and joins the group."""
        carrier, session = await attached(socket, options)
        try:
            core = BlockingShareConsumer(socket, topics, session=session, **options)
        except BaseException:
            session.close()
            raise
        made = cls(core, carrier)
        try:
            await carrier.carry(core.joining())
        except BaseException:
            await made.close()
            raise
        return made

    async def poll(
        self,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        *,
        is_exact: bool = False,
    ) -> list[Job[V, K]]:
        """Jobs that are there, or the first that come within `timeout` seconds (None: wait for
        ever). See `penstock.ShareConsumer.poll`. `is_exact`: it never asks for more meanwhile."""
        await self._turns.share()
        jobs = await self._carry(self._core.polling(max_records, timeout, is_exact=is_exact))
        self._core.brought()
        return jobs

    async def __aiter__(self) -> AsyncIterator[Job[V, K]]:
        """Every job, one by one, for ever."""
        core = self._core
        while True:
            await self._turns.share()
            await self._carry(core.filling())
            for job in core.handing_out():
                if job is None:
                    await self._carry(core.attending())
                else:
                    yield job

    def ack_many(self, jobs: Iterable[Job[Any, Any]]) -> None:
        """All of these are done."""
        self._core.ack_many(jobs)

    async def flush(self, timeout: float | None = None) -> None:
        """Sends all answers that were given, and waits until the coordinator has them."""
        await self._carry(self._core.flushing(timeout))

    @property
    def member_id(self) -> str:
        """By which the coordinator knows it."""
        return self._core.member_id

    def metrics(self) -> dict[str, int]:
        """Counters since the consumer was made."""
        return self._core.metrics()

    def _described(self) -> str:
        return self._core._described()

    async def close(self) -> None:
        """Sends the answers, gives back what has none, leaves the group. A call that waits raises
        `ClosedError`."""
        self._carrier.end(er.ClosedError("this consumer is closed"))
        await WaitRunner("consumer").carry(self._core.closing())
