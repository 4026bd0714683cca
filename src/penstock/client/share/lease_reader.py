"""Brings the records of leases from the logs, and tells where the logs have more.

A cursor rests at the group's frontier in its partition: nobody has had the records from there on.
To read a lease it goes to the lease's offsets, unless it is there. It goes back once the
coordinator has answered and no lease of it is to be read. Offsets where a reader of committed
records finds none (markers, aborted, compacted or deleted records) are answered as done.

In a group with an order or turns it reads on from the frontier, tells keys and tenants of what it
finds, and keeps that for the leases that come (`look_ahead`).

Owns the cursors' places. Never waits and never asks: it looks again for records that are missing.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.partition_cursor import (
    FETCH_BYTES,
    AssignedPartition,
    TopicPartition,
)
from penstock.client.consumer.records import Chunk, Record
from penstock.client.share.claims import SentClaims, WaitingClaims, WaitingJob
from penstock.client.share.jobs import Job, said
from penstock.client.share.kept_batches import KeptBatches
from penstock.client.share.leases import (
    DELAYED,
    EXPIRED,
    FAILED,
    LOST,
    RELEASED,
    OpenLease,
    OpenLeases,
    UnreadSpan,
    merged,
    runs_of,
)
from penstock.client.share.look_ahead import LookAhead
from penstock.cluster.shares.runs import Run, Runs, count, without
from penstock.core import errors as er
from penstock.ipc.sharing import TOLD_MAX, PartitionEnds

logger = logging.getLogger("penstock.consumer")

ENDS_PER_REQUEST: Final = 250
"""Partitions whose ends one request tells; the next one tells the others."""
KEPT_PARTS: Final = 4
"""Batches of which single records came are kept, so many times what is read ahead."""
STRIDE_MAX: Final = 1000
"""Records that are leased at once to find one among those that are not due."""
READ_PATIENCE: Final = 5.0
"""Seconds for which leased records that do not come are waited for."""


class ReadSpan(NamedTuple):
    """Rows of a leased span, and up to which offset that is all of it."""

    span: UnreadSpan
    chunks: list[Chunk]
    at: int


class LeaseReader:
    """Reader of leased records. `bytes_max`: bound of the bytes read ahead of the worker. `claims`:
    jobs that are handed out once the coordinator knows of their dedup ids; `claims_ids`: whether
    any are."""

    def __init__(
        self,
        reader: GroupReader,
        leases: OpenLeases,
        counts: dict[str, int],
        bytes_max: int,
        ahead: LookAhead,
        claims_ids: bool,
    ) -> None:
        self._reader = reader
        self._leases = leases
        self._ahead = ahead
        self._counts = counts
        counts.update(
            skipped=0, expired=0, ttl_expired=0, unreadable=0, deleted=0, records=0, bytes=0,
            overdue=0, duplicates=0,
        )  # fmt: skip
        self._bytes_max = bytes_max
        self._frontiers: dict[TopicPartition, int] = {}
        self._turn = 0
        self._bytes_each = 0.0
        self._stride = 0
        """Where nothing was due: records to look through at once, more than are wanted. 0: none."""
        self.has_given_back = False
        """Whether the coordinator is to hear of it soon."""
        self._looked_through = (0, 0)
        """Records that were due and that were not, when more were asked for last."""
        self._kept = KeptBatches(KEPT_PARTS * bytes_max)
        self._torn: set[AssignedPartition] = set()
        """Fetches that an interrupt may have torn: what their cursors say counts for nothing,
        or records that were lost by it would be taken for offsets that hold none."""
        self.queue: deque[Job[Any, Any]] = deque()
        """Read, and not handed out."""
        self.claims = WaitingClaims()
        self._claims_ids = claims_ids

    # --- where there is work ---
    def is_gone(self) -> bool:
        """Whether a topic was deleted whose partitions it reads."""
        return any(part.is_gone for part in self._reader.partitions.values())

    def has_work(self) -> bool:
        """Whether a partition has records that nobody has had, as far as is known."""
        frontiers, ahead = self._frontiers, self._ahead
        return any(
            name not in frontiers
            or (ahead.untold(name) > 0 if ahead.is_on else part.end > frontiers[name])
            for name, part in self._reader.partitions.items()
        )

    def has_news(self) -> bool:
        """The same, or whether leased records may be here by now. Cursors on another host are
        opened by being looked at."""
        came = [part for part in self._reader.partitions.values() if part.has_more]
        if any(self._ahead.is_at(part.name, part.offset) for part in came):
            return True
        return (bool(came) and bool(self._leases.unread)) or self.has_work()

    def ends(self) -> tuple[list[TopicPartition], list[PartitionEnds]]:
        """Of partitions that have more, or of which nothing is known."""
        names: list[TopicPartition] = []
        ends: list[PartitionEnds] = []
        for name, part in self._reader.partitions.items():
            if len(ends) == ENDS_PER_REQUEST:
                break
            frontier, end, start = self._frontiers.get(name), part.end, part.page.log_start
            self._kept.forget(name, below=start)
            part.let_go_of_deleted()
            if frontier is None or (end > frontier and not self._ahead.is_on):
                names.append(name)
                ends.append(PartitionEnds(part.topic_id, name[1], start, max(start, end)))
        if self._ahead.is_on and not names:
            self._tell(names, ends)
        return names, ends

    def _tell(self, names: list[TopicPartition], ends: list[PartitionEnds]) -> None:
        """Adds partitions of which hashes are known that nobody told; another one is first each
        time."""
        partitions = [*self._reader.partitions.items()]
        self._turn += 1
        at = self._turn % max(len(partitions), 1)
        left = self._ahead.told_max
        for name, part in partitions[at:] + partitions[:at]:
            if left <= 0 or len(ends) == TOLD_MAX:
                break
            if (untold := self._ahead.untold(name)) > 0:
                told = self._ahead.told(name, left)
                start = part.page.log_start
                names.append(name)
                ends.append(
                    PartitionEnds(part.topic_id, name[1], start, max(start, part.end), *told)
                )
                left -= untold

    def look_ahead(self) -> None:
        """Reads what is here of partitions where too little is known of what nobody has had."""
        if not self._ahead.is_on:
            return
        unread = {held.name for held in self._leases if held.unread}
        for name, part in [*self._reader.partitions.items()]:
            if name in self._frontiers and name not in unread:
                self._ahead.led(name, part.page.leader_epoch)
                self._read_on(part, self._ahead.expects(name, self._frontiers[name]))

    def _read_on(self, part: AssignedPartition, at: int) -> None:
        while self._ahead.wants(part.name) and part.end > at:
            if part in self._torn:
                part.forget()
                part.jump(at)
            elif part.offset != at:
                part.jump(at)
            self._torn.add(part)
            try:
                chunks, upto = part.take(None), part.offset
            except er.PenstockError as error:
                if (upto := self._past(part, at, error)) > at:
                    self._ahead.passed(part.name, upto)
            else:
                if upto > at:
                    self._ahead.came(part.name, chunks, upto)
            self._torn.discard(part)
            if upto <= at:
                return
            at = upto

    def _past(self, part: AssignedPartition, at: int, error: er.PenstockError) -> int:
        """Returns where to go on. A record that cannot be read has no key: who is given it says
        why."""
        if isinstance(error, er.UnknownTopicError):
            self.lose(part, error)
        elif isinstance(error, er.LogTruncatedError):
            part.jump(at)  # without its epoch: it takes the records that are there now
        elif isinstance(error, er.OffsetOutOfRangeError):
            return max(at, part.page.log_start)
        elif not error.retriable:
            return at + 1
        return at

    def told(self, names: Sequence[TopicPartition], frontiers: Sequence[int]) -> None:
        """The coordinator says where what nobody has had begins."""
        self._frontiers.update(zip(names, frontiers, strict=True))
        unread = {held.name for held in self._leases if held.unread}
        for name in self._frontiers.keys() - unread:
            self._rest(name)

    def forget(self) -> None:
        """Another node, or another member: all of it is asked again."""
        self._frontiers.clear()
        self._ahead.forget()
        self.queue.clear()
        self.claims.jobs = []

    def room(self, wanted: int) -> int:
        """Of so many records those that fit into `bytes_max`, by what records took so far."""
        if self._bytes_each <= 0:
            return wanted
        return max(1, min(wanted, int(self._bytes_max / self._bytes_each)))

    def look_through(self, lacking: int) -> int:
        """How many records to ask for where so many lack: more while none of them is due."""
        due, delayed = self._counts["records"], self._counts["delayed"]
        is_in_vain = due == self._looked_through[0] and delayed > self._looked_through[1]
        self._looked_through = due, delayed
        self._stride = min(2 * max(self._stride, lacking), STRIDE_MAX) if is_in_vain else 0
        return max(lacking, self._stride)

    def give_back_old(self, now: float) -> None:
        """Gives back jobs at hand that others may have by now."""
        while self.queue and self.queue[0].is_over(now):
            self._counts["overdue"] += 1
            self.queue[0].release()
            self.queue.popleft()
        while (waiting := self.claims.jobs) and waiting[0].job.is_over(now):
            self._counts["overdue"] += 1
            waiting[0].job.release()
            self.claims.jobs = waiting[1:]
        for held in self._leases:
            if held.unread and held.ends_at <= now:
                self._give_back(held)

    # --- reading ---
    @property
    def at_hand(self) -> int:
        """Jobs that are read, and not handed out."""
        return len(self.queue) + len(self.claims)

    def read(self, wanted: int, now: float) -> None:
        """Fills the queue up to so many leased records, as far as they are here.

        A partition has one cursor: it stays where it waits for records, though another lease lies
        elsewhere.
        """
        size = 0
        awaited: set[TopicPartition] = set()
        for held in self._leases:
            if self.at_hand >= wanted or size >= self._bytes_max:
                break
            if not held.unread or held.name in awaited:
                continue
            part = self._reader.partitions.get(held.name)
            if part is None:
                self._is_stuck(held, now)  # it is new, and not open here yet
                continue
            while held.unread and self.at_hand < wanted and size < self._bytes_max:
                taken = self._step(part, held, max(wanted - self.at_hand, self._stride))
                if taken is None:
                    awaited.add(held.name)
                    self._is_stuck(held, now)
                    break
                held.stuck_since = None
                size += taken
        if self._stride and len(self.queue) > wanted > 0:
            self._give_back_rest(wanted)

    def _give_back_rest(self, wanted: int) -> None:
        """Gives back to others the records that were only looked through."""
        self._stride, self.has_given_back = 0, True
        while len(self.queue) > wanted:
            self.queue[-1].release()
            self.queue.pop()
        for held in self._leases:
            self._give_back(held)

    def _is_stuck(self, held: OpenLease, now: float) -> None:
        """Nothing of it is here: it is given back if that goes on."""
        if held.stuck_since is None:
            held.stuck_since = now
        elif now - held.stuck_since >= READ_PATIENCE:
            logger.warning(
                "%s-%d: records %d to %d do not come; they are given back",
                *held.name, held.unread[0].first, held.unread[-1].end,
            )  # fmt: skip
            self._give_back(held)

    def _give_back(self, held: OpenLease) -> None:
        unread, held.unread = held.unread, ()
        for span in unread:
            self._leases.answer(held, RELEASED, span.first, span.end)

    def _step(self, part: AssignedPartition, held: OpenLease, wanted: int) -> int | None:
        """Reads on in a lease; how many bytes came, None where nothing is here yet."""
        span = held.unread[0]
        self._ahead.led(held.name, part.page.leader_epoch)
        found = self._ahead.take(held.name, span.first, span.end, wanted)
        if found is not None:
            return self._took(held, [ReadSpan(span, *found)])
        if kept := self._kept_ones(part, held, wanted):
            return self._took(held, kept)
        if part in self._torn:
            part.forget()
            part.jump(span.first)
        elif part.offset != span.first:
            part.look(span.first, self._wanted_bytes(held, span))
        self._torn.add(part)
        try:
            chunks = part.take(min(wanted, span.end - span.first), self._fetch_bytes(held, span))
        except er.PenstockError as error:
            size = self._failed(part, held, error)
        else:
            at = min(part.offset, span.end)
            chunks = [cut for chunk in chunks if (cut := _below(chunk, span.end))]
            if self._is_again(held, span):
                self._kept.keep(part, chunks)
            read = ReadSpan(span, chunks, at)
            size = self._took(held, [read]) if at > span.first else None
        self._torn.discard(part)
        return size

    def _kept_ones(self, part: AssignedPartition, held: OpenLease, wanted: int) -> list[ReadSpan]:
        """The first spans of a lease, as far as their batches are kept."""
        found: list[ReadSpan] = []
        for span in held.unread:
            if wanted <= 0:
                break
            kept = self._kept.find(part, span.first, span.end, wanted)
            if kept is None:
                break
            at = min(kept.next_offset, span.end)
            found.append(ReadSpan(span, [kept], at))
            if at < span.end:
                break
            wanted -= len(kept)
        return found

    def _took(self, held: OpenLease, read: Sequence[ReadSpan]) -> int:
        """These were read of the first spans, of all but the last one wholly. How many bytes."""
        jobs: list[Job[Any, Any]] = []
        empty: list[Run] = []
        waiting = self.claims.jobs.copy()
        size, has_priorities = 0, False
        for span, chunks, at in read:
            for chunk in chunks:
                chunk.decoders = self._reader.decoders
                records, work = chunk.records(), chunk.columns.work
                if work is not None:
                    if self._claims_ids and work.dedup_ids:
                        records = self._claiming(held, records, span.deliveries, waiting)
                    records = self._due(held, records)
                    has_priorities = has_priorities or work.priorities is not None
                jobs += [Job(one, span.deliveries, held, self._leases) for one in records]
                empty += _holes(chunk)
                size += chunk.values.nbytes
            if len(chunks) != 1 or _span(chunks[0]) != (span.first, at):
                empty += without(((span.first, at),), merged(map(_span, chunks)))
        if empty:
            gone = merged(empty)
            self._leases.skip(held, gone)
            self._counts["skipped"] += count(gone)
        self._learn(len(jobs) + len(waiting) - len(self.claims), size)
        rest = held.unread[len(read) :]
        if at < span.end:
            rest = (span._replace(first=at), *rest)
        queue = self.queue.copy()
        queue.extend(jobs)
        if has_priorities:
            queue = deque(sorted(queue, key=_urgency))
        # In one go, for a Ctrl-C: what was read is in the queue, or is read again.
        held.unread, self.queue, self.claims.jobs = rest, queue, waiting
        return size

    def _fetch_bytes(self, held: OpenLease, span: UnreadSpan) -> int:
        """Returns how many bytes to decode at once."""
        wanted = self._wanted_bytes(held, span)
        return FETCH_BYTES if wanted is None else min(FETCH_BYTES, wanted)

    def _wanted_bytes(self, held: OpenLease, span: UnreadSpan) -> int | None:
        """Returns about how many bytes are wanted from there on. None: all that follows."""
        if not self._is_again(held, span):
            return None
        return 1 + int(self._bytes_each * (span.end - span.first))

    def _is_again(self, held: OpenLease, span: UnreadSpan) -> bool:
        """Returns whether these are leased again, or waited: others have, or had, those behind."""
        return span.end < self._frontiers.get(held.name, 0)

    def _claiming(
        self,
        held: OpenLease,
        records: Sequence[Record[Any, Any]],
        deliveries: int,
        waiting: list[WaitingJob],
    ) -> list[Record[Any, Any]]:
        """Has those with dedup ids wait, unless they have expired; returns the others."""
        now_us = self._now_us(held)
        found = []
        for one in records:
            if one.dedup_id is None or (one.expires is not None and one.expires <= now_us):
                found.append(one)
            else:
                waiting.append(WaitingJob(held, Job(one, deliveries, held, self._leases)))
        return found

    def judged(self, sent: SentClaims, withheld: Sequence[Sequence[Run]]) -> None:
        """The coordinator has answered these claims."""
        judged = self.claims.judged(sent, withheld)
        for held, runs in judged.withheld:
            self._leases.let_go(held, runs)
        found = [one.job for one in judged.first if self._due(one.held, [one.job.record])]
        queue = self.queue.copy()
        queue.extend(found)
        if any(job.record.priority for job in found):
            queue = deque(sorted(queue, key=_urgency))
        self._counts["duplicates"] += judged.duplicates
        # In one go, for a Ctrl-C: what was judged waits no more.
        self.queue, self.claims.jobs = queue, judged.left

    def _now_us(self, held: OpenLease) -> int:
        """By the coordinator's clock."""
        return held.clock_us + time.monotonic_ns() // 1000

    def _due(self, held: OpenLease, records: Sequence[Record[Any, Any]]) -> list[Record[Any, Any]]:
        """Those that are due and have not expired. Others are answered. It goes by the clock of
        the coordinator, which ends waits: by one that is behind it they would come for nothing."""
        now_us = self._now_us(held)
        found = []
        for one in records:
            if one.expires is not None and one.expires <= now_us:
                self._leases.skip(held, [(one.offset, one.offset + 1)], EXPIRED)
                self._counts["ttl_expired"] += 1
            elif one.due is not None and one.due > now_us:
                at = one.offset
                self._leases.answer(held, DELAYED, at, at + 1, due_us=one.due)
            else:
                found.append(one)
        return found

    def _learn(self, records: int, size: int) -> None:
        if records:
            self._counts["records"] += records
            self._counts["bytes"] += size
            each = size / records
            self._bytes_each = each if not self._bytes_each else 0.8 * self._bytes_each + 0.2 * each

    def _failed(
        self, part: AssignedPartition, held: OpenLease, error: er.PenstockError
    ) -> int | None:
        """One partition cannot be read where a lease is: that is answered, and others go on."""
        span = held.unread[0]
        start = part.page.log_start
        if isinstance(error, er.UnknownTopicError):
            self.lose(part, error)
            return None
        if isinstance(error, er.LogTruncatedError):
            logger.warning("%s: %s", part, error)
            part.jump(span.first)  # without its epoch: it takes the records that are there now
            return None
        if isinstance(error, er.OffsetOutOfRangeError) and start > span.first:
            at = min(start, span.end)
            logger.warning("group lost records of %s to retention: %s", part, error)
            self._leases.skip(held, [(span.first, at)], LOST)
            self._counts["expired"] += at - span.first
            self._go_on(held, span, at)
            return 0
        if error.retriable:
            logger.info("%s: %s", part, error)
            return None
        logger.warning("%s: the record at offset %d cannot be read: %s", part, span.first, error)
        self._leases.answer(held, FAILED, span.first, span.first + 1, said(f"unreadable: {error}"))
        self._counts["unreadable"] += 1
        self._go_on(held, span, span.first + 1)
        return 0

    def _go_on(self, held: OpenLease, span: UnreadSpan, at: int) -> None:
        rest = (span._replace(first=at),) if at < span.end else ()
        held.unread = rest + held.unread[1:]

    def lose(self, part: AssignedPartition, why: object) -> None:
        """It is there no more: what is leased of it nobody needs to answer for."""
        logger.warning("%s: %s", part, why)
        self._counts["deleted"] += 1
        self._leases.forget(part.name)
        self._ahead.forget(part.name)
        self._reader.drop([part.name])
        self._frontiers.pop(part.name, None)
        self._kept.forget(part.name)

    def _rest(self, name: TopicPartition) -> None:
        """Goes where the next new record is expected."""
        part, frontier = self._reader.partitions.get(name), self._frontiers.get(name)
        if self._ahead.is_on and frontier is not None:
            frontier = self._ahead.expects(name, frontier)
        if part is not None and frontier is not None and part.offset != frontier:
            part.look(frontier)


def _below(chunk: Chunk, end: int) -> Chunk | None:
    """Its rows below an offset."""
    stop = min(chunk.stop, chunk.columns.first_at(end))
    return None if stop <= chunk.start else chunk.cut(chunk.start, stop)


def _span(chunk: Chunk) -> Run:
    return chunk.row_offset(chunk.start), chunk.row_offset(chunk.stop - 1) + 1


def _holes(chunk: Chunk) -> Runs:
    """Offsets within it that hold no record."""
    if chunk.columns.is_dense:
        return ()
    return without((_span(chunk),), runs_of(chunk.offsets.tolist()))


def _urgency(job: Job) -> int:
    """By which a queue is sorted: what is more urgent comes first."""
    return -(job.record.priority or 0)
