"""Reading a log from another process: map segment files, walk batches up to a published limit.

A `LogReader` follows one partition folder. It is told how far it may read (the high watermark, and
how many bytes of the active segment are valid) and never asks anybody. Segments may be sealed,
rolled or unlinked under it. A mapping stays valid, and after a missing name the reader lists the
segments again (rule 11). Otherwise it lists them only where it knows of no next segment: a folder
has three names for each segment.

Owns positions in files. Knows nothing of state pages, waiting or columns; never writes.
"""

from __future__ import annotations

import math
import time
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
from penstock.core.segment import find_batch, list_segments, open_for_reading, read_index
from penstock.core.storage import Storage, Window, cut_off

WINDOW_BYTES: Final = 16 << 20
POPULATE_BYTES: Final = 1 << 20
"""Brought into memory by one call at most: this thread holds the interpreter meanwhile."""
PAGE_BYTES: Final = 4096
RECENT: Final = 10.0
"""Seconds for which what is appended is taken to be in memory."""
BATCHES_MAX: Final = 1 << 20
WINDOWS_MAX: Final = 16
"""Windows of a segment that looks keep: its records here and there are mapped already."""
INDEX_BYTES_MAX: Final = 1 << 20
"""An index that is longer is read for each look."""
INDEX_STEP: Final = 1 << 20
"""Bytes by which the log grows until the index of its last segment is read again."""
_UNPLACED: Final = 1 << 62
_NO_MAGIC: Final = bytes(4)
_NOT_ALONE: Final = hd.ATTR_CONTROL | hd.ATTR_TRANSACTIONAL


