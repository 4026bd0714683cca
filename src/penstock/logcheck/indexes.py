"""The two indexes of a segment, held against its batches."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.core.header import BatchHeader
from penstock.core.index import ENTRY_BYTES, OFFSET_ENTRY, TIME_ENTRY, index_paths
from penstock.core.segment import batch_time
from penstock.core.storage import Storage
from penstock.logcheck.findings import Checked


class IndexCheck:
    """Compares entry by entry while the segment's batches pass."""

    def __init__(
        self, storage: Storage, folder: str, base: int, result: Checked, *, is_live: bool
    ) -> None:
        self._storage = storage
        self._result = result
        self._is_live = is_live
        self._paths = index_paths(folder, base)
        self._newest: int | None = None
        self._entries = self._load()
        self._wanted = next(self._entries, None)

    def _load(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yields (number, offset, position, time, offset) of each pair of entries."""
        files = []
        for path in self._paths:
            data = self._storage.read_file(path)
            if data is None:
                self._result.find(
                    "index",
                    os.path.basename(path),
                    None,
                    "is missing: the next start makes it again",
                    note=True,
                )
                return
            files.append(data)
        index, times = files
        if len(index) % ENTRY_BYTES or len(index) != len(times):
            # Entries are appended to one file and then to the other.
            self._result.find(
                "index",
                os.path.basename(self._paths[0]),
                None,
                f"has {len(index)} bytes, and the index by time {len(times)}",
                note=self._is_live,
            )
        for number in range(min(len(index), len(times)) // ENTRY_BYTES):
            offset, position = OFFSET_ENTRY.unpack_from(index, number * ENTRY_BYTES)
            yield number, offset, position, *TIME_ENTRY.unpack_from(times, number * ENTRY_BYTES)

    def saw(self, position: int, head: BatchHeader) -> None:
        """Takes a batch: entries up to here must name it, its place and the newest time so far."""
        newest = batch_time(head)
        self._newest = newest if self._newest is None else max(self._newest, newest)
        while self._wanted is not None and self._wanted[2] <= position:
            number, offset, at, time, again = self._wanted
            base = head.base_offset
            if (offset, at, time, again) != (base, position, self._newest, base):
                self._result.find(
                    "index",
                    os.path.basename(self._paths[0]),
                    number * ENTRY_BYTES,
                    f"entry {number} says offset {offset} at byte {at} and time {time} for offset "
                    f"{again}; at byte {position} is offset {base}, the newest time is "
                    f"{self._newest}",
                )
            self._wanted = next(self._entries, None)

    def end(self, position: int) -> None:
        """Checks, after all batches, that no entry is left."""
        if self._wanted is not None and not self._is_live:
            number, offset, at, *_ = self._wanted
            self._result.find(
                "index",
                os.path.basename(self._paths[0]),
                number * ENTRY_BYTES,
                f"entry {number} says offset {offset} at byte {at}; the segment ends at {position}",
            )
