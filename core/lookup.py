"""Plain reading of a partition's log by offset and by time, for tools and tests.

Consumers do not come this way: they map the segments (`reader`). Owns nothing and keeps no file
open.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice

from penstock.core.header import BatchHeader
from penstock.core.index import index_paths, lookup_offset
from penstock.core.segment import Scan, find_batch, list_segments, open_for_reading
from penstock.core.storage import Storage


def read_batches(
    storage: Storage, folder: str, bases: list[int], log_end: int, offset: int, max_bytes: int
) -> list[tuple[BatchHeader, bytes]]:
    """Batches from the one that holds `offset` on, whole ones up to `max_bytes`, but at least one
    if there is any."""
    found: list[tuple[BatchHeader, bytes]] = []
    left = max_bytes
    for i in range(max(0, bisect_right(bases, offset) - 1), len(bases)):
        base = bases[i]
        until = bases[i + 1] if i + 1 < len(bases) else log_end
        fd = open_for_reading(storage, folder, base)
        try:
            position, start = find_batch(storage, folder, base, fd, max(base, offset))
            scan = Scan(storage, fd, position=position, offset=start, until=until, bodies=True)
            for at, head in scan:
                if found and head.length > left:
                    return found
                left -= head.length
                found.append((head, bytes(scan.body(at, head))))
        finally:
            storage.close(fd)
        if left <= 0:
            break
    return found


def header_at(
    storage: Storage, folder: str, offset: int, *, batches_max: int = 10_000
) -> BatchHeader | None:
    """The header of the batch that holds `offset`, bodies unchecked; None where none is found.

    At most `batches_max` headers behind the index's nearest entry are looked through, so the work
    is bounded also where an index is missing. An index that only lags behind needs fewer.
    """
    bases = list_segments(storage, folder)
    after = bisect_right(bases, offset)
    if not after:
        return None
    base = bases[after - 1]
    index = storage.read_file(index_paths(folder, base)[0]) or b""
    start, position = lookup_offset(index, base, offset)
    fd = open_for_reading(storage, folder, base)
    try:
        scan = Scan(storage, fd, position=position, offset=start)
        for _, head in islice(scan, batches_max):
            if head.next_offset > offset:
                return head
    finally:
        storage.close(fd)
    return None
