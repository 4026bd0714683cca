"""Batches of which a worker got single records: others of the same batch often come next.

Records that waited, or come again, are leased one by one, in the order of their offsets. Each would
have its batch found, checked and decoded again. Owns a few decoded batches, the ones used last.
One dict has all of it, so that an interrupt leaves nothing that does not fit together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Chunk

BATCHES_MAX: Final = 32


class KeptBatches:
    """`bytes_max`: of all of them; a larger one is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[tuple[TopicPartition, int], tuple[int, Chunk]] = {}
        """By base offset, the one used last is the last: leader epoch of that time, and rows."""

    def find(self, part: AssignedPartition, first: int, end: int, wanted: int) -> Chunk | None:
        """The records of one batch from this offset on, below `end`, at most so many."""
        for key in reversed(self._kept):
            if key[1] > first or key[0] != part.name:
                continue
            epoch, chunk = self._kept[key]
            if first >= chunk.columns.head.next_offset:
                continue
            del self._kept[key]
            if epoch != part.page.leader_epoch:
                return None  # another leader may have other records there
            self._kept[key] = epoch, chunk
            start = chunk.columns.first_at(first)
            stop = min(chunk.columns.first_at(end), start + wanted)
            return chunk.cut(start, stop) if stop > start else None
        return None

    def keep(self, part: AssignedPartition, chunks: Iterable[Chunk]) -> None:
        """Of these batches more may be wanted."""
        for chunk in chunks:
            if chunk.size <= self._bytes_max:
                key = (part.name, chunk.columns.head.base_offset)
                self._kept.pop(key, None)
                self._kept[key] = part.page.leader_epoch, chunk
        size = sum(chunk.size for _, chunk in self._kept.values())
        for key, (_, chunk) in [*self._kept.items()]:
            if len(self._kept) <= BATCHES_MAX and size <= self._bytes_max:
                return
            size -= chunk.size
            del self._kept[key]

    def forget(self, name: TopicPartition) -> None:
        """Those of one partition."""
        for key in [key for key in self._kept if key[0] == name]:
            del self._kept[key]
