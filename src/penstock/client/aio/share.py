"""The consumer of a share group in an event loop: the blocking one decides, the loop waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from penstock.client.aio.consumer import attached
from penstock.client.aio.waits import Turns, WaitRunner
from penstock.client.closing import AsyncClosing
from penstock.client.options import ShareOptions
from penstock.client.remote.address import Place
from penstock.client.share.consumer import ShareConsumer as BlockingShareConsumer
from penstock.client.share.jobs import Job
from penstock.core import errors as er


class ShareConsumer(AsyncClosing):
    """Works on a queue in an event loop. Made by `Client.share_consumer`; options, verbs and errors
    are those of `penstock.client.share.consumer.ShareConsumer`. One task polls; any task, and any
    thread, may answer for jobs. A job's answers are plain calls.

    A call that is cancelled has brought nothing: what it would have brought comes with the next.
    """

    def __init__(self, core: BlockingShareConsumer, carrier: WaitRunner) -> None:
        self._core = core
        self.group = core.group
        self._carrier = carrier
        self._turns = Turns()

    @classmethod
    async def make(
        cls, socket: Place, topics: tuple[str, ...], options: ShareOptions
    ) -> ShareConsumer:
        """Attach, and join the group."""
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

    async def poll(self, max_records: int | None = None, timeout: float | None = 0.0) -> list[Job]:
        """Jobs that are there, or the first that come within `timeout` seconds (None: wait for
        ever). See `penstock.ShareConsumer.poll`."""
        await self._turns.share()
        jobs = await self._carrier.carry(self._core.polling(max_records, timeout))
        self._core.brought()
        return jobs

    async def __aiter__(self) -> AsyncIterator[Job]:
        """Every job, one by one, for ever."""
        core = self._core
        while True:
            await self._turns.share()
            await self._carrier.carry(core.filling())
            for job in core.handing_out():
                if job is None:
                    await self._carrier.carry(core.attending())
                else:
                    yield job

    def ack_many(self, jobs: Iterable[Job]) -> None:
        """All of these are done."""
        self._core.ack_many(jobs)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all answers that were given, and wait until the coordinator has them."""
        await self._carrier.carry(self._core.flushing(timeout))

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
        """Send the answers, give back what has none, leave the group. A call that waits raises
        `ClosedError`."""
        self._carrier.end(er.ClosedError("this consumer is closed"))
        await WaitRunner("consumer").carry(self._core.closing())
