"""Cuts the end of a log off without ever shrinking a file that a reader may have mapped.

Zeros overwrite the cut bytes, front to back, and an fsync follows: after a crash in between a
recovery cuts at the same place. Segments behind the cut are removed, the last one first, so that
the log has no hole at any moment. Owns the tools of the cut, and the making of segments. Never
decides where to cut.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.errors import CorruptBatchError, StorageError, UnsupportedVersionError
from penstock.core.header import BATCH_ALIGN, HEADER_BYTES, MAGIC, checked
from penstock.core.index import IndexWriter
from penstock.core.segment import OpenSegment, remove_segment, segment_path
from penstock.core.storage import WRITE_NEW, Storage

CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(CHUNK_BYTES)


class Tail(NamedTuple):
    """The bytes behind the end of the log in a segment's file."""

    end: int
    """Behind its last byte that is not zero; where the log ends if all are zero."""
    next_offset: int
    """The highest offset that a batch header in there speaks of, + 1; 0 if there is none."""


def examine_tail(storage: Storage, fd: int, position: int, owner: tuple[bytes, int]) -> Tail:
    """Read from `position` to the end of the file."""
    end, next_offset, size = position, 0, storage.size(fd)
    while position < size:
        chunk = storage.pread(fd, min(CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        if chunk != _ZEROS[: len(chunk)]:
            end = position + len(chunk.rstrip(b"\0"))
            at = chunk.find(MAGIC)
            while at >= 0:
                if (position + at) % BATCH_ALIGN == 0:
                    raw = storage.pread(fd, HEADER_BYTES, position + at)
                    next_offset = max(next_offset, _next_offset(raw, owner))
                at = chunk.find(MAGIC, at + 1)
        position += len(chunk)
    return Tail(end, next_offset)


def _next_offset(raw: bytes, owner: tuple[bytes, int]) -> int:
    try:
        head = checked(raw)
    except (CorruptBatchError, UnsupportedVersionError):
        return 0
    return head.next_offset if (head.topic_id, head.partition) == owner else 0


def remove_segments(storage: Storage, folder: str, bases: list[int]) -> None:
    """Remove these segments, the last one first, on the device as well."""
    for base in reversed(bases):
        remove_segment(storage, folder, base)
    if bases:
        storage.fsync_folder(folder)


def create_segment(
    storage: Storage, folder: str, base_offset: int, index_interval: int
) -> OpenSegment:
    """Makes a new empty segment. The caller still has to fsync the folder, also if this raises.
    Otherwise a file that was made and removed might come back behind a log that went on without it.

    A file of that name holds no batch of this log, since the log ends here. A roll or a recovery
    that was killed left it.
    """
    path = segment_path(folder, base_offset)
    if storage.exists(path):
        storage.unlink(path)
    fd = storage.open(path, WRITE_NEW)
    try:
        index = IndexWriter(storage, folder, base_offset, index_interval)
        index.create()
    except StorageError:
        storage.close(fd)
        remove_segment(storage, folder, base_offset)
        raise
    return OpenSegment(base_offset, fd, index)
