"""Batches of which a worker got single records: others of the same batch often come later.

Records that waited, or come again, are leased one by one, wherever they lie in the log. Each would
have its batch found, checked and decoded again. Owns the decoded batches that were used last. Those
that are mapped take little of the worker's memory, so that there may be many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final

from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Chunk

BATCHES_MAX: Final = 1024
MAPPED_BYTES: Final = 2048
"""Bytes that a mapped batch takes, beside eight for each record."""


class KeptBatches:
    """`bytes_max`: of memory that all of them take; a larger one is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[tuple[TopicPartition, int], tuple[int, Chunk]] = {}
        """By base offset, the one used last is the last: leader epoch of that time, and rows."""
        self._bases: dict[TopicPartition, list[int]] = {}
        """To find them. After an interrupt some may be missing in either, and are not found."""
        self._bytes = 0

    def find(self, part: AssignedPartition, first: int, end: int, wanted: int) -> Chunk | None:
        """The records of one batch from this offset on, below `end`, at most so many."""
        bases = self._bases.get(part.name)
        if not bases or not (after := bisect_right(bases, first)):
            return None
        key = part.name, bases[after - 1]
        found = self._kept.get(key)
        if found is None or first >= found[1].columns.head.next_offset:
            return None
        epoch, chunk = found
        if epoch != part.page.leader_epoch:
            self._drop(key)
            return None  # another leader may have other records there
        if first < part.page.log_start:
            return None  # it is deleted
        del self._kept[key]
        self._kept[key] = found
        start = chunk.columns.first_at(first)
        stop = min(chunk.columns.first_at(end), start + wanted)
        return chunk.cut(start, stop) if stop > start else None

    def keep(self, part: AssignedPartition, chunks: Iterable[Chunk]) -> None:
        """Of these batches more may be wanted."""
        name = part.name
        for chunk in chunks:
            if (size := _size(chunk)) > self._bytes_max:
                continue
            key = (name, chunk.columns.head.base_offset)
            self._drop(key)
            self._kept[key] = part.page.leader_epoch, chunk
            self._bytes += size
            insort(self._bases.setdefault(name, []), key[1])
        while len(self._kept) > BATCHES_MAX or self._bytes > self._bytes_max:
            if not self._kept:
                self._bytes = 0
                return
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[TopicPartition, int]) -> None:
        if (found := self._kept.pop(key, None)) is not None:
            self._bytes -= _size(found[1])
        bases = self._bases.get(key[0], [])
        at = bisect_left(bases, key[1])
        if at < len(bases) and bases[at] == key[1]:
            del bases[at]

    def forget(self, name: TopicPartition, below: int | None = None) -> None:
        """Those of one partition, or of it those that begin below an offset: retention deletes
        files whose mappings would hold their room on the device."""
        bases = self._bases.get(name)
        while bases and (below is None or bases[0] < below):
            self._drop((name, bases[0]))
        if below is None:
            self._bases.pop(name, None)


def _size(chunk: Chunk) -> int:
    """How much memory it takes."""
    columns = chunk.columns
    return MAPPED_BYTES + 8 * columns.count if columns.is_mapped else chunk.size
