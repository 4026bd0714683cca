"""Segment files: their names, the walk over their batches, and the one that is written to.

A segment is named by the offset of its first batch. Batches follow each other from byte 0, and
zeros fill the rest of the file, which is longer than its data by preallocation. A segment ends
where the next one begins: nothing in its file from that offset on is read.

Owns names and scans. Never judges what a bad batch means (`recovery` does), never shrinks a file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from penstock.core.aborted import txn_path
from penstock.core.errors import CorruptBatchError, StorageError, UnsupportedVersionError
from penstock.core.header import (
    FLAG_APPEND_TIME,
    FLAG_COMPACTED,
    HEADER_BYTES,
    BatchHeader,
    body_is_good,
    checked,
)
from penstock.core.index import IndexWriter, index_paths, lookup_offset
from penstock.core.storage import READ, Storage

LOG_SUFFIX: Final = ".log"
READ_BODIES: Final = 2 << 20
READ_HEADERS: Final = 16 << 10
ALLOCATE_FIRST: Final = 64 << 10
_NAME: Final = re.compile(r"(\d{20})\.log")
_INDEX_NAME: Final = re.compile(r"(\d{20})\.(?:index|time|txn)")
_NO_HEADER: Final = bytes(HEADER_BYTES)


def segment_name(base_offset: int) -> str:
    """The file name of the segment that begins at `base_offset`."""
    return f"{base_offset:020d}{LOG_SUFFIX}"


def segment_path(folder: str, base_offset: int) -> str:
    return f"{folder}/{segment_name(base_offset)}"


def list_segments(storage: Storage, folder: str) -> list[int]:
    """The base offsets of a folder's segments, rising."""
    found = [name for name in storage.listdir(folder) if name.endswith(LOG_SUFFIX)]
    matches = map(_NAME.fullmatch, found)
    return sorted(int(match[1]) for match in matches if match)


def segment_files(folder: str, base_offset: int) -> tuple[str, ...]:
    """Returns the paths of a segment's log, its indexes and its `.txn` file."""
    log, txn = segment_path(folder, base_offset), txn_path(folder, base_offset)
    return log, *index_paths(folder, base_offset), txn


def remove_segment(storage: Storage, folder: str, base_offset: int) -> None:
    """Remove a segment and its indexes. Readers that have them mapped keep what they map."""
    for path in segment_files(folder, base_offset):
        storage.unlink(path)


def remove_orphans(storage: Storage, folder: str) -> bool:
    """Remove indexes whose segment is gone (it goes first); whether there were any."""
    names = storage.listdir(folder)
    stems = {name.removesuffix(LOG_SUFFIX) for name in names if _NAME.fullmatch(name)}
    found = (_INDEX_NAME.fullmatch(name) for name in names)
    orphans = [match[0] for match in found if match and match[1] not in stems]
    for name in orphans:
        storage.unlink(f"{folder}/{name}")
    return bool(orphans)


def batch_time(head: BatchHeader) -> int:
    """The newest time in a batch, as time indexes and look-ups by time see it."""
    return head.append_timestamp if head.flags & FLAG_APPEND_TIME else head.max_timestamp


class Stop(Enum):
    """Why a scan ended."""

    END = "the end of the file"
    LIMIT = "the limit it was given"
    ZERO = "zeros, where no batch was written"
    BAD = "bytes that are no good batch"
    TORN = "a batch that the file ends within"
    GAP = "a batch that does not continue the log"
    FOREIGN = "a batch of another partition"
    VERSION = "a batch of a version that this build does not read"