class Limit(NamedTuple):
    """The readable part of a log: offsets below `offset`, and `valid_bytes` of segment `base`.
    Nothing below `start` is readable, even if it is still in the files."""

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
        self._bases: list[int] = []  # as listed last: later ones may be there, and some be gone
        self._base: int | None = None
        self._until: int | None = None  # where the next segment begins, once that is asked
        self._retried: int | None = None  # the offset for which the segments were looked at again
        self._fd = -1
        self._at = 0
        self._window: Window | None = None
        self._view = memoryview(b"")
        self._view_start = 0
        self._populated = 0  # up to here in the file, this call of `fetch` may touch the window
        self._ahead = 0  # bytes that this call is expected to touch
        self._looks = False  # the segment stays open from one look to the next
        self._windows: list[tuple[int, Window]] = []  # of it, the one used last is first
        self._index: tuple[bytes, float] | None = None  # of it, and how far that went then
        self._marked_at = -math.inf  # when `_mark` was the end of the log: (segment, valid bytes)
        self._mark = (0, 0)

    def seek(self, offset: int) -> None:
        """Go on at `offset` with the next `fetch`."""
        self.offset = offset
        self._looks = False
        self._close_segment()

    def look(self, offset: int) -> None:
        """As `seek`, for single batches here and there: the segment stays open with its index, and
        mapped where it was, and the next `fetch` finds out whether it holds `offset`."""
        self.offset = offset
        self._looks = True
        self._at = _UNPLACED

    def let_go_below(self, start: int) -> None:
        """Closes a segment that may have been deleted: the log begins with `start`."""
        if self._looks and self._base is not None and self._base < start:
            after = bisect_right(self._bases, self._base)
            if after == len(self._bases) or self._bases[after] <= start:
                self._close_segment()

    def fetch(
        self, limit: Limit, bytes_max: int, batches_max: int = BATCHES_MAX, *, every: bool = False
    ) -> list[Found]:
        """Returns batches from `offset` on, each wholly below the limit, until `bytes_max` are
        gathered. Returns at least one batch, if there is one. The first may begin below `offset`.
        `every` includes those that have nothing for readers, for a copy of the log.

        Raises `OffsetOutOfRangeError` below the log start, and `CorruptBatchError` for bytes below
        the limit that are no batch. It raises both only where no good batch precedes them.
        """
        if self.offset < limit.start:
            raise OffsetOutOfRangeError(
                f"offset {self.offset} is not in the log in {self._folder} any more: it starts at "
                f"{limit.start}"
            )
        found: list[Found] = []
        size = 0
        self._populated, self._ahead = 0, bytes_max
        now = time.monotonic()
        if now - self._marked_at > RECENT:
            self._marked_at, self._mark = now, (limit.base, limit.valid_bytes)
        try:
            if self._at == _UNPLACED:
                self._place(limit)
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
        """Returns the next batch, where it holds only the record at `offset`, in the open and
        mapped segment. This is the short way for a record that a reader waits for. After None call
        `fetch`. Raises `CorruptBatchError` and leaves the cursor where it was."""
        at, view = self._at, self._view
        position = at - self._view_start
        end = min(valid_bytes, self._view_start + len(view))
        if self.offset != offset or self._base != base or at + hd.HEADER_BYTES > end:
            return None
        if time.monotonic() - self._marked_at > RECENT or (base, at) < self._mark:
            return None
        if self._storage.size(self._fd) < end:
            return None  # the file was cut
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
        """Returns the batch at the cursor; None at the end of the segment's valid bytes.

        A closed segment (`end` None) ends where the next one begins. A failed append may have left
        bytes behind that in its file.
        """
        if end is not None and self._at >= end:
            return None
        if end is None and self._until is None:
            self._until = self._following()
        until = self._until if end is None else None
        if until is not None and self.offset >= until:
            return None
        if not self._cover(hd.HEADER_BYTES, end):
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
        if not self._cover(head.length, end):
            raise CorruptBatchError(
                f"batch at byte {self._at} of segment {self._base} in {self._folder} is cut off"
            )
        return Found(head, self._view, self._at - self._view_start)

    def _is_gap_allowed(self, head: hd.BatchHeader) -> bool:
        """Compaction leaves gaps within a segment. Before one, only retention does."""
        assert self._base is not None
        return bool(head.flags & hd.FLAG_COMPACTED) and self.offset >= self._base

    def _cover(self, length: int, end: int | None) -> bool:
        """Makes the window hold `length` bytes from the cursor, in memory; False if the file ends
        before. Raises `StorageError` where memory must not hold them, or where the device fails.

        Each `fetch` checks again: a file may be cut while it is mapped. Appends of the last seconds
        are in memory, so for them only the file's size is checked.
        """
        needed = self._at + length
        if needed <= self._populated:
            return True
        if needed > self._view_start + len(self._view) and not self._map(needed, end):
            return False
        stop = self._view_start + len(self._view)
        if self._base is not None and (self._base, self._at) >= self._mark:
            size = self._storage.size(self._fd)
            if needed <= size:
                self._populated = min(stop, size)
                return True
        first = max(self._at, self._populated)
        if end is not None:
            stop = min(stop, max(end, needed))
        stop = min(stop, max(needed, self._at + min(self._ahead, POPULATE_BYTES)))
        try:
            self._populate(first, stop)
        except StorageError:
            if stop == needed:
                raise
            stop = needed  # the bytes before the lost ones are good
            self._populate(first, stop)
        self._ahead -= stop - self._at
        self._populated = stop
        return True

    def _populate(self, start: int, end: int) -> None:
        """Have these bytes of the file in memory."""
        assert self._window is not None
        at = self._view_start
        self._storage.populate(self._fd, self._window, start - at, end - at)

    def _map(self, needed: int, end: int | None) -> bool:
        """Map a window that holds the file from the cursor to byte `needed`."""
        for at, kept in self._windows:
            if at <= self._at and needed <= at + len(kept):
                self._show(at, kept)
                return True
        size = self._storage.size(self._fd)
        if needed > size:
            if end is not None and size < end:
                raise cut_off(self._storage.path_of(self._fd), size, end)
            return False
        start = self._at & -PAGE_BYTES
        if self._looks and needed <= (self._at & -WINDOW_BYTES) + WINDOW_BYTES:
            start = self._at & -WINDOW_BYTES  # others may be before it
        stop = min(size, max(start + WINDOW_BYTES, needed))
        # The old map goes when the last column that views it goes.
        self._show(start, self._storage.map_readonly(self._fd, stop - start, start))
        return True

    def _show(self, start: int, window: Window) -> None:
        """Views this one."""
        if self._looks:
            others = [(at, kept) for at, kept in self._windows if at != start]
            self._windows = [(start, window), *others[: WINDOWS_MAX - 1]]
        self._window, self._view, self._view_start = window, memoryview(window), start

    def _open_at(self, offset: int, limit: Limit) -> bool:
        """Opens the segment that holds `offset` and moves the cursor to its batch."""
        for tries in range(4):  # a segment may go between the listing and the opening
            after = bisect_right(self._bases, offset)
            if tries or not 0 < after < len(self._bases):
                self._bases = list_segments(self._storage, self._folder)
                after = bisect_right(self._bases, offset)
            if not self._bases:
                return False
            base = self._bases[max(after - 1, 0)]
            try:
                fd = open_for_reading(self._storage, self._folder, base)
            except StorageError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            end = limit.valid_bytes if base == limit.base else None
            self._base, self._fd = base, fd
            try:
                self._at, _ = self._found_at(base, fd, offset, end)
            except BaseException:
                self._close_segment()
                raise
            return True
        return False

    def _place(self, limit: Limit) -> None:
        """Moves the cursor to the batch of `offset` in the segment that is open still; closes that
        if another one has it."""
        offset, base = self.offset, self._base
        if base is not None:
            after = bisect_right(self._bases, offset)
            knows_next = 0 < after < len(self._bases)
            if base == (self._bases[after - 1] if knows_next else limit.base) <= offset:
                end = limit.valid_bytes if base == limit.base else None
                # A torn call must not leave another place's window for this one.
                self._window, self._view, self._view_start = None, memoryview(b""), 0
                self._at, _ = self._found_at(base, self._fd, offset, end)
                return
        self._close_segment()

    def _found_at(self, base: int, fd: int, offset: int, end: int | None) -> tuple[int, int]:
        """As `find_batch`; looks do not read the index each time."""
        if not self._looks:
            return find_batch(self._storage, self._folder, base, fd, offset, end)
        upto = math.inf if end is None else end
        if self._index is None or upto - self._index[1] > INDEX_STEP:
            self._index = read_index(self._storage, self._folder, base), upto
        index, _ = self._index
        if len(index) > INDEX_BYTES_MAX:
            self._index = None
        return find_batch(self._storage, self._folder, base, fd, offset, end, index)

    def _advance(self, limit: Limit) -> bool:
        """Go on to the segment after this one; False if it is not there (yet)."""
        following = self._following()
        if following is not None and following != self.offset:
            self._bases.clear()
            following = self._following()
        if following is None or following > limit.offset:
            return False
        if following != self.offset and self._retried != self.offset:
            # Compaction has put one segment in the place of this one and those behind it.
            return self._open_again(limit)
        try:
            fd = open_for_reading(self._storage, self._folder, following)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return self._retried != self.offset and self._open_again(limit)
            raise
        self._close_segment()
        self._base, self._fd, self._at = following, fd, 0
        return True

    def _open_again(self, limit: Limit) -> bool:
        """Look once at the segments that there are now for the one that holds the cursor."""
        self._retried = self.offset
        self._bases.clear()
        self._close_segment()
        return self._open_at(self.offset, limit)

    def _following(self) -> int | None:
        """Returns the base offset of the segment after this one, None if there is none (yet).

        Since the listing it may have gone, or the log may differ from there on. A reader that does
        not find the cursor's offset there lists the segments again.
        """
        assert self._base is not None
        after = bisect_right(self._bases, self._base)
        if after == len(self._bases):
            self._bases = list_segments(self._storage, self._folder)
            after = bisect_right(self._bases, self._base)
        return self._bases[after] if after < len(self._bases) else None

    def _close_segment(self) -> None:
        fd, self._fd = self._fd, -1  # first: no interrupt has it closed twice
        if fd >= 0:
            self._storage.close(fd)
        self._base = None
        self._until = None
        self._windows = []
        self._index = None
        self._window = None
        self._view = memoryview(b"")
        self._view_start = 0
        self._populated = 0
        self._at = 0

    def close(self) -> None:
        self._close_segment()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def divergence(storage: Storage, folder: str, offset: int, epoch: int, log_end: int) -> int | None:
    """Returns the offset where a reader parted from this log; None while it has not (rule 15). The
    reader is at `offset`, and read in leader epoch `epoch`."""
    cache = load_epochs(storage, folder)
    if cache is None:
        return None
    end = cache.end_offset(epoch, log_end)
    return end[1] if end is not None and end[1] < offset else None


def below_start(name: object, offset: int, log_start: int) -> OffsetOutOfRangeError:
    """Returns the error for a reader of the partition `name` that retention has overtaken."""
    return OffsetOutOfRangeError(
        f"{name}: offset {offset} is gone, the log starts at {log_start}; seek() to a place that "
        "exists, or choose on_out_of_range"
    )


def parted(name: object, offset: int, epoch: int, divergence: int) -> LogTruncatedError:
    """Returns the error for a reader whose log has parted from this one at `divergence`."""
    return LogTruncatedError(
        f"{name}: this consumer is at offset {offset}, read in leader epoch {epoch}, but that "
        f"epoch's log ends at {divergence}: the host lost unsynced records. seek() to that offset "
        "to read what replaced them",
        divergence=divergence,
    )
