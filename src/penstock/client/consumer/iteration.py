"""Tracks which rows of a batch iteration has handed out, and turns them into positions.

Records go out in runs that C code walks through, so no code runs per record. The rows of a run that
were handed out are counted only when a caller asks for the consumer's position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from operator import length_hint
from typing import Any

from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Chunk, Record, RecordBatch


class HandOut:
    """The batch that iteration hands out. `assigned`: the partitions of the consumer, by name; it
    changes in place."""

    def __init__(self, assigned: Mapping[TopicPartition, AssignedPartition]) -> None:
        self._assigned = assigned
        self.run: tuple[AssignedPartition, Chunk, Iterator[Record[Any, Any]]] | None = None
        """The live run: the rows that are left are not handed out yet."""
        self.is_within = False
        """A loop is somewhere within a batch, where it may be left for good."""

    def runs(self, batch: RecordBatch[Any, Any]) -> Iterator[Iterator[Record[Any, Any]]]:
        """Yields the records run by run, after `bring_back`; the rest of the live run is not handed
        out yet."""
        for chunk in batch.chunks:
            partition = self._assigned[chunk.topic, chunk.partition]
            rows = iter(chunk.records())
            self.run = (partition, chunk, rows)
            yield rows
            if not self.is_at(rows):
                return  # settled meanwhile: the next poll brings the rest
            partition.offset = chunk.next_offset
            self.run = None
        self.is_within = False

    def bring_back(self, batch: RecordBatch[Any, Any]) -> None:
        """Moves positions back before a batch: none of it counts as brought until it is
        handed out."""
        self.is_within = True
        for chunk in reversed(batch.chunks):
            self._assigned[chunk.topic, chunk.partition].offset = chunk.row_offset(chunk.start)

    def begin(
        self, partition: AssignedPartition, chunk: Chunk, records: Iterator[Record[Any, Any]]
    ) -> Iterator[Record[Any, Any]]:
        """Begins the run that is handed out from now on."""
        self.run = (partition, chunk, records)
        return records

    @property
    def is_live(self) -> bool:
        return self.run is not None

    def is_at(self, records: Iterator[Record[Any, Any]]) -> bool:
        """Returns whether this run is still the live one, and not one of a loop within its loop."""
        return self.run is not None and self.run[2] is records

    def end(self) -> None:
        """Ends the live run: it is handed out, or belongs to no loop any more."""
        self.run = None

    @property
    def live(self) -> tuple[AssignedPartition, Chunk, int] | None:
        """The partition and chunk of the live run, and how many rows it has left."""
        if self.run is None:
            return None
        partition, chunk, records = self.run
        return partition, chunk, length_hint(records)

    @property
    def in_hand(self) -> Chunk | None:
        """The last row of the live run that was handed out: nobody knows yet what came of it."""
        live = self.live
        if live is None or live[2] == len(live[1]):
            return None
        _, chunk, left = live
        return chunk.cut(chunk.stop - left - 1, chunk.stop - left)

    def offset_of(self, partition: AssignedPartition) -> int:
        """Returns the consumer's position in one partition, by what was handed out."""
        live = self.live
        if live is None or live[0] is not partition:
            return partition.offset
        _, chunk, left = live
        return chunk.row_offset(chunk.stop - left) if left else chunk.next_offset

    def abandon(self) -> None:
        """Drops the rest of the live run: the loop that walks through it goes on without it."""
        live, self.run = self.run, None  # first: an exhausted run says that all was handed out
        if live is not None:
            deque(live[2], maxlen=0)

    def settle(self) -> None:
        """Turns what was handed out into positions. Fetched records that were not handed out leave
        the loop that walks through them, and are fetched again."""
        if self.run is None and not self.is_within:
            return
        partition = None
        if self.run is not None:
            partition, chunk, _ = self.run
            partition.jump(self.offset_of(partition), chunk.leader_epoch)
        for other in self._assigned.values():
            if other is not partition and other.is_ahead:
                other.jump(other.offset, other.leader_epoch)
        self.abandon()
        self.is_within = False  # last: after an interrupt it is all done again
