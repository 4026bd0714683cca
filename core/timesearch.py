"""Finds a time in a log: the first record at or after it, in the order of offsets.

    segment   its time index says from which batch on one may be as late
    batch     the newest time of its header says whether to look into it
    record    its own time decides; times may go back and forth

Control batches have no records. A reader of committed records does not get aborted ones. A body
that cannot be read is the answer itself: its reader meets it there, and reports the error.

Owns the search, in steps of bounded work: one decoded batch, or some headers. Never waits and knows
no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.core.committed import AbortedTransactions
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.core.index import index_paths, lookup_time
from penstock.core.logstart import first_live
from penstock.core.reader import Found, Limit, LogReader
from penstock.core.recordtimes import first_at_or_after
from penstock.core.segment import batch_time, list_segments
from penstock.core.storage import Storage

STEP_BYTES: Final = 256 << 10
"""Of the log, that one step reads: at least a batch."""


class Step(NamedTuple):
    """How far a search is: the answer, or the offset from which on it goes on."""

    offset: int
    is_found: bool


def searching(
    storage: Storage, folder: str, timestamp: int, limit: Limit, *, committed: bool = False
) -> Iterator[Step]:
    """Search for the first offset from the limit's start to below its end whose record has a time
    >= `timestamp` (microseconds). Ends with it, or without one if there is none. `committed`: the
    limit is the last stable offset, and aborted records do not count."""
    bases = list_segments(storage, folder)
    aborted = AbortedTransactions(storage, folder) if committed else None
    reader = LogReader(storage, folder)
    try:
        live = bases[first_live(bases, limit.start) :]
        for base, end in pairwise((*live, limit.offset)):
            times = storage.read_file(index_paths(folder, base)[1]) or b""
            reader.seek(max(lookup_time(times, base, timestamp), limit.start, reader.offset))
            before = -1
            while before < reader.offset < min(end, limit.offset):
                before = reader.offset
                for batch in reader.fetch(limit, STEP_BYTES):
                    if batch_time(batch.head) >= timestamp and not _is_aborted(
                        aborted, batch, limit
                    ):
                        found = _look_into(batch, timestamp, limit.start)
                        if found is not None:
                            yield Step(found, is_found=True)
                            return
                        yield Step(batch.head.next_offset, is_found=False)
                yield Step(reader.offset, is_found=False)
    finally:
        reader.close()


def _is_aborted(aborted: AbortedTransactions | None, batch: Found, limit: Limit) -> bool:
    return (
        aborted is not None
        and bool(batch.head.attributes & ATTR_TRANSACTIONAL)
        and aborted.has(batch.head, limit.offset)
    )


def _look_into(batch: Found, timestamp: int, start: int) -> int | None:
    head, view, position = batch
    try:
        return first_at_or_after(view, position, head, timestamp, start)
    except (CorruptBatchError, UnsupportedVersionError):
        return max(head.base_offset, start)
