"""The room of a partition on disk, and the first and last time of its records."""

from __future__ import annotations

import os

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.header import FLAG_APPEND_TIME, BatchHeader
from penstock.core.lookup import header_at
from penstock.core.segment import LOG_SUFFIX, batch_time
from penstock.core.storage import Storage


class OnDisk(msgspec.Struct):
    """A partition's folder. `disk_bytes` is the size of all its files on disk, with the room they
    grew ahead. Times are those of records, in microseconds since the epoch, None where there is no
    record."""

    segments: int
    disk_bytes: int
    earliest: int | None
    latest: int | None


def look(folder: str, log_start: int, log_end: int) -> OnDisk:
    """Reads the folder as it is now; files that go away meanwhile count nothing."""
    segments = size = 0
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        names = []
    for name in names:
        try:
            size += os.stat(f"{folder}/{name}").st_blocks * 512
        except FileNotFoundError:
            continue
        segments += name.endswith(LOG_SUFFIX)
    first = _header(folder, log_start) if log_start < log_end else None
    last = _header(folder, log_end - 1) if log_start < log_end else None
    return OnDisk(
        segments,
        size,
        None if first is None else _begin(first),
        None if last is None else batch_time(last),
    )


def _header(folder: str, offset: int) -> BatchHeader | None:
    try:
        return header_at(Storage(), folder, offset)
    except (PenstockError, OSError):
        return None


def _begin(head: BatchHeader) -> int:
    return head.append_timestamp if head.flags & FLAG_APPEND_TIME else head.base_timestamp
