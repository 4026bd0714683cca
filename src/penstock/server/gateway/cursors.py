"""A partition for one remote consumer: the next batches as they are in the log.

It does the work of `penstock.client.consumer.partition_cursor` on this host, with the same errors,
up to the decoding: batches go out as bytes. Owns a position and its validity. Never waits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.cluster.frames import messages as fr
from penstock.core import errors as er
from penstock.core.committed import AbortedTransactions
from penstock.core.header import ATTR_TRANSACTIONAL, BatchHeader
from penstock.core.reader import Found, Limit, LogReader, below_start, parted
from penstock.core.storage import Buffer
from penstock.ipc import layout as lo
from penstock.ipc.state import SEGMENT_WAIT, StatePage
from penstock.server.gateway.partition_states import Known

EPOCH_UNKNOWN: Final = -1
BATCH_WORK: Final = 4096
"""The cost of a batch beside its bytes, in bytes: the check of its header."""
SHARE_MIN: Final = 64 << 10
"""A piece is made of at least so much work, if it is there."""


class FetchedPiece(NamedTuple):
    """The next batches, one after the other, of `nbytes` (payload None: only the position moves).
    `work` is their cost, in bytes."""

    start: int
    next_offset: int
    aborted: int
    payload: Buffer | None
    nbytes: int
    work: int
    leader_epoch: int


class Cursor:
    """A cursor in one partition. `offset` is the next one to send, `credit` the bytes that may be
    sent. `out_bytes` were sent and not consumed yet."""

    __slots__ = ("_aborted", "_end_at", "_epoch", "_folder", "_identity", "_known", "_log_end_at",
                 "_q", "_reader", "_stuck_since", "again_at", "allowed_at", "credit", "is_ready",
                 "name", "number", "offset", "out_bytes", "page", "partition", "topic",
                 "topic_id")  # fmt: skip

    def __init__(self, message: fr.Fetch, topic: str, page: StatePage, known: Known) -> None:
        self.number = message.cursor
        self.topic = topic
        self.topic_id = message.topic_id
        self.partition = message.partition
        self.name = f"{topic}-{message.partition}"
        self.page = page
        self.offset = message.offset
        self.credit = message.credit
        self.out_bytes = 0
        self.is_ready = False
        self.again_at = 0.0  # not before, where it found nothing though there is more
        self.allowed_at = 0.0  # when its consumer was last found to be allowed to read
        self._epoch = message.leader_epoch
        self._known = known
        self._folder = known.folder_of(message.topic_id, message.partition)
        self._reader = LogReader(known.storage, self._folder, message.offset)
        self._aborted = (
            AbortedTransactions(known.storage, self._folder) if message.committed else None
        )
        self._identity = lo.PAGE_IDENTITY.pack(
            lo.PAGE_MAGIC, lo.LAYOUT_VERSION, message.topic_id, message.partition
        )
        # Thousands of them are looked at in a row, so by the words themselves.
        self._q, self._log_end_at, high_watermark, last_stable = page.words()
        self._end_at = last_stable if message.committed else high_watermark
        self._stuck_since = 0.0

    def __str__(self) -> str:
        return self.name

    @property
    def end(self) -> int:
        """Where it ends for this reader: the high watermark, or the last stable offset."""
        return int(self._q[self._end_at])

    @property
    def words(self) -> tuple[int, int]:
        """Returns the indexes of its log's ends in the state table."""
        return self._end_at, self._log_end_at

    @property
    def log_end(self) -> int:
        return int(self._q[self._log_end_at])

    @property
    def has_more(self) -> bool:
        """Returns whether `read` has something to bring. Conditions that it raises for are in
        `is_troubled` too."""
        return int(self._q[self._end_at]) > self.offset

    @property
    def is_troubled(self) -> bool:
        """Returns whether `read` has to check more than the end. The partition was deleted, is led
        elsewhere, began another leader epoch, or lost wanted records."""
        page = self.page
        return (
            page.is_gone(self._identity)
            or self._known.membership.is_elsewhere(page, self.topic_id, self.partition)
            or self.offset < page.log_start
            or self._epoch not in (EPOCH_UNKNOWN, page.leader_epoch)
        )

    def sent(self, nbytes: int) -> None:
        self.credit -= nbytes
        self.out_bytes += nbytes

    def consumed(self, nbytes: int) -> int:
        """More credit; what of it was under way."""
        self.credit = min(self.credit + nbytes, fr.CREDIT_MAX)
        back = min(nbytes, self.out_bytes)
        self.out_bytes -= back
        return back

    def read(self, bytes_max: int, share: int, now: float) -> FetchedPiece | None:
        """The next piece of up to about `bytes_max` (at least a batch) and about as much work as
        `share`; None where there is none, or its writer is just publishing.

        Raises `OffsetOutOfRangeError`, `LogTruncatedError`, `CorruptBatchError`,
        `UnknownTopicError`, `NotLeaderError`, `StorageError`, with the position where it was.
        """
        page, reader, start = self.page, self._reader, self.offset
        leader_epoch = page.leader_epoch
        self.check()
        end = self.end
        segment = page.segment_now()
        if segment is None:
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > SEGMENT_WAIT:
                raise page.stuck()
            return None
        self._stuck_since = 0.0
        limit = Limit(end, *segment, page.log_start)
        share = max(share, SHARE_MIN)
        try:
            found = reader.fetch(limit, min(bytes_max, share), share // BATCH_WORK)
        except er.OffsetOutOfRangeError:
            found = []  # said below, with what to do
        except er.CorruptBatchError as error:
            # Rule 11: what looks broken may be a segment that retention took away meanwhile.
            if start >= page.log_start:
                reader.seek(start)
                raise er.CorruptBatchError(
                    f"{self}: damaged at offset {start} or behind: {error}. seek() past it to "
                    "leave it out: penstock log verify shows what lies behind"
                ) from error
            found = []
        except BaseException:
            reader.seek(start)
            raise
        if start < page.log_start:
            reader.seek(start)
            self.check()
        return self._piece(found, end, leader_epoch)

    def _piece(self, found: list[Found], end: int, leader_epoch: int) -> FetchedPiece | None:
        """Returns the batches that go out, in as few runs of bytes as the segments allow."""
        start, reader, left_out = self.offset, self._reader, self._aborted
        aborted = left_out_bytes = size = 0
        runs: list[memoryview] = []
        view, run_start, run_end = memoryview(b""), 0, 0
        last: BatchHeader | None = None
        for head, its_view, position in found:
            if left_out is not None and head.attributes & ATTR_TRANSACTIONAL:
                try:
                    is_aborted = left_out.has(head, end)
                except er.PenstockError:
                    reader.seek(start if last is None else last.next_offset)
                    if last is None:
                        raise
                    break  # what is good goes out first
                if is_aborted:
                    last = head
                    aborted += head.record_count
                    left_out_bytes += head.length
                    continue
            if its_view is not view or position != run_end:
                if run_end > run_start:
                    runs.append(view[run_start:run_end])
                view, run_start = its_view, position
            run_end = position + head.length
            size += head.length
            last = head
        if run_end > run_start:
            runs.append(view[run_start:run_end])
        if reader.offset == start:
            return None
        self.offset = reader.offset
        # The passed part may end with batches of no record, of this epoch: it is the log's then.
        self._epoch = leader_epoch if last is None else max(leader_epoch, last.leader_epoch)
        payload: Buffer | None = None
        if runs:
            payload = runs[0] if len(runs) == 1 else b"".join(runs)
        work = left_out_bytes + size + BATCH_WORK * len(found)
        return FetchedPiece(start, self.offset, aborted, payload, size, work, self._epoch)

    def check(self) -> None:
        """Raises `NotLeaderError`, `UnknownTopicError`, `LogTruncatedError`,
        `OffsetOutOfRangeError`, in this order, where it cannot go on."""
        page = self.page
        self._known.membership.check(page, self.topic_id, self.partition)
        if page.is_gone(self._identity):
            raise er.UnknownTopicError(f"topic {self.topic!r} was deleted")
        leader_epoch = page.leader_epoch
        if self._epoch not in (EPOCH_UNKNOWN, leader_epoch):
            self._check_epoch(leader_epoch)
        if self.offset < page.log_start:
            raise below_start(self, self.offset, page.log_start)

    def _check_epoch(self, leader_epoch: int) -> None:
        divergence = self._parted(leader_epoch)
        if divergence is not None:
            raise parted(self, self.offset, self._epoch, divergence)
        if leader_epoch < self._epoch:
            return  # this broker led before, and does not know yet: what was read is newer
        self._epoch = leader_epoch
        if self._aborted is not None:
            self._aborted.forget()

    def _parted(self, leader_epoch: int) -> int | None:
        """`core.reader.divergence` by what is known of the log's epochs (rule 15)."""
        page = self.page
        cache = self._known.epochs_of(page.index, self.topic_id, self.partition, leader_epoch)
        if cache is None:
            raise er.StorageError(
                f"{self}: its leader epochs cannot be read, so nobody knows whether the log still "
                "is what was read; the gateway's log says why",
                retriable=True,
            )
        end = cache.end_offset(self._epoch, page.log_end)
        return end[1] if end is not None and end[1] < self.offset else None

    def rest(self) -> None:
        """Hold no file open until the next `read`."""
        self._reader.seek(self.offset)

    def close(self) -> None:
        self._reader.close()
        self._aborted = None


class OpenFiles:
    """Which cursors have read last: beyond a bound the others hold no file open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Cursor, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, cursor: Cursor) -> None:
        """It is about to read."""
        self._open[cursor] = None
        self._open.move_to_end(cursor)
        while len(self._open) > self._most:
            self._open.popitem(last=False)[0].rest()

    def forget(self, cursor: Cursor) -> None:
        self._open.pop(cursor, None)

    def rest(self) -> None:
        """No descriptor is to be had: close what is open."""
        while self._open:
            self._open.popitem(last=False)[0].rest()