class Scan:
    """The walk over a segment's batches in a file. Iterate once, then ask where and why it ended.

    A batch continues the log on two conditions. Its base offset is exactly the expected one, and
    its (leader epoch, generation) is not below that of the batch before (rule 14). A compacted
    batch may have a higher offset. `gaps`: the first one as well, wherever the scan begins.
    """

    def __init__(
        self,
        storage: Storage,
        fd: int,
        *,
        position: int,
        offset: int,
        order: tuple[int, int] = (0, 0),
        owner: tuple[bytes, int] | None = None,
        end: int | None = None,
        until: int | None = None,
        bodies: bool = False,
        gaps: bool = False,
    ) -> None:
        self._storage = storage
        self._fd = fd
        self._end = storage.size(fd) if end is None else end
        self._until = until
        self._owner = owner
        self._bodies = bodies
        self._gaps = gaps
        self._chunk = memoryview(b"")
        self._chunk_at = position
        self.position = position
        self.offset = offset
        self.order = order
        self.stop = Stop.END
        self.detail = ""
        self.batches = 0

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        while (head := self._next()) is not None:
            at = self.position
            self.position = at + head.length
            self.offset = head.next_offset
            self.order = (head.leader_epoch, head.generation)
            self.batches += 1
            yield at, head

    def body(self, position: int, head: BatchHeader) -> memoryview:
        """Returns the whole bytes of the batch that the scan yielded last."""
        at = self._hold(position, head.length)
        return self._chunk[at : at + head.length]

    def _hold(self, position: int, length: int) -> int:
        """Have these bytes in the chunk; the index at which they begin there."""
        at = position - self._chunk_at
        if at < 0 or at + length > len(self._chunk):
            want = max(length, READ_BODIES if self._bodies else READ_HEADERS)
            want = min(want, max(0, self._end - position))
            self._chunk = memoryview(self._storage.pread(self._fd, want, position))
            self._chunk_at, at = position, 0
        return at

    def _next(self) -> BatchHeader | None:
        """The next batch, or None with `stop` and `detail` set."""
        position = self.position
        if self._until is not None and self.offset >= self._until:
            return self._stopped(Stop.LIMIT)
        if position + HEADER_BYTES > self._end:
            return self._stopped(Stop.END)
        at = self._hold(position, HEADER_BYTES)
        if at + HEADER_BYTES > len(self._chunk):
            return self._stopped(Stop.END)
        try:
            head = checked(self._chunk, at)
        except UnsupportedVersionError as error:
            return self._stopped(Stop.VERSION, str(error))
        except CorruptBatchError:
            blank = self._chunk[at : at + HEADER_BYTES] == _NO_HEADER
            return self._stopped(Stop.ZERO if blank else Stop.BAD, "header")
        if position + head.length > self._end:
            return self._stopped(Stop.TORN, f"{head.length} bytes")
        if self._owner is not None and (head.topic_id, head.partition) != self._owner:
            return self._stopped(Stop.FOREIGN, f"{head.topic_id.hex()}-{head.partition}")
        if head.base_offset != self.offset:
            if not self._may_skip_to(head):
                return self._stopped(Stop.GAP, f"offset {head.base_offset}, not {self.offset}")
            if self._until is not None and head.base_offset >= self._until:
                self.offset = self._until
                return self._stopped(Stop.LIMIT)
        if (head.leader_epoch, head.generation) < self.order:
            return self._stopped(
                Stop.GAP, f"epoch {head.leader_epoch}/{head.generation} after {self.order}"
            )
        if self._bodies:
            at = self._hold(position, head.length)
            if at + head.length > len(self._chunk):
                return self._stopped(Stop.TORN, f"{head.length} bytes")
            if not body_is_good(self._chunk, at, head):
                return self._stopped(Stop.BAD, "body")
        return head

    def _may_skip_to(self, head: BatchHeader) -> bool:
        """Returns whether compaction explains the gap before a batch. It does not for the first
        batch of a scan that begins within a segment. An index of the old segment may have named
        another place. A recovery point never does. A follower's log continues behind it with the
        rest of the leader's compaction."""
        from_start = self.position == 0 or self.batches > 0 or self._gaps
        return from_start and head.base_offset > self.offset and bool(head.flags & FLAG_COMPACTED)

    def _stopped(self, stop: Stop, detail: str = "") -> BatchHeader | None:
        self.stop = stop
        self.detail = detail
        return None


def read_index(storage: Storage, folder: str, base_offset: int) -> bytes:
    """The index by offset of a segment; empty where there is none."""
    return storage.read_file(index_paths(folder, base_offset)[0]) or b""


def find_batch(
    storage: Storage,
    folder: str,
    base_offset: int,
    fd: int,
    offset: int,
    end: int | None = None,
    index: bytes | None = None,
) -> tuple[int, int]:
    """Returns the (position, base offset) of the batch of this segment that holds `offset`. If
    compaction left none, returns the first one above, or the place behind the last batch if all are
    below. `index`: where it was read before.

    The index only says where to begin. The log confirms it, and if it turns out wrong the segment
    is read from its start.
    """
    if index is None:
        index = read_index(storage, folder, base_offset)
    for start, position in (lookup_offset(index, base_offset, offset), (base_offset, 0)):
        if not position:
            start = base_offset
        scan = Scan(storage, fd, position=position, offset=start, end=end)
        for at, head in scan:
            if head.next_offset > offset:
                return at, head.base_offset
        if scan.batches or not position:
            return scan.position, scan.offset
    raise AssertionError("unreachable: the second try starts at position 0")


def last_batch(
    storage: Storage, folder: str, base_offset: int, fd: int, until: int, end: int | None = None
) -> tuple[int, BatchHeader] | None:
    """(position, header) of the last batch below offset `until`; None if there is none. Costs one
    interval of the index."""
    index = read_index(storage, folder, base_offset)
    for start, position in (lookup_offset(index, base_offset, until), (base_offset, 0)):
        scan = Scan(storage, fd, position=position, offset=start, until=until, end=end)
        last = deque(scan, maxlen=1)
        if last:
            return last[0]
    return None


class OpenSegment:
    """A segment that is written to, or that waits for its last sync: the one descriptor of a log.

    `valid <= allocated`, `synced <= valid`; bytes in [valid, allocated) are zero; up to `begun` the
    kernel was asked to write them to the device.
    """

    __slots__ = (
        "allocated", "base_offset", "begun", "fd", "first_append", "index", "synced", "valid",
    )  # fmt: skip

    def __init__(self, base_offset: int, fd: int, index: IndexWriter) -> None:
        self.base_offset = base_offset
        self.fd = fd
        self.index = index
        self.valid = 0
        self.synced = 0
        self.begun = 0
        self.allocated = 0
        self.first_append: int | None = None  # append time of the first batch, for the age

    def reserve(self, storage: Storage, wanted: int, step_max: int) -> None:
        """Grow the file ahead of a write that ends at byte `wanted`. Where a whole step finds no
        room the write itself may: it says so if not."""
        step = min(step_max, max(ALLOCATE_FIRST, self.allocated))
        target = max(wanted, self.allocated + step)
        try:
            storage.allocate(self.fd, self.allocated, target - self.allocated)
        except StorageError as error:
            if not error.retriable:
                raise
            return
        self.allocated = target


def open_for_reading(storage: Storage, folder: str, base_offset: int) -> int:
    return storage.open(segment_path(folder, base_offset), READ)
