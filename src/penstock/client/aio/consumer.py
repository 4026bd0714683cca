"""The consumer in an event loop: reading as `penstock.Consumer` reads, waiting as a loop waits.

Owns no position and no session: all that is the blocking consumer's, whose calls are carried out
here. The loop watches the consumer's doorbell while a call sleeps on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Self, TypeVar

from penstock.client.aio.waits import Turns, WaitRunner
from penstock.client.closing import AsyncClosing
from penstock.client.consumer.consumer import END_POLL, Start
from penstock.client.consumer.consumer import Consumer as BlockingConsumer
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Record, RecordBatch
from penstock.client.options import ConsumerOptions, GroupOptions
from penstock.client.reconnect import Attachment
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.client.typed import K, Typed, V
from penstock.core import errors as er
from penstock.ipc.waits import run

PREFETCH_BYTES: Final = 1 << 20
"""Default bound of the bytes that a poll decodes: it keeps the loop for about a millisecond."""
RUN: Final = 256
"""Records that iteration hands out before it looks whether it is the turn of others."""


Options = TypeVar("Options", ConsumerOptions, GroupOptions)


def checked(options: Options) -> Options:
    """The options of a consumer as they are in a loop. Raises `ConfigError`."""
    if options.get("spin"):
        raise er.ConfigError(
            "spin keeps a whole thread busy, which is the event loop's here: leave it out, or "
            "use penstock.Consumer in a thread of its own"
        )
    options = options.copy()
    options.setdefault("prefetch_bytes", PREFETCH_BYTES)
    return options


async def attached(socket: Place, options: Mapping[str, Any]) -> tuple[WaitRunner, Session]:
    """An attachment of its own for a consumer, and what carries its calls out."""
    carrier = WaitRunner("consumer")
    timeout, client_id = options.get("timeout", 5.0), options.get("client_id", "")
    attaching = Attachment.attaching(socket, client_id=client_id, timeout=timeout)
    return carrier, await carrier.carry(attaching)


class Consumer(Typed[V, K], AsyncClosing):
    """Reads partitions in an event loop. Made by `Client.consumer`; options, verbs and errors are
    those of `penstock.Consumer`, but for `prefetch_bytes`, which is 1 MiB here, and `spin`, which a
    loop has no use for. For one task at a time: RuntimeError where a second one would wait too.

    A call that is cancelled has brought nothing: what it would have brought comes with the next.
    """

    def __init__(self, core: BlockingConsumer[V, K], carrier: WaitRunner) -> None:
        self._core = core
        self._carrier = carrier
        self._turns = Turns()

    @classmethod
    async def make(cls, socket: Place, topics: tuple[str, ...], options: ConsumerOptions) -> Self:
        """Attaches, and looks the topics up."""
        options = checked(options)
        carrier, session = await attached(socket, options)
        try:
            core: BlockingConsumer[V, K] = BlockingConsumer(socket, session=session, **options)
        except BaseException:
            session.close()
            raise
        try:
            if topics:
                await carrier.carry(core.assigning_all(topics))
        except BaseException:
            core.close()
            raise
        return cls(core, carrier)

    # --- assignment and positions ----------------------------------------------------------------
    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `penstock.Consumer.assign`."""
        await self._carrier.carry(self._core.assigning(partitions))

    def assignment(self) -> list[TopicPartition]:
        return self._core.assignment()

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that iteration or `poll` will bring."""
        return self._core.position(topic, partition)

    def seek(
        self, topic: str, partition: int, to: Start, *, leader_epoch: int | None = None
    ) -> int:
        """Goes on elsewhere; returns the offset that `to` meant. Over tcp it goes by what is known
        of the partition (see `end_offsets`), and a time is asked for while the loop waits.
        `leader_epoch`: see `penstock.Consumer.seek`."""
        offset = run(self._core.seeking(topic, partition, to, leader_epoch))
        self._carrier.wake()
        return offset

    def seek_all(self, to: Start) -> dict[TopicPartition, int]:
        """`seek` on every assigned partition."""
        return {name: self.seek(*name, to) for name in self._core.assignment()}

    def pause(self, *partitions: TopicPartition) -> None:
        """See `penstock.Consumer.pause`."""
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with these partitions (none given: with all) where they were."""
        self._core.resume(*partitions)
        self._carrier.wake()

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end, as far as they are known (see `end_offsets`)."""
        return self._core.known_lag()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The high watermarks, under `read_committed` the last stable offsets. Over tcp as last
        heard: in a moment where a partition is read, long ago where it is paused."""
        return self._core.known_ends()

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """The log starts, over tcp as last heard."""
        return self._core.known_beginnings()

    # --- reading ---------------------------------------------------------------------------------
    async def poll(
        self, max_records: int | None = None, timeout: float | None = 0.0
    ) -> RecordBatch[V, K]:
        """Records that are there, or come within `timeout` seconds (None: wait for ever). See
        `penstock.Consumer.poll`."""
        await self._turns.share()
        batch = await self._carrier.carry(self._core.polling(max_records, timeout))
        self._core.brought()
        return batch

    async def batches(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[RecordBatch[V, K]]:
        """Polls that brought something, until none does for `timeout` seconds (None: for ever; with
        `follow=False`: until the high watermarks of the beginning)."""
        async for batch in self._batches(max_records, timeout):
            self._core.brought()
            yield batch

    async def _batches(
        self, max_records: int | None, timeout: float | None
    ) -> AsyncIterator[RecordBatch[V, K]]:
        """`batches`, of which each is still to be called `brought`."""
        ends = await self._carrier.carry(self._core.ending())
        while not self._core.is_over(ends):
            await self._turns.share()
            wait = timeout if ends is None else END_POLL
            batch = await self._carrier.carry(self._core.polling(max_records, wait))
            if batch:
                yield batch
            elif ends is None:
                return

    async def __aiter__(self) -> AsyncIterator[Record[V, K]]:
        """Every record, one by one; ends as `batches()` does."""
        async for batch in self._batches(None, None):
            records = self._core.unpack(batch)
            for _ in range(0, len(batch), RUN):
                for record in islice(records, RUN):
                    yield record
                await self._turns.share()

    def unpack(self, batch: RecordBatch[V, K]) -> Iterator[Record[V, K]]:
        """The records of a batch, the position following each of them."""
        return self._core.unpack(batch)

    # --- life ------------------------------------------------------------------------------------
    def metrics(self) -> dict[str, int]:
        """Counters since the consumer was made."""
        return self._core.metrics()

    def _described(self) -> str:
        return self._core._described()

    async def close(self) -> None:
        """Gives the attachment back; a call that waits raises `ClosedError`. Batches already
        brought stay readable."""
        self._carrier.end(er.ClosedError("this consumer is closed"))
        self._core.close()
