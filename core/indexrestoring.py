"""Indexes of closed segments that have lost a file: made again from the log, in bounded steps.

    missing ──step: the headers are read──► prepared, under a name of its own
            ──the next sync: on the device──► renamed, so that readers find both files whole

A log has thousands of segments, and an open waits for none of these. Without an index a look-up
reads the headers of its segment from the start, and finds the same. The newest segments come first.
Segments that are dropped, cut or swapped meanwhile are forgotten. A process that dies leaves files
that the next open removes.

Owns which indexes are missing, and their way back. Never decides when a step or a sync is due.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Final

from penstock.core.index import IndexWriter, index_paths
from penstock.core.replay import damaged
from penstock.core.segment import Scan, batch_time, open_for_reading, segment_path
from penstock.core.storage import TEMPORARY_SUFFIX, WRITE_EMPTY, Storage, write_all

PREPARED_SUFFIX: Final = ".restored" + TEMPORARY_SUFFIX
SEGMENT_COST: Final = 100
"""Opening a segment and writing its indexes counts as so many batches."""
PREPARED_MAX: Final = 64
"""So many prepared segments ask for a sync; the last ones do, too."""


def missing_indexes(storage: Storage, folder: str, bases: Sequence[int], below: int) -> list[int]:
    """The closed segments below segment `below` that have lost a file of their indexes."""
    names = set(storage.listdir(folder))
    return [
        base
        for base, _ in pairwise(bases)
        if base < below
        and not all(path.rpartition("/")[2] in names for path in index_paths(folder, base))
    ]


class IndexRestoring:
    """The missing and the prepared indexes of a log. `missing` rise; none of them is among the
    `prepared`."""

    def __init__(
        self, storage: Storage, folder: str, missing: Sequence[int], interval: int
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._interval = interval
        self._missing = list(missing)
        self._prepared: list[int] = []
        self._syncing: set[int] = set()
        self._walk: tuple[int, int, Generator[None]] | None = None  # segment, its end

    @property
    def has_missing(self) -> bool:
        return bool(self._missing)

    @property
    def wants_sync(self) -> bool:
        count = len(self._prepared)
        return count >= PREPARED_MAX or (count > 0 and not self._missing)

    def step(self, bases: Sequence[int], batches_max: int) -> bool:
        """Read on, about so many headers; whether there is more to do. `bases` are the log's
        segments now. Raises `StorageError`, and `LogOfflineError` for a damaged segment."""
        left = batches_max
        while left > 0 and self._missing:
            base = self._missing[-1]
            at = bisect_left(bases, base)
            if at + 1 >= len(bases) or bases[at] != base:
                self._missing.pop()  # it went, or is written to
                continue
            end = bases[at + 1]
            if self._walk is None or self._walk[:2] != (base, end):
                self._stop()
                self._walk = base, end, self._walking(base, end)
                left -= SEGMENT_COST
            try:
                for _ in self._walk[2]:
                    left -= 1
                    if left <= 0:
                        return True
            except BaseException:
                self._stop()
                raise
            self._walk = None
            self._missing.pop()
            insort(self._prepared, base)
        return bool(self._missing)

    def _walking(self, base: int, end: int) -> Generator[None]:
        storage, folder = self._storage, self._folder
        index = IndexWriter(storage, folder, base, self._interval)
        fd = open_for_reading(storage, folder, base)
        try:
            scan = Scan(storage, fd, position=0, offset=base, until=end)
            for position, head in scan:
                index.note(head.base_offset, position, batch_time(head))
                yield
            if scan.offset != end:
                raise damaged(segment_path(folder, base), scan, f"offset {end}")
        finally:
            storage.close(fd)
        for path, data in zip(index_paths(folder, base), index.contents(), strict=True):
            fd = storage.open(path + PREPARED_SUFFIX, WRITE_EMPTY)
            try:
                write_all(storage, fd, [data], 0)
            finally:
                storage.close(fd)

    def take_prepared(self) -> list[int]:
        """Takes the prepared indexes that the next sync brings to the device."""
        taken, self._prepared = self._prepared, []
        self._syncing.update(taken)
        return taken

    def install(self, bases: Sequence[int], synced: Sequence[int]) -> None:
        """A sync has brought these to the device: readers may have those whose segment is still
        what it was. `bases` are the log's segments now."""
        for base in synced:
            at = bisect_left(bases, base)
            is_there = base in self._syncing and at < len(bases) and bases[at] == base
            for path in index_paths(self._folder, base):
                if is_there:
                    self._storage.rename(path + PREPARED_SUFFIX, path)
                else:
                    self._storage.unlink(path + PREPARED_SUFFIX)
        self._syncing.difference_update(synced)

    def add(self, base: int) -> None:
        """This segment's are missing now."""
        if not all(map(self._storage.exists, index_paths(self._folder, base))):
            insort(self._missing, base)

    def forget(self, start: int, end: int) -> None:
        """Segments from `start` to below `end` are others now, or go."""
        self._stop()
        for known in (self._missing, self._prepared):
            del known[bisect_left(known, start) : bisect_left(known, end)]
        self._syncing = {base for base in self._syncing if not start <= base < end}

    def _stop(self) -> None:
        if self._walk is not None:
            self._walk[2].close()
            self._walk = None

    def close(self) -> None:
        """Let go of the file that is read."""
        self._stop()
