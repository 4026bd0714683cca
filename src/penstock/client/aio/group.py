"""The consumer of a group in an event loop: `penstock.group` decides, the loop waits.

Owns nothing of the group: membership, commits and claims are the blocking consumer's, whose calls
are carried out here, also those between two records of a loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from penstock.client.aio.consumer import RUN, attached, checked
from penstock.client.aio.retry import carry_out
from penstock.client.aio.waits import Turns, WaitRunner
from penstock.client.closing import AsyncClosing
from penstock.client.consumer.consumer import END_POLL, Start
from penstock.client.consumer.group.consumed import Committed, GroupBatch
from penstock.client.consumer.group.consumer import GroupConsumer as BlockingGroupConsumer
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Record
from penstock.client.options import GroupOptions
from penstock.client.remote.address import Place
from penstock.client.typed import K, Typed, V
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.aio.producer import Producer
    from penstock.client.retry.policy import Retry


class GroupConsumer(Typed[V, K], AsyncClosing):
    """Reads what a group gives it, in an event loop. Made by `Client.consumer(..., group=...)`;
    options, verbs, guarantees and errors are those of
    `penstock.client.consumer.group.consumer.GroupConsumer`, but for those of `Consumer` that differ
    in a loop. For one task at a time. Listeners are plain functions, called in the loop.

    A call that is cancelled has brought nothing, and has committed what it asked for or not: the
    next call finds out.
    """

    def __init__(self, core: BlockingGroupConsumer[V, K], carrier: WaitRunner) -> None:
        self._core = core
        self.group = core.group
        self._carrier = carrier
        self._turns = Turns()

    @classmethod
    async def make(cls, socket: Place, topics: tuple[str, ...], options: GroupOptions) -> Self:
        """Attaches, and joins the group."""
        options = checked(options)
        carrier, session = await attached(socket, options)
        try:
            core: BlockingGroupConsumer[V, K] = BlockingGroupConsumer(
                socket, topics, session=session, **options
            )
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

    # --- reading ---------------------------------------------------------------------------------
    async def poll(
        self, max_records: int | None = None, timeout: float | None = 0.0
    ) -> GroupBatch[V, K]:
        """Returns records that are there, or come within `timeout` seconds (None: no limit).

        Records of earlier polls count as done from here on.
        """
        batch = await self._poll(max_records, timeout)
        self._core.brought()
        return batch

    async def _poll(self, max_records: int | None, timeout: float | None) -> GroupBatch[V, K]:
        """`poll`, of which the core is still to be told that the caller gets it."""
        await self._turns.share()
        return await self._carrier.carry(self._core.polling(max_records, timeout))

    async def batches(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[GroupBatch[V, K]]:
        """Polls that brought something, until none does for `timeout` seconds (None: for ever; with
        `follow=False`: until the high watermarks that its partitions had when they came)."""
        core = self._core
        while not await self._is_at_end():
            batch = await self.poll(max_records, timeout if core.follows else END_POLL)
            if batch:
                yield batch
                core.went_on()
            elif core.follows:
                return

    async def __aiter__(self) -> AsyncIterator[Record[V, K]]:
        """Every record, one by one; ends as `batches()` does. A record is done once the next one is
        asked for."""
        core = self._core
        while not await self._is_at_end():
            batch = await self._poll(core.loop_size, None if core.follows else END_POLL)
            for rows in core.runs(batch):
                if rows is None:
                    await self._carrier.carry(core.attending())
                    continue
                left = True
                while left:
                    left = False
                    for record in islice(rows, RUN):
                        yield record
                        left = True
                    await self._turns.share()

    async def _is_at_end(self) -> bool:
        if self._core.follows:
            return False
        return await self._carrier.carry(self._core.ending())

    async def _attend(self) -> None:
        """Lets the loop wait for what the next plain call would block for."""
        if self._core.is_disturbed:
            await self._carrier.carry(self._core.attending())

    async def run(
        self,
        handler: Callable[..., object],
        *,
        retry: Retry,
        producer: Producer | None = None,
    ) -> None:
        """Calls `handler` for each record, and awaits what it returns, until `stop`: see
        `penstock.GroupConsumer.run`. Signals are the program's:
        `loop.add_signal_handler(signal.SIGTERM, consumer.stop)`. Cancelled, it leaves the record in
        hand, which comes again."""
        await carry_out(*self._core.running(handler, retry, producer), self._carrier)

    def stop(self) -> None:
        """Lets `run` end, once the record in hand is done. Returns at once."""
        self._core.stop()

    # --- offsets ---------------------------------------------------------------------------------
    async def commit(self, what: Committed | None = None) -> None:
        """Commits all that was handed out so far, a batch, a record, or offsets by partition: see
        `penstock.GroupConsumer.commit`."""
        await self._carrier.carry(self._core.committing(what))

    async def rewind(self, batch: GroupBatch[Any, Any] | None = None) -> None:
        """Bring it again: a batch, or all above what is committed."""
        await self._carrier.carry(self._core.rewinding(batch))

    async def seek(self, topic: str, partition: int, to: Start) -> int:
        """Goes on elsewhere; returns the offset that `to` meant."""
        return await self._carrier.carry(self._core.seeking(topic, partition, to))

    async def assignment(self) -> list[TopicPartition]:
        """The partitions that are its own now."""
        await self._attend()
        return self._core.assignment()

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that iteration or `poll` will bring."""
        return self._core.position(topic, partition)

    def committed(self) -> dict[TopicPartition, int | None]:
        """Returns the committed offsets as this member knows them. None: nothing is yet."""
        return self._core.committed()

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetches nothing of these partitions (none given: of all) until `resume`."""
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with these partitions (none given: with all) where they were."""
        self._core.resume(*partitions)
        self._carrier.wake()

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and high watermark, over tcp as last heard."""
        return self._core.known_lag()

    # --- life ------------------------------------------------------------------------------------
    @property
    def blocking(self) -> BlockingGroupConsumer[V, K]:
        """For a transaction, which commits for it."""
        return self._core

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
        """Commits what is done (at-least-once), leaves the group, gives the attachment back. A call
        that waits raises `ClosedError`."""
        self._carrier.end(er.ClosedError("this consumer is closed"))
        await WaitRunner("consumer").carry(self._core.closing())
