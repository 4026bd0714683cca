"""Reading a log again to rebuild what is derived from it: indexes, producer state, epochs.

Everything here lies below the recovery point or was just verified, so headers are enough; where
they do not hold, the log is damaged and goes offline. Owns no file and changes none but indexes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from penstock.core.epochs import EpochCache
from penstock.core.errors import LogOfflineError
from penstock.core.header import BatchHeader
from penstock.core.index import IndexWriter, index_paths
from penstock.core.producers import ProducerTable
from penstock.core.segment import (
    Scan,
    Stop,
    batch_time,
    find_batch,
    open_for_reading,
    segment_path,
)
from penstock.core.snapshots import load_snapshot
from penstock.core.storage import Storage


def damaged(path: str, scan: Scan, wanted: str) -> LogOfflineError:
    """What to say when the log does not hold what it must."""
    detail = f" ({scan.detail})" if scan.detail else ""
    return LogOfflineError(
        f"{path} is damaged: at byte {scan.position}, where offset {scan.offset} should begin, "
        f"stands {scan.stop.value}{detail}, but the log is known to reach {wanted}. The file is "
        "kept as it is. Restore the partition from a replica or a backup."
    )


def headers_between(
    storage: Storage, folder: str, bases: list[int], start: int, until: int
) -> Iterator[BatchHeader]:
    """All batch headers from the batch at offset `start` to offset `until`."""
    for i, base in enumerate(bases):
        following = bases[i + 1] if i + 1 < len(bases) else until
        if following <= start or base >= until:
            continue
        fd = open_for_reading(storage, folder, base)
        try:
            position, offset = find_batch(storage, folder, base, fd, max(base, start))
            end = min(following, until)
            scan = Scan(storage, fd, position=position, offset=offset, until=end)
            for _, head in scan:
                yield head
            if scan.stop is not Stop.LIMIT:
                raise damaged(segment_path(folder, base), scan, f"offset {end}")
        finally:
            storage.close(fd)


def rebuild_producers(
    storage: Storage, folder: str, bases: list[int], until: int, batches_kept: int
) -> ProducerTable:
    """The producer state below offset `until`: the newest good snapshot, and the log above it."""
    found = load_snapshot(storage, folder, until, batches_kept)
    table, start = found if found is not None else (ProducerTable(batches_kept), bases[0])
    for head in headers_between(storage, folder, bases, max(start, bases[0]), until):
        table.replay(head)
    return table


def rebuild_epochs(storage: Storage, folder: str, bases: list[int]) -> EpochCache:
    """The epochs that batches were written in, if the file is lost. Epochs never fall within a
    log, so a segment is only walked if the one behind it begins in another epoch."""
    first: list[BatchHeader | None] = []
    for base in bases:
        fd = open_for_reading(storage, folder, base)
        try:
            first.append(next((h for _, h in Scan(storage, fd, position=0, offset=base)), None))
        finally:
            storage.close(fd)
    cache = EpochCache()
    for i, base in enumerate(bases):
        head = first[i]
        following = first[i + 1] if i + 1 < len(bases) else None
        if head is None:
            continue
        cache.assign(head.leader_epoch, head.base_offset)
        if following is not None and following.leader_epoch == head.leader_epoch:
            continue
        fd = open_for_reading(storage, folder, base)
        try:
            for _, other in Scan(storage, fd, position=0, offset=base):
                cache.assign(other.leader_epoch, other.base_offset)
        finally:
            storage.close(fd)
    return cache


def restore_index(
    storage: Storage,
    folder: str,
    base: int,
    fd: int,
    interval: int,
    *,
    position: int | None,
    until: int,
) -> IndexWriter:
    """The index of a segment for all batches below offset `until`, which stands at `position`
    (None: wherever). What the files say is taken over as far as it is plausible and its last
    entry proves true; the rest comes from the log."""
    index = IndexWriter(storage, folder, base, interval)
    limit = storage.size(fd) if position is None else position
    for attempt in (index.resume(limit), None):
        offset, at = attempt or index.restart()
        scan = Scan(storage, fd, position=at, offset=offset, until=until)
        for found, head in scan:
            index.note(head.base_offset, found, batch_time(head))
        if scan.offset == until and position in (None, scan.position):
            return index
        if not at:
            raise damaged(segment_path(folder, base), scan, f"offset {until} at byte {position}")
    raise AssertionError("unreachable: the second attempt starts at byte 0")


def restore_missing_indexes(
    storage: Storage, folder: str, bases: list[int], below: int, interval: int
) -> int:
    """Write the indexes of segments below segment `below` that have lost a file; how many."""
    names = set(storage.listdir(folder))
    restored = 0
    for base, following in pairwise(bases):
        paths = index_paths(folder, base)
        if base >= below or all(path.rpartition("/")[2] in names for path in paths):
            continue
        fd = open_for_reading(storage, folder, base)
        try:
            index = restore_index(
                storage, folder, base, fd, interval, position=None, until=following
            )
        finally:
            storage.close(fd)
        index.settle(durable=True)
        restored += 1
    return restored
