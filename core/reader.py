"""Reading a log from another process: map segment files, walk batches up to a published limit.

A `LogReader` follows one partition folder. It is told how far it may read (the high watermark, and
how many bytes of the active segment are valid) and never asks anybody. Segments may be sealed,
rolled or unlinked under it: what is mapped stays valid, and a name that is gone means the list of
segments is read again (rule 11).

Owns positions in files. Knows nothing of state pages, waiting or columns; never writes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from penstock.core import header as hd
from penstock.core.epochs import load_epochs
from penstock.core.errors import (
    CorruptBatchError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PenstockError,
    StorageError,
)
from penstock.core.index import index_paths, lookup_time
from penstock.core.logstart import first_live
from penstock.core.segment import batch_time, find_batch, list_segments, open_for_reading
from penstock.core.storage import Storage

WINDOW_BYTES: Final = 16 << 20
PAGE_BYTES: Final = 4096
BATCHES_MAX: Final = 1 << 20
_NO_MAGIC: Final = bytes(4)
_NOT_ALONE: Final = hd.ATTR_CONTROL | hd.ATTR_TRANSACTIONAL


class Limit(NamedTuple):
    """How far a log may be read: offsets below `offset`, `valid_bytes` of segment `base`; and from
    where on: nothing below `start`, whatever is still in the files."""

    offset: int
    base: int
    valid_bytes: int
    start: int = 0


class Found(NamedTuple):
    """A batch in place: its header, and the mapped bytes in which it begins at `position`."""

    head: hd.BatchHeader
    view: memoryview
    position: int


class LogReader:
    """A cursor over one partition folder. `offset` is the next offset it will return."""

    def __init__(self, storage: Storage, folder: str, offset: int = 0) -> None:
        self._storage = storage
        self._folder = folder
        self.offset = offset
        self._base: int | None = None
        self._until: int | None = None  # where the next segment begins, once that is asked
        self._retried: int | None = None  # the offset for which the segments were looked at again
        self._fd = -1
        self._at = 0
        self._view = memoryview(b"")
        self._view_start = 0

    def seek(self, offset: int) -> None:
        """Go on at `offset` with the next `fetch`."""
        self.offset = offset
        self._close_segment()

    def fetch(
        self, limit: Limit, bytes_max: int, batches_max: int = BATCHES_MAX, *, every: bool = False
    ) -> list[Found]:
        """Batches from `offset` on, each wholly below the limit, until `bytes_max` are gathered (at
        least one batch, if there is one). The first may begin below `offset`. `every`: also those
        that have nothing for readers, for who copies the log.

        Raises `OffsetOutOfRangeError` below the log start, and `CorruptBatchError` for bytes below
        the limit that are no batch, both only where nothing good stands before them.
        """
        if self.offset < limit.start:
            raise OffsetOutOfRangeError(
                f"offset {self.offset} is not in the log in {self._folder} any more: it starts at "
                f"{limit.start}"
            )
        found: list[Found] = []
        size = 0
        try:
            while self.offset < limit.offset and size < bytes_max and len(found) < batches_max:
                if self._base is None and not self._open_at(self.offset, limit):
                    break
                end = limit.valid_bytes if self._base == limit.base else None
                batch = self._next(end)
                if batch is None:
                    if self._base == limit.base or not self._advance(limit):
                        break
                    continue
                head = batch.head
                if head.next_offset > limit.offset:
                    break
                self._at += head.length
                if head.next_offset <= self.offset:
                    continue  # the index pointed below the wanted offset
                self.offset = head.next_offset
                if every or (head.record_count and not head.attributes & hd.ATTR_CONTROL):
                    found.append(batch)
                    size += head.length
        except PenstockError:
            if not found:
                raise  # else the next call does: it begins where this one could not go on
        return found

    def alone(self, offset: int, base: int, valid_bytes: int) -> Found | None:
        """The next batch, where it is nothing but the record at `offset`, in the segment that is
        open and mapped already: a record that somebody waits for. None: see `fetch`. Raises
        `CorruptBatchError`, with the cursor where it was."""
        at, view = self._at, self._view
        position = at - self._view_start
        end = min(valid_bytes, self._view_start + len(view))
        if self.offset != offset or self._base != base or at + hd.HEADER_BYTES > end:
            return None
        head = hd.checked_private(bytearray(view[position : position + hd.HEADER_BYTES]), position)
        if (
            head.base_offset != offset
            or head.last_offset_delta
            or not head.record_count
            or head.attributes & _NOT_ALONE
            or at + head.length > end
        ):
            return None
        self._at = at + head.length
        self.offset = offset + 1
        return tuple.__new__(Found, (head, view, position))  # `Found()` is one more call

    def _next(self, end: int | None) -> Found | None:
        """The batch at the cursor; None at the end of the segment's valid bytes.

        A segment that is closed (`end` None) ends where the next one begins, whatever stands behind
        that in its file: an append that failed may have left bytes there.
        """
        if end is not None and self._at >= end:
            return None
        if end is None and self._until is None:
            self._until = next(iter(self._following()), None)
        until = self._until if end is None else None
        if until is not None and self.offset >= until:
            return None
        if not self._cover(hd.HEADER_BYTES):
            return None
        position = self._at - self._view_start
        if end is None and self._view[position : position + 4] == _NO_MAGIC:
            return None  # the zero tail of a sealed segment
        head = hd.checked(self._view, position)
        if until is not None and head.base_offset >= until:
            if self._is_gap_allowed(head):
                self.offset = until  # nothing is left between here and the next segment
            return None
        if end is not None and self._at + head.length > end:
            raise CorruptBatchError(
                f"batch at byte {self._at} of segment {self._base} in {self._folder} runs past the "
                f"{end} bytes that are valid"
            )
        if head.base_offset > self.offset and not self._is_gap_allowed(head):
            raise CorruptBatchError(
                f"segment {self._base} in {self._folder} goes from offset {self.offset} to "
                f"{head.base_offset} at byte {self._at}"
            )
        if not self._cover(head.length):
            raise CorruptBatchError(
                f"batch at byte {self._at} of segment {self._base} in {self._folder} is cut off"
            )
        return Found(head, self._view, self._at - self._view_start)

    def _is_gap_allowed(self, head: hd.BatchHeader) -> bool:
        """Compaction leaves gaps within a segment. Before one, only retention does."""
        assert self._base is not None
        return bool(head.flags & hd.FLAG_COMPACTED) and self.offset >= self._base

    def _cover(self, length: int) -> bool:
        """Make the window hold `length` bytes from the cursor; False if the file ends before."""
        if self._at + length <= self._view_start + len(self._view):
            return True
        size = self._storage.size(self._fd)
        if self._at + length > size:
            return False
        start = self._at & -PAGE_BYTES
        stop = min(size, max(start + WINDOW_BYTES, self._at + length))
        # The old map goes when the last column that views it goes.
        self._view = memoryview(self._storage.map_readonly(self._fd, stop - start, start))
        self._view_start = start
        return True

    def _open_at(self, offset: int, limit: Limit) -> bool:
        """Open the segment that holds `offset` and stand on its batch."""
        for _ in range(3):  # a segment may go between the listing and the opening
            bases = list_segments(self._storage, self._folder)
            after = bisect_right(bases, offset)
            if not bases:
                return False
            base = bases[max(after - 1, 0)]
            try:
                fd = open_for_reading(self._storage, self._folder, base)
            except StorageError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            end = limit.valid_bytes if base == limit.base else None
            self._base, self._fd = base, fd
            try:
                self._at, _ = find_batch(self._storage, self._folder, base, fd, offset, end)
            except BaseException:
                self._close_segment()
                raise
            return True
        return False

    def _advance(self, limit: Limit) -> bool:
        """Go on to the segment after this one; False if it is not there (yet)."""
        following = self._following()
        if not following or following[0] > limit.offset:
            return False
        if following[0] != self.offset and self._retried != self.offset:
            # Compaction has put one segment in the place of this one and those behind it.
            self._retried = self.offset
            self._close_segment()
            return self._open_at(self.offset, limit)
        try:
            fd = open_for_reading(self._storage, self._folder, following[0])
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        self._close_segment()
        self._base, self._fd, self._at = following[0], fd, 0
        return True

    def _following(self) -> list[int]:
        """The segments after this one."""
        assert self._base is not None
        bases = list_segments(self._storage, self._folder)
        return bases[bisect_right(bases, self._base) :]

    def _close_segment(self) -> None:
        if self._fd >= 0:
            self._storage.close(self._fd)
        self._fd = -1
        self._base = None
        self._until = None
        self._view = memoryview(b"")
        self._view_start = 0
        self._at = 0

    def close(self) -> None:
        self._close_segment()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def offset_for_timestamp(storage: Storage, folder: str, timestamp: int, limit: Limit) -> int | None:
    """The first offset below the limit whose batch has a time >= `timestamp` (microseconds); None
    if there is none. The answer is the base offset of that batch, or the log start within it."""
    bases = list_segments(storage, folder)
    for base in bases[first_live(bases, limit.start) :]:
        times = storage.read_file(index_paths(folder, base)[1]) or b""
        start = max(lookup_time(times, base, timestamp), limit.start)
        reader = LogReader(storage, folder, start)
        try:
            while reader.offset < limit.offset:
                before = reader.offset
                for found in reader.fetch(limit, WINDOW_BYTES):
                    if batch_time(found.head) >= timestamp:
                        return max(found.head.base_offset, limit.start)
                if reader._base != base or reader.offset == before:
                    break
        finally:
            reader.close()
    return None


def divergence(storage: Storage, folder: str, offset: int, epoch: int, log_end: int) -> int | None:
    """Where a reader that stands at `offset`, having read in leader epoch `epoch`, parted from this
    log; None while it has not (rule 15)."""
    cache = load_epochs(storage, folder)
    if cache is None:
        return None
    end = cache.end_offset(epoch, log_end)
    return end[1] if end is not None and end[1] < offset else None


def below_start(name: object, offset: int, log_start: int) -> OffsetOutOfRangeError:
    """What a reader of the partition `name` is told that retention has overtaken."""
    return OffsetOutOfRangeError(
        f"{name}: offset {offset} is gone, the log starts at {log_start}; seek() to a place that "
        "exists, or choose on_out_of_range"
    )


def parted(name: object, offset: int, epoch: int, divergence: int) -> LogTruncatedError:
    """What a reader is told from whom the log has parted at `divergence`."""
    return LogTruncatedError(
        f"{name}: this consumer stands at offset {offset}, read in leader epoch {epoch}, but that "
        f"epoch's log ends at {divergence}: the host lost unsynced records. seek() to that offset "
        "to read what replaced them",
        divergence=divergence,
    )
