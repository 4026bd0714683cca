"""Reads a log again to rebuild its indexes, producer state and epochs.

Everything here lies below the recovery point or was just verified, so headers are enough. A bad
header means that the log is damaged, and it goes offline. Owns no file and changes none but
indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

from penstock.core.aborted import (
    Aborted,
    decode_aborted,
    encode_aborted,
    is_whole,
    txn_path,
)
from penstock.core.epochs import EpochCache
from penstock.core.errors import LogOfflineError
from penstock.core.header import BatchHeader
from penstock.core.index import IndexWriter
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

logger = logging.getLogger("penstock.core.recovery")


def damaged(path: str, scan: Scan, wanted: str) -> LogOfflineError:
    """Returns the error for a log that does not reach its known end."""
    detail = f" ({scan.detail})" if scan.detail else ""
    return LogOfflineError(
        f"{path} is damaged: offset {scan.offset} should begin at byte {scan.position}, but there "
        f"is {scan.stop.value}{detail}. The log is known to reach {wanted}. The file is "
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
) -> tuple[ProducerTable, int]:
    """The producer state below offset `until`: the newest good snapshot, and the log above it; and
    the offset from which on that was replayed."""
    found = load_snapshot(storage, folder, until, batches_kept)
    table, start = found if found is not None else (ProducerTable(batches_kept), bases[0])
    start = max(start, bases[0])
    for head in headers_between(storage, folder, bases, start, until):
        table.replay(head)
    return table, start


def settle_aborted(
    storage: Storage,
    folder: str,
    bases: list[int],
    log_end: int,
    producers: ProducerTable,
    replayed_from: int,
    *,
    is_trusted: bool,
) -> bool:
    """Brings the `.txn` files to the state of the log after a replay from `replayed_from` on.
    Entries below that come from the files. If a file is missing, damaged or not `is_trusted`, they
    come from the log once more. Returns whether any file was changed."""
    transactions = producers.transactions
    fresh, first = transactions.take_aborted(), transactions.aborted_from
    lost, changed = [], False
    for base, end in pairwise((*bases, max(log_end, bases[-1]) + 1)):
        path = txn_path(folder, base)
        wanted = first is not None and end > first
        if end <= replayed_from and is_trusted and not wanted:
            continue
        data = storage.read_file(path)
        entries = decode_aborted(data or b"")
        is_good = data is not None and is_whole(data) and is_trusted
        # One of a marker behind the segment's end came to the device ahead of a log that was cut.
        if end <= replayed_from and is_good and all(each.last_offset < end for each in entries):
            continue
        below = first is not None and wanted and max(base, first) < min(end, replayed_from)
        if below and not is_good:
            lost.append(base)
            continue
        kept = [each for each in entries if each.last_offset < min(end, replayed_from)]
        kept += [each for each in fresh if base <= each.last_offset < end]
        changed |= _write_aborted(storage, path, data, kept if wanted else None)
    if lost:
        logger.warning("%s: .txn files of segments %s are made again", folder, lost)
        found = _aborted_between(storage, folder, bases, lost, log_end)
        for base, end in pairwise((*bases, log_end + 1)):
            if base in lost:
                path = txn_path(folder, base)
                entries = [each for each in found if base <= each.last_offset < end]
                changed |= _write_aborted(storage, path, storage.read_file(path), entries)
    return changed


def _write_aborted(
    storage: Storage, path: str, data: bytes | None, entries: list[Aborted] | None
) -> bool:
    """Have exactly these entries in a file that holds `data`; None: have no file."""
    wanted = None if entries is None else encode_aborted(entries)
    if data == wanted:
        return False
    if wanted is None:
        storage.unlink(path)
    else:
        storage.write_file(path, wanted, durable=True)
    return True


def _aborted_between(
    storage: Storage, folder: str, bases: list[int], lost: list[int], until: int
) -> list[Aborted]:
    """Returns the ABORT markers in the segments `lost`, and maybe in others."""
    found = load_snapshot(storage, folder, lost[0], 1)
    table, start = found if found is not None else (ProducerTable(1), bases[0])
    behind = next((base for base in bases if base > lost[-1]), until)
    for head in headers_between(storage, folder, bases, max(start, bases[0]), min(behind, until)):
        table.replay(head)
    return table.transactions.take_aborted()


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
    position: int,
    until: int,
) -> IndexWriter:
    """Returns the index of a segment for all batches below offset `until`, which is at `position`.
    Takes plausible entries from the files, if the last of them proves true; the rest comes from the
    log."""
    index = IndexWriter(storage, folder, base, interval)
    for attempt in (index.resume(position), None):
        offset, at = attempt or index.restart()
        scan = Scan(storage, fd, position=at, offset=offset, until=until)
        for found, head in scan:
            index.note(head.base_offset, found, batch_time(head))
        if scan.offset == until and position == scan.position:
            return index
        if not at:
            raise damaged(segment_path(folder, base), scan, f"offset {until} at byte {position}")
    raise AssertionError("unreachable: the second attempt starts at byte 0")
