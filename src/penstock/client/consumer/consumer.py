"""The consumer without a group: assigned partitions, read in place from their segment files.

The readable end is in shared memory, the records in the page cache; the node is asked only for the
places of topics. While there is nothing to read the consumer sleeps on its doorbell, which writers
ring. It looks for a lost node again during such sleeps; reading goes on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

from penstock.client import fork_safety
from penstock.client.api_hints import Elsewhere
from penstock.client.closing import Closing
from penstock.client.consumer.decoding import Decoders, decoders_of
from penstock.client.consumer.fetch_scheduler import FetchScheduler
from penstock.client.consumer.iteration import HandOut
from penstock.client.consumer.last_poll import LastPoll
from penstock.client.consumer.latest import LatestOnly
from penstock.client.consumer.logs import NodeLogs
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.partition_cursor import AssignedPartition, Isolation, TopicPartition
from penstock.client.consumer.published_position import Published
from penstock.client.consumer.records import Chunk, Record, RecordBatch
from penstock.client.consumer.source import LocalSource, folder_of
from penstock.client.public_view import shortened
from penstock.client.reconnect import RECONNECT_MAX, Attachment
from penstock.client.remote.address import Place
from penstock.client.remote.logs import logs_of
from penstock.client.session import Session
from penstock.client.typed import K, Typed, V
from penstock.client.validation import (
    ISOLATIONS,
    as_spelt,
    check_consumer_options,
    check_flag,
    check_pair,
    check_records_max,
)
from penstock.core import errors as er
from penstock.core.storage import Storage
from penstock.ipc.doorbell import Backoff
from penstock.ipc.waits import Waits, run
from penstock.serializers.serializer import Serializer

logger = logging.getLogger("penstock.consumer")

END_POLL: Final = 0.05
"""Seconds of a poll by a consumer that reads up to an end. Whatever is below the end is there: a
record, or the mark of a transaction, which is passed over without a record."""

FAR_PATIENCE: Final = 0.1
"""Seconds that a poll waits beyond its own time for records on their way from another host: they
are there, though not here."""

Start = Offset | str | int | datetime


class Consumer(Typed[V, K], Closing, Elsewhere):
    """Reads partitions by explicit assignment. Made by `Client.consumer`. For one thread at a time.

    Args:
        start: where partitions without a position begin ("earliest", "latest", an offset, a
            datetime, an `Offset`).
        follow: False ends iteration at the high watermark seen when it began.
        isolation: "read-uncommitted" brings records as soon as they are in the log;
            "read-committed" ends where the oldest open transaction begins (the last stable offset,
            also for lag, `end_offsets` and "latest") and leaves out what was aborted, counted as
            `aborted` in `metrics`.
        on_out_of_range: what happens when retention overtook the position: "error" raises
            `OffsetOutOfRangeError`, "earliest" and "latest" go on there (counted in `metrics`).
        prefetch_bytes: what a poll decodes at most, over all partitions, in bytes (and at least a
            batch). Where that does not reach all of them, the next poll begins with the others.
            From another host as much is fetched ahead, at least 64 KiB of each partition.
        latest_only: "key" brings only the newest record of each key, "partition" only the newest
            record, of all before the consumer when it polls. The position goes past the
            rest, counted as `skipped` in `metrics`. See `penstock.client.consumer.latest`.
        spin: seconds to go on looking for records before it sleeps, 0 to 0.1; not over tcp. With
            0 it sleeps at once, and each wake costs what the system takes for one. A consumer that
            spins keeps a core busy while it waits, and other threads of its process waiting.
        node_timeout: seconds without a node after which `poll` raises `NotConnectedError`.
        value, key: serializers of `penstock.serializers`. A record's value, or key, is decoded once
            it is asked for. None: bytes, as they are.
    """

    def __init__(
        self,
        socket: Place,
        topics: Sequence[str] = (),
        *,
        client_id: str = "",
        start: Start = "earliest",
        follow: bool = True,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: Literal["error", "earliest", "latest"] = "error",
        prefetch_bytes: int = 16 << 20,
        latest_only: LatestOnly | None = None,
        spin: float = 0.0,
        node_timeout: float = 30.0,
        timeout: float = 5.0,
        value: Serializer[V] | None = None,
        key: Serializer[K] | None = None,
        session: Session | None = None,
    ) -> None:
        check_consumer_options(on_out_of_range, prefetch_bytes, latest_only, spin, isolation)
        check_flag("follow", follow)
        self._start = Offset.of(start)
        self._follow = follow
        self._isolation: Isolation = as_spelt("isolation", isolation, ISOLATIONS)
        self._on_out_of_range = on_out_of_range
        self._latest_only = latest_only
        self._spin = spin
        self._timeout = timeout
        self._storage = Storage()
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        self._turns = FetchScheduler(prefetch_bytes, whole=latest_only == "key")
        self._handout = HandOut(self._assigned)
        self.decoders = decoders_of(value, key)
        if self.decoders is not None:
            self._gather = partial(_decoded, self._gather, self.decoders)  # type: ignore[method-assign]
        self._last = LastPoll(self._assigned, self._turns)
        self._closed = False
        self.is_left = False
        """All is given back: no interrupt has ended `close`."""
        self._forked = False
        self._counts = dict.fromkeys(
            (
                "records",
                "batches",
                "bytes",
                "skipped",
                "aborted",
                "paused",
                "out_of_range",
                "reconnects",
            ),
            0,
        )
        if session is None:
            session = run(Attachment.attaching(socket, client_id=client_id, timeout=timeout))
        self._attachment = Attachment(session, client_id=client_id, node_timeout=node_timeout)
        self._published = Published(
            self._assigned, self._turns, self._attachment, self._counts if latest_only else None
        )
        fork_safety.remember(self)
        if topics:
            try:
                run(self.assigning_all(topics))
            except BaseException:
                self.close()
                raise

    @property
    def _session(self) -> Session:
        return self._attachment.session

    # --- assignment and positions ----------------------------------------------------------------
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these (topic, partition) pairs; the ones kept keep their positions."""
        run(self.assigning(partitions))

    def assigning_all(self, topics: Collection[str]) -> Waits[None]:
        """Assigns all partitions of these topics, as waits that the caller carries out."""
        found = yield from self._attachment.finding(self, topics, self._timeout)
        yield from self.assigning(
            (topic, number) for topic in topics for number in range(len(found[topic].pages))
        )

    def assigning(self, partitions: Iterable[TopicPartition]) -> Waits[None]:
        """Assigns like `assign`, as waits that the caller carries out."""
        self._check_usable()
        wanted = list(dict.fromkeys(map(check_pair, partitions)))
        topics = {topic for topic, _ in wanted}
        found = yield from self._attachment.finding(self, topics, self._timeout)
        assigned: dict[TopicPartition, AssignedPartition] = {}
        for topic, number in wanted:
            info = found[topic]
            if not 0 <= number < len(info.pages):
                raise er.UnknownTopicError(
                    f"topic {topic!r} has partitions 0 to {len(info.pages) - 1}; {number} was "
                    "asked for"
                )
            kept = self._assigned.get((topic, number))
            if kept is not None and kept.topic_id == info.topic_id:
                assigned[topic, number] = kept
                continue
            partition = self._partition((topic, number), info.topic_id, info.pages[number])
            partition.jump((yield from partition.resolving(self._start, self._logs())))
            assigned[topic, number] = partition
        self._settle()
        self._adopt(assigned)

    def _partition(self, name: TopicPartition, topic_id: bytes, page: int) -> AssignedPartition:
        """Returns a partition to read, on this host or another one."""
        session, state = self._session, self._session.page(page)
        latest, isolation = self._latest_only, self._isolation
        if session.far is not None:
            from penstock.client.remote.partition import FarPartition  # for remote clients only

            credit = self._turns.bytes_max
            return FarPartition(name, topic_id, state, session.far, credit, latest, isolation)
        source = LocalSource(self._storage, str(session.data_folder / folder_of(topic_id, name[1])))
        return AssignedPartition(name, topic_id, state, source, latest, isolation)

    def _adopt(self, assigned: dict[TopicPartition, AssignedPartition]) -> None:
        """Reads these from now on; others are closed."""
        gone = [one for name, one in self._assigned.items() if assigned.get(name) is not one]
        self._published.is_whole = False
        self._assigned.update(assigned)
        for name in [name for name in self._assigned if name not in assigned]:
            del self._assigned[name]
        for partition in gone:
            partition.close()
        self._published.all()

    def assignment(self) -> list[TopicPartition]:
        return list(self._assigned)

    def position(self, topic: str, partition: int) -> int:
        """Returns the offset of the next record that iteration or `poll` will bring."""
        self.go_back()
        return self._handout.offset_of(self._of(topic, partition))

    def seek(
        self, topic: str, partition: int, to: Start, *, leader_epoch: int | None = None
    ) -> int:
        """Goes on elsewhere; returns the offset that `to` meant.

        `leader_epoch`, beside an offset: the epoch in which the records before it were read, from a
        caller that kept both. Raises `LogTruncatedError`, here or at the next poll, if the log
        parted from that. If the offset is not there, `poll` raises.
        """
        run(self.refreshing())
        return run(self.seeking(topic, partition, to, leader_epoch))

    def seeking(
        self, topic: str, partition: int, to: Start, leader_epoch: int | None = None
    ) -> Waits[int]:
        """Seeks like `seek` by what is known of the partition, as waits that the caller carries
        out."""
        self._check_usable()
        self._settle()
        found = self._of(topic, partition)
        place = Offset.of(to)
        if leader_epoch is not None and place.place == "exact":
            found.jump(place.number, leader_epoch)
            found.check()
            offset, epoch = place.number, leader_epoch
        else:
            epoch = found.page.leader_epoch
            offset = yield from found.resolving(place, self._logs())
        found.jump(offset, epoch)  # rule 15: that place may be committed
        self._published.touched.append(found)
        self._published.positions()
        return offset

    def seek_all(self, to: Start) -> dict[TopicPartition, int]:
        """Seeks on every assigned partition; returns the offset of each."""
        run(self.refreshing())
        return {name: run(self.seeking(*name, to)) for name in self._assigned}

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops fetching from these partitions (none given: from all) until `resume`.

        Until then they are not looked at, wake nobody and hold nothing. Iteration still hands out
        the records that a poll has brought already.
        """
        for partition in self._named(partitions):
            self._counts["paused"] += not partition.paused
            partition.pause()
        self._published.pages()

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with these partitions (none given: with all) where they were."""
        for partition in self._named(partitions):
            partition.paused = False
        self._published.pages()

    # --- reading ---------------------------------------------------------------------------------
    def poll(
        self, max_records: int | None = None, timeout: float | None = 0.0
    ) -> RecordBatch[V, K]:
        """Returns records that are there, or come within `timeout` seconds (None: waits for ever).

        Without `max_records` a poll brings up to about 256 KiB a partition, and `prefetch_bytes` in
        all. Without records it is an empty batch. From another host it brings what has come, and
        waits up to 0.1 s beyond `timeout` for the first of what it knows to be there. Raises
        `OffsetOutOfRangeError`, `LogTruncatedError`, `CorruptBatchError`, `UnknownTopicError`
        (deleted), `NotConnectedError` (no node for `node_timeout`). An error of one partition moves
        no other, and comes again until `seek` moves that one.
        """
        batch = run(self.polling(max_records, timeout))
        self.brought()
        return batch

    def polling(self, max_records: int | None, timeout: float | None) -> Waits[RecordBatch[V, K]]:
        """Polls like `poll`, as waits that the caller carries out. It returns at once what it
        brings: given up at a wait, it has brought nothing. The caller calls `brought` once it has
        the batch."""
        self._check_usable()
        if not self._assigned:
            raise er.ConfigError("nothing is assigned: name topics, or call assign() first")
        self._settle()
        self._published.positions()
        self._published.polled()
        self._last.begin()
        attachment = self._attachment
        deadline = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while True:
            batch = self._last.fetch(self._gather, max_records)
            if batch.chunks:  # none of them is ever empty
                return batch
            self._published.polled()  # not first: a record may be waited for
            left = None if deadline is None else deadline - time.monotonic()
            yield from attachment.minding(self, RECONNECT_MAX if left is None else left)
            if left is not None and left <= 0:
                if not self.awaits(left):
                    return batch
                left += FAR_PATIENCE
            bound = backoff.bound() if left is None else min(backoff.bound(), left)
            yield from attachment.sleeping(bound, self._spin, self._has_news)

    def watching(self, seconds: float) -> Waits[None]:
        """Waits until a poll may bring something, or so many seconds are over: for a thread that
        looks after several consumers. It may be given up at any time."""
        self._check_usable()
        return self._attachment.sleeping(seconds, 0.0, self._has_news)

    def brought(self) -> None:
        """Notes that the caller has what a poll returned."""
        self._last.brought()

    def go_back(self) -> None:
        """Goes back after an interrupt: records that a poll fetched and the caller never got come
        again."""
        self._last.go_back()

    def _settle(self) -> None:
        """Sets positions to what was handed out."""
        self.go_back()
        self._handout.settle()

    def awaits(self, left: float) -> bool:
        """Returns whether a poll whose time is over still waits for records on their way from
        another host."""
        return (
            self._session.far is not None
            and left > -FAR_PATIENCE
            and any(partition.is_awaited for partition in self._turns.active)
        )

    def batches(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Iterator[RecordBatch[V, K]]:
        """Polls that brought something, until none does for `timeout` seconds (None: for ever; with
        `follow=False`: until the high watermarks of the beginning)."""
        for batch in self._batches(max_records, timeout):
            self.brought()
            yield batch
            del batch  # now, and not once a record is there that somebody waits for

    def _batches(
        self, max_records: int | None, timeout: float | None
    ) -> Iterator[RecordBatch[V, K]]:
        """`batches`, of which each is still to be called `brought`."""
        ends = run(self.ending())
        while ends is None or not self.is_over(ends):
            batch = run(self.polling(max_records, timeout if ends is None else END_POLL))
            if batch.chunks:
                yield batch
                del batch  # as `batches` does
            elif ends is None:
                return

    def __iter__(self) -> Iterator[Record[V, K]]:
        """Yields every record; ends as `batches()` does."""
        return chain.from_iterable(self._all_runs())

    def _all_runs(self) -> Iterator[Iterator[Record[V, K]]]:
        for batch in self._batches(None, None):
            yield from self._runs(batch)
            del batch  # as `batches` does

    def unpack(self, batch: RecordBatch[V, K]) -> Iterator[Record[V, K]]:
        """Yields the records of a batch, and moves the position behind each of them."""
        return chain.from_iterable(self._runs(batch))

    def _runs(self, batch: RecordBatch[V, K]) -> Iterator[Iterator[Record[V, K]]]:
        """Yields the runs of a batch. From now on they tell the consumer's position."""
        self._handout.bring_back(batch)
        self._last.brought()
        return self._handout.runs(batch)

    def _gather(self, max_records: int | None) -> RecordBatch[V, K]:
        """Returns the records that are there now, with partitions taking turns."""
        if max_records is not None:
            check_records_max(max_records)
        only = self._turns.only() if max_records is None else None
        chunk = None if only is None else only.take_alone()
        if only is not None and chunk is not None:
            self._published.touched.append(only)
            counts = self._counts
            counts["batches"] += 1
            counts["records"] += 1
            counts["bytes"] += len(chunk.columns.values.data)
            return RecordBatch([chunk])
        chunks = self._turns.gather(max_records, self._take)
        if chunks:
            self._counts["batches"] += len(chunks)
            self._counts["records"] += sum(map(len, chunks))
        return RecordBatch(chunks)

    def _take(self, partition: AssignedPartition, room: int | None, bytes_max: int) -> list[Chunk]:
        """Returns up to `room` records of one partition."""
        skipped, aborted = partition.skipped, partition.aborted
        try:
            taken = partition.take(room, bytes_max)
        except er.OffsetOutOfRangeError:
            if self._on_out_of_range == "error":
                raise
            self._out_of_range(partition)
            return []
        if taken:
            self._published.touched.append(partition)
        self._counts["skipped"] += partition.skipped - skipped
        self._counts["aborted"] += partition.aborted - aborted
        self._counts["bytes"] += sum(chunk.values.nbytes for chunk in taken)
        return taken

    def _out_of_range(self, partition: AssignedPartition) -> None:
        """Goes on at the offset that the policy names."""
        self._counts["out_of_range"] += 1
        page = partition.page
        target = page.log_start if self._on_out_of_range == "earliest" else partition.end
        logger.warning("%s: offset %d is gone, going on at %d", partition, partition.offset, target)
        partition.jump(target)

    def ending(self) -> Waits[dict[TopicPartition, int] | None]:
        """Returns the offsets where iteration that begins now will end; None: nowhere."""
        if self._follow:
            return None
        yield from self.refreshing()
        return self.known_ends()

    def is_over(self, ends: dict[TopicPartition, int] | None) -> bool:
        """Returns whether iteration has come to these offsets."""
        if ends is None:
            return False
        self._settle()
        self._published.positions()
        return all(
            self._assigned[name].offset >= end
            for name, end in ends.items()
            if name in self._assigned and not self._assigned[name].paused
        )

    def _has_news(self) -> bool:
        """Returns whether there is something not to sleep for."""
        return self._turns.has_more()

    # --- how far partitions go -------------------------------------------------------------------
    def _logs(self) -> NodeLogs:
        return logs_of(self._session, self._timeout)

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end (see `end_offsets`), from shared memory."""
        run(self.refreshing())
        return self.known_lag()

    def known_lag(self) -> dict[TopicPartition, int]:
        """Returns `lag` by the known ends: those of a remote node may have moved on."""
        return {
            name: max(0, partition.end - self._handout.offset_of(partition))
            for name, partition in self._assigned.items()
        }

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Returns the high watermarks, under `read_committed` the last stable offsets."""
        run(self.refreshing())
        return self.known_ends()

    def known_ends(self) -> dict[TopicPartition, int]:
        """Returns `end_offsets` as far as they are known: those of a remote node may have
        moved on."""
        return {name: part.end for name, part in self._assigned.items()}

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Returns the log starts."""
        run(self.refreshing())
        return self.known_beginnings()

    def known_beginnings(self) -> dict[TopicPartition, int]:
        """Returns `beginning_offsets` as far as they are known."""
        return {name: part.page.log_start for name, part in self._assigned.items()}

    def refreshing(self) -> Waits[None]:
        """Asks a remote node for the present state of the partitions. While it is away, the known
        state counts. A node on this host need not be asked."""
        if self._session.far is None or not self._assigned:
            return
        try:
            yield from self._logs().refreshing([part.page for part in self._assigned.values()])
        except er.PenstockError as error:
            if not error.retriable:
                raise
            logger.info(
                "no broker reports the partitions now, going by their last known state: %s", error
            )

    # --- what others see -------------------------------------------------------------------------
    def paging(self, session: Session, timeout: float) -> Waits[dict[TopicPartition, int]]:
        """Returns the pages of the assigned partitions at another attachment (for `Attachment`)."""
        pages = {}
        for topic in {topic for topic, _ in self._assigned}:
            pages[topic] = (yield from session.finding_topic(topic, timeout)).pages
        for topic, number in self._assigned:
            if number >= len(pages[topic]):
                raise er.UnknownTopicError(
                    f"{topic}-{number} is not there any more: topic {topic!r} was made again with "
                    f"{len(pages[topic])} partitions while the node was away; assign() those"
                )
        return {(topic, number): pages[topic][number] for topic, number in self._assigned}

    def moved(self, session: Session, pages: dict[TopicPartition, int]) -> None:
        """Moves the same partitions to these pages of a node that came back (for `Attachment`)."""
        for name, partition in self._assigned.items():
            partition.moved(session, pages[name])
        self._counts["reconnects"] += 1
        self._published.all()

    def _named(self, pairs: Collection[TopicPartition]) -> list[AssignedPartition]:
        return [self._of(*check_pair(pair)) for pair in pairs or tuple(self._assigned)]

    def _of(self, topic: str, partition: int) -> AssignedPartition:
        try:
            return self._assigned[topic, partition]
        except KeyError:
            raise er.ConfigError(f"{topic}-{partition} is not assigned to this consumer") from None

    # --- life ------------------------------------------------------------------------------------
    def metrics(self) -> dict[str, int]:
        """Counters since the consumer was made."""
        return dict(self._counts)

    def _described(self) -> str:
        if self._closed:
            return "closed"
        where = [f"{one} at {self._handout.offset_of(one)}" for one in [*self._assigned.values()]]
        return shortened(where) or "of nothing yet: assign() partitions"

    def close(self) -> None:
        """Gives the attachment back. Batches already brought stay readable."""
        if self.is_left:
            return
        self._closed = True
        for partition in self._assigned.values():
            partition.close()
        self._assigned.clear()
        self._handout.end()
        self._attachment.give_up()
        self._session.close(polite=not self._forked)
        fork_safety.forget(self)
        self.is_left = True

    def after_fork_in_child(self) -> None:
        """Closes the child's copy: it does not share its parent's position and makes its own (rule
        7)."""
        self._forked = True
        self._handout.abandon()  # the rest of a running loop is the parent's
        if not self._closed:
            self._session.close(polite=False)
            self._closed = self.is_left = True

    def _check_usable(self) -> None:
        if self._forked:
            raise er.ForkedClientError(
                "this consumer was made before fork(); make a new one in the child process"
            )
        if self._closed:
            raise er.ClosedError("this consumer is closed")


def _decoded(gather: Any, decoders: Decoders, max_records: int | None) -> RecordBatch[Any, Any]:
    """Returns what is there now, to be decoded by these."""
    batch: RecordBatch[Any, Any] = gather(max_records)
    for chunk in batch.chunks:
        chunk.decoders = decoders
    return batch
