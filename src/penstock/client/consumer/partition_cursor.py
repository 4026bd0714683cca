"""One partition as a consumer reads it: its page, its cursor, what is decoded but not handed out.

Owns positions and their validity: retention below, truncation across leader epochs, deletion. Never
waits and never asks the node.
"""

from __future__ import annotations

from typing import Final, Literal

from penstock.client.consumer.latest import LatestOnly, newest_of_keys, newest_of_partition
from penstock.client.consumer.logs import LogHandle, NodeLogs
from penstock.client.consumer.offset_lookup import resolving
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.records import Chunk
from penstock.client.consumer.source import Source
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.core.columns import decode
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.core.reader import Limit, below_start, parted
from penstock.ipc import layout as lo
from penstock.ipc.state import StatePage
from penstock.ipc.waits import Waits

TopicPartition = tuple[str, int]
Isolation = Literal["read-uncommitted", "read-committed", "read_uncommitted", "read_committed"]

FETCH_BYTES: Final = 256 << 10
"""Bytes that are decoded at once: about one batch. Its bytes are then still in the processor's
cache when their records are made (measured: 1 MiB cost a third more)."""
EPOCH_UNKNOWN: Final = -1


class AssignedPartition:
    """One assigned partition and the consumer's position in it. `offset` is the next offset that
    the consumer will hand out.

    Under `read_committed` it ends at the last stable offset and leaves out what was aborted.
    """

    __slots__ = ("_carry", "_committed", "_end_at", "_identity", "_latest", "_reader", "_words",
                 "aborted", "fetched", "leader_epoch", "name", "offset", "page", "paused", "place",
                 "skipped", "topic_id")  # fmt: skip

    page: StatePage

    def __init__(
        self, name: TopicPartition, topic_id: bytes, page: StatePage, source: Source,
        latest: LatestOnly | None = None, isolation: Isolation = "read_uncommitted",
    ) -> None:  # fmt: skip
        self.name = name
        self.topic_id = topic_id
        self._reader = source
        self.offset = 0
        self.leader_epoch = EPOCH_UNKNOWN  # of what was read before `offset`
        self._identity = lo.PAGE_IDENTITY.pack(lo.PAGE_MAGIC, lo.LAYOUT_VERSION, topic_id, name[1])
        self._carry: list[Chunk] = []
        self._latest = latest
        self._committed = isolation == "read_committed"
        self._look_at(page)
        self.paused = False
        self.aborted = 0  # records left out, because their transaction was aborted
        self.fetched = 0  # bytes decoded by the last fetch
        self.skipped = 0  # records left out, because a newer one was there
        self.place = 0  # among the positions that its consumer publishes

    def __str__(self) -> str:
        return f"{self.name[0]}-{self.name[1]}"

    def _look_at(self, page: StatePage) -> None:
        """Reads this page from now on."""
        self.page = page
        self._words, _, high_watermark, last_stable = page.words()
        self._end_at = last_stable if self._committed else high_watermark

    @property
    def end(self) -> int:
        """Returns its end for this reader: the high watermark, or the last stable offset."""
        return int(self._words[self._end_at])

    @property
    def has_more(self) -> bool:
        """Returns whether `take` has something to bring, or to raise."""
        return self._words[self._end_at] > self.offset or bool(self._carry) or self.is_gone

    @property
    def is_gone(self) -> bool:
        """Returns whether its topic was deleted."""
        return self.page.is_gone(self._identity)

    @property
    def held(self) -> int:
        """Bytes that are decoded and not handed out."""
        return sum(chunk.size for chunk in self._carry) if self._carry else 0

    def pause(self) -> None:
        """Drops all it holds: what was fetched ahead and the open file."""
        self.paused = True
        self._carry = []
        self._reader.seek(self.offset)

    def forget(self) -> None:
        """Forgets a fetch that an interrupt may have torn. The caller calls `jump` next."""
        self._carry = []

    @property
    def is_ahead(self) -> bool:
        """Returns whether more was fetched than was handed out."""
        return self._reader.offset != self.offset

    def limit(self) -> Limit:
        """Returns how far this partition may be read now: the offset first, then the bytes it
        needs."""
        end = self.end
        base, valid_bytes = self.page.segment()
        return Limit(end, base, valid_bytes, self.page.log_start)

    @property
    def is_awaited(self) -> bool:
        """Returns whether records are known to be on the way, while none is here: never on this
        host."""
        return False

    def allow(self, credit: int) -> None:
        """Sets how many bytes it fetches ahead. On this host it fetches none."""

    def jump(self, offset: int, leader_epoch: int = EPOCH_UNKNOWN) -> None:
        """Goes on at `offset`, which follows a record of that epoch, and forgets what was fetched
        ahead."""
        self._carry = []
        self.offset = offset
        self.leader_epoch = leader_epoch
        self._reader.seek(offset)

    def look(self, offset: int, bytes_max: int | None = None) -> None:
        """As `jump`, for single batches here and there: what is open of the log stays open.
        `bytes_max`: how much is wanted from there on; None: all that follows."""
        self._carry = []
        self.offset = offset
        self.leader_epoch = EPOCH_UNKNOWN
        self._reader.look(offset, bytes_max)

    def let_go_of_deleted(self) -> None:
        """Closes what retention has deleted."""
        self._reader.let_go_below(self.page.log_start)

    def take(self, room: int | None, bytes_max: int = FETCH_BYTES) -> list[Chunk]:
        """Returns the next rows, at most `room` of them (None: one fetch of about `bytes_max`, at
        least a batch). Empty if there are none.

        Raises `OffsetOutOfRangeError`, `LogTruncatedError`, `CorruptBatchError`,
        `UnknownTopicError`.
        """
        if not self._carry:
            try:
                self._carry = self._bring(bytes_max)
            except BaseException:
                self._reader.seek(self.offset)  # what was fetched and not decoded comes again
                raise
            self.fetched = self.held
        if room is None:
            taken, self._carry = self._carry, []
        else:
            taken = []
            while room > 0 and self._carry:
                chunk = self._carry.pop(0)
                if len(chunk) > room:
                    self._carry.insert(0, chunk.cut(chunk.start + room, chunk.stop))
                    chunk = chunk.cut(chunk.start, chunk.start + room)
                taken.append(chunk)
                room -= len(chunk)
        if taken:
            self.offset = taken[-1].next_offset
            self.leader_epoch = taken[-1].leader_epoch
        elif self._reader.offset > self.offset:
            self.offset = self._reader.offset  # only batches without records stood there
        return taken

    def take_alone(self) -> Chunk | None:
        """Returns the one record that came since the last one. It runs as little code as possible,
        because none of it is in the caches then (decision 0017). None where there is not exactly
        one; `take` finds out."""
        offset = self.offset
        if self._words[self._end_at] != offset + 1 or self._carry or self._latest is not None:
            return None
        seen = self.page.glance(self._identity)
        if seen is None:
            return None
        start, epoch, base, valid_bytes = seen
        if start > offset or epoch != self.leader_epoch:
            return None
        try:
            found = self._reader.alone(offset, base, valid_bytes)
            if found is None:
                return None
            head, view, position = found
            columns = decode(view, position, head)
        except er.PenstockError:
            self._reader.seek(offset)
            return None
        self.offset = offset + 1
        self.leader_epoch = head.leader_epoch
        topic, partition = self.name
        return Chunk(topic, partition, columns, 0, 1)

    def _bring(self, bytes_max: int) -> list[Chunk]:
        """Returns the next rows, or only the newest of all that are there."""
        if self._latest is None:
            return self._fetch(bytes_max)
        self._check_page()
        reader, end = self._reader, self.end

        def fetch() -> list[Chunk]:
            before = reader.offset
            try:
                return self._fetch(FETCH_BYTES)
            except er.PenstockError:
                if before == self.offset:
                    raise
                reader.seek(before)  # what is good goes out first; the next poll raises it
                return []

        if self._latest == "key":
            newest = newest_of_keys(fetch, lambda: reader.offset >= end, bytes_max)
            chunks = newest.chunks()
            self.skipped += newest.seen - sum(map(len, chunks))
            return chunks
        last = newest_of_partition(
            fetch, reader.seek, lambda: reader.offset >= end, self.offset, end
        )
        if last is None:
            return []
        self.skipped += last.row_offset(last.start) - self.offset
        return [last]

    def _fetch(self, bytes_max: int) -> list[Chunk]:
        """Returns the next chunks; none where the end is reached."""
        aborted, at = self.aborted, self._reader.offset
        while not (chunks := self._fetch_once(bytes_max)):
            if aborted == self.aborted or at == self._reader.offset:
                break  # it did not end where all of it was left out
            aborted, at = self.aborted, self._reader.offset
        return chunks

    def _fetch_once(self, bytes_max: int) -> list[Chunk]:
        page = self.page
        self._check_page()
        limit = self.limit()
        try:
            found = self._reader.fetch(limit, bytes_max)
        except er.OffsetOutOfRangeError:
            if self.offset >= page.log_start:
                raise
            found = []  # said below, with what to do
        except er.CorruptBatchError as error:
            # Rule 11: what looks broken may be a segment that retention took away meanwhile.
            if self.offset >= page.log_start:
                raise self._damaged(error, "penstock log verify shows what lies behind") from error
            found = []
        if self.offset < page.log_start:
            raise below_start(self, self.offset, page.log_start)
        chunks: list[Chunk] = []
        size = 0
        try:
            for head, view, position in found:
                if size >= bytes_max:  # by what compressed batches expand to
                    self._reader.seek(max(head.base_offset, self.offset))
                    break
                if (
                    head.attributes & ATTR_TRANSACTIONAL
                    and self._committed
                    and self._reader.leaves_out(head, limit.offset)
                ):
                    self.aborted += head.record_count
                    continue
                size += max(head.length, head.raw_body_length)
                columns = decode(view, position, head)
                start = columns.first_at(self.offset) if head.base_offset < self.offset else 0
                if start < columns.count:
                    chunks.append(Chunk(*self.name, columns, start))
        except er.PenstockError as error:
            if chunks:
                self._reader.seek(chunks[-1].next_offset)  # what is good goes out first
            elif isinstance(error, er.CorruptBatchError):
                behind = f"the next batch begins at offset {head.next_offset}"
                raise self._damaged(error, behind) from error
            else:
                raise
        return chunks

    def _damaged(self, error: er.CorruptBatchError, behind: str) -> er.CorruptBatchError:
        return er.CorruptBatchError(
            f"{self}: damaged at offset {self.offset} or behind: {error}. seek() past it to leave "
            f"it out: {behind}"
        )

    @property
    def is_suspect(self) -> bool:
        """Returns whether the log began another leader epoch since the last read; `check` finds out
        more."""
        return self.leader_epoch not in (EPOCH_UNKNOWN, self.page.leader_epoch)

    def check(self) -> None:
        """Raises `LogTruncatedError` where the log parted from what was read, also while it has
        not grown past that again, and `UnknownTopicError`."""
        self._check_page()

    def _deleted(self) -> er.UnknownTopicError:
        return er.UnknownTopicError(f"topic {self.name[0]!r} was deleted")

    def _check_page(self) -> None:
        page = self.page
        if page.is_gone(self._identity):
            raise self._deleted()
        if self.leader_epoch in (EPOCH_UNKNOWN, page.leader_epoch):
            return
        divergence = self._reader.parted(self.offset, self.leader_epoch, page.log_end)
        if divergence is not None:
            raise parted(self, self.offset, self.leader_epoch, divergence)
        if page.leader_epoch < self.leader_epoch:
            return  # a leader of before, which does not know yet: what was read is newer than it
        self.leader_epoch = page.leader_epoch
        self._reader.forget_aborted()

    def resolving(self, to: Offset, logs: NodeLogs) -> Waits[int]:
        """Returns the offset that a place means now. Raises `OffsetOutOfRangeError` for an exact
        offset outside the log."""
        log = LogHandle(self.page, self.topic_id, self.name[1])
        return resolving(to, str(self), logs, log, self.offset, committed=self._committed)

    def moved(self, session: Session, page: int) -> None:
        """Moves to that page of a node that came back."""
        self._look_at(session.page(page))

    def close(self) -> None:
        self._reader.close()
