"""The two sparse indexes of a segment: offset -> position, and time -> offset.

    .index  ┌──────────────────────┬──────────────────────┐   one entry per `index_interval_bytes`
            │ base offset      u64 │ position         u64 │   of log (16 KiB): for the first batch
            └──────────────────────┴──────────────────────┘   that starts so far behind the last
    .time   ┌──────────────────────┬──────────────────────┐   indexed one; the segment's start is
            │ running max ts   i64 │ base offset      u64 │   an entry that is not written
            └──────────────────────┴──────────────────────┘

Entry i of both files speaks of the same batch. The running max is over all batches of the segment
up to and including that one, so it never falls. Entries are little-endian, 16 bytes each, without a
header. The log has all the facts of these files, and lost ones are rebuilt byte for byte.

Both may lag behind the log (entries are written 64 at a time): a reader scans on from the last.
Owns the bytes of the two files and pure look-ups in them, for readers in other processes too.
Never reads the log and never decides when a segment begins.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Final

from penstock.core.storage import WRITE_ANY, WRITE_EMPTY, Buffer, Storage, write_all

OFFSET_ENTRY: Final = struct.Struct("<QQ")
TIME_ENTRY: Final = struct.Struct("<qQ")
ENTRY_BYTES: Final = 16
FLUSH_ENTRIES: Final = 64
TIME_MIN: Final = -(1 << 63)
assert OFFSET_ENTRY.size == TIME_ENTRY.size == ENTRY_BYTES


def lookup_offset(index: Buffer, base_offset: int, target: int) -> tuple[int, int]:
    """(batch base offset, position) of the last indexed batch that starts at or below `target`;
    the start of the segment if there is none. Scan on from there."""
    count = len(index) // ENTRY_BYTES
    with memoryview(index)[: count * ENTRY_BYTES] as entries, entries.cast("Q") as words:
        after = bisect_right(range(count), target, key=lambda i: words[2 * i])
        if not after:
            return base_offset, 0
        return words[2 * after - 2], words[2 * after - 1]


def lookup_time(times: Buffer, base_offset: int, timestamp: int) -> int:
    """Returns the offset at which a scan for the first batch with max timestamp >= `timestamp`
    starts.

    The scan starts at the entry before the first one that reaches `timestamp`: the running max up
    to that earlier entry is still below it.
    """
    count = len(times) // ENTRY_BYTES
    with memoryview(times)[: count * ENTRY_BYTES] as entries, entries.cast("q") as words:
        reached = bisect_left(range(count), timestamp, key=lambda i: words[2 * i])
        return words[2 * reached - 1] if reached else base_offset


def stem_path(folder: str, base_offset: int) -> str:
    """Returns the common start of the names of all files of a segment."""
    return f"{folder}/{base_offset:020d}"


def index_paths(folder: str, base_offset: int) -> tuple[str, str]:
    """The paths of a segment's .index and .time."""
    stem = stem_path(folder, base_offset)
    return stem + ".index", stem + ".time"


def trusted_entries(index: bytes, times: bytes, base_offset: int, limit: int) -> int:
    """Returns how many leading entries of both files are plausible and start below position
    `limit`.

    These files are not synced with the log: a power cut leaves them short or with zeroed pages. So
    entries must rise, agree with each other and stay inside the segment.
    """
    count = min(len(index), len(times)) // ENTRY_BYTES
    last_offset, last_position, last_time = base_offset, 0, TIME_MIN
    for i in range(count):
        offset, position = OFFSET_ENTRY.unpack_from(index, i * ENTRY_BYTES)
        time, same = TIME_ENTRY.unpack_from(times, i * ENTRY_BYTES)
        if not (last_offset < offset == same and last_position < position < limit):
            return i
        if time < last_time:
            return i
        last_offset, last_position, last_time = offset, position, time
    return count


class IndexWriter:
    """Appends to both files of one segment. Holds no descriptor: entries gather in memory and are
    written by open, write, close, so that thousands of partitions cost one descriptor each."""

    __slots__ = (
        "_folder", "_index", "_interval", "_last_position", "_storage", "_times", "base_offset",
        "entries", "max_timestamp", "synced_entries",
    )  # fmt: skip

    def __init__(self, storage: Storage, folder: str, base_offset: int, interval: int) -> None:
        self._storage = storage
        self._folder = folder
        self._interval = interval
        self.base_offset = base_offset
        self.max_timestamp = TIME_MIN
        self.entries = 0  # written to the files
        self.synced_entries = 0  # known to be on the device
        self._last_position = 0
        self._index = bytearray()  # not written yet
        self._times = bytearray()

    @property
    def pending(self) -> int:
        """Entries that are not in the files yet."""
        return len(self._index) // ENTRY_BYTES

    def note(self, base_offset: int, position: int, max_timestamp: int) -> bool:
        """Take notice of every batch of the segment, in order, once it is in the log; whether that
        made an entry."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        if position - self._last_position < self._interval:
            return False
        self._index += OFFSET_ENTRY.pack(base_offset, position)
        self._times += TIME_ENTRY.pack(self.max_timestamp, base_offset)
        self._last_position = position
        return True

    def create(self) -> None:
        """Make both files, empty. A file that is missing later was therefore deleted."""
        for path in index_paths(self._folder, self.base_offset):
            self._storage.close(self._storage.open(path, WRITE_EMPTY))

    def flush(self) -> None:
        """Write what is pending. When it raises, the same entries are written again next time."""
        if not self._index:
            return
        at = self.entries * ENTRY_BYTES
        paths = index_paths(self._folder, self.base_offset)
        for path, data in zip(paths, (self._index, self._times), strict=True):
            fd = self._storage.open(path, WRITE_ANY)
            try:
                write_all(self._storage, fd, [data], at)
            finally:
                self._storage.close(fd)
        self.entries += self.pending
        self._index = bytearray()
        self._times = bytearray()

    def contents(self) -> tuple[bytes, bytes]:
        """Returns the pending bytes of both files. They are all there is, if nothing was ever
        flushed."""
        return bytes(self._index), bytes(self._times)

    def resume(self, limit: int) -> tuple[int, int]:
        """Takes over the entries of the files for batches below position `limit`. Returns the (base
        offset, position) of the last such batch: note it and all behind it again."""
        paths = index_paths(self._folder, self.base_offset)
        index, times = (self._storage.read_file(path) or b"" for path in paths)
        count = trusted_entries(index, times, self.base_offset, limit)
        return self._keep(index, times, count)

    def restart(self) -> tuple[int, int]:
        """Distrust the files: everything has to be noted again, from the start of the segment."""
        return self._keep(b"", b"", 0)

    def _keep(self, index: bytes, times: bytes, count: int) -> tuple[int, int]:
        kept = count * ENTRY_BYTES
        # Kept entries are among the pending ones until `settle` has compared them to the files.
        self._index = bytearray(index[:kept])
        self._times = bytearray(times[:kept])
        self.entries = 0
        self._last_position = 0
        self.max_timestamp = TIME_MIN
        if not count:
            return self.base_offset, 0
        offset, self._last_position = OFFSET_ENTRY.unpack_from(index, kept - ENTRY_BYTES)
        self.max_timestamp, _ = TIME_ENTRY.unpack_from(times, kept - ENTRY_BYTES)
        return offset, self._last_position

    def settle(self, *, durable: bool) -> None:
        """After `resume` and the notes of a scan: bring the files to exactly these entries.

        Files that say too much are replaced and not shortened: a reader may have them mapped.
        `durable` where no later sync takes these files along.
        """
        paths = index_paths(self._folder, self.base_offset)
        wanted = (bytes(self._index), bytes(self._times))
        for path, data in zip(paths, wanted, strict=True):
            if self._storage.read_file(path) != data:
                self._storage.write_file(path, data, durable=durable)
        self.entries = self.pending
        self._index = bytearray()
        self._times = bytearray()
