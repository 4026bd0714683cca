"""What iteration has handed out of a batch, and what of that is a position already.

Records go out in runs that C code walks through, so nothing is done per record: the rows of a run
that were handed out are counted only when somebody asks where the consumer stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from operator import length_hint

from penstock.assigned import AssignedPartition, TopicPartition
from penstock.records import Chunk, Record, RecordBatch


class HandOut:
    """See the module. `assigned`: the partitions of the consumer, by name; it changes in place."""

    def __init__(self, assigned: Mapping[TopicPartition, AssignedPartition]) -> None:
        self._assigned = assigned
        self._live: tuple[AssignedPartition, Chunk, Iterator[Record]] | None = None
        self.is_within = False
        """A loop stands somewhere within a batch, where it may be left for good."""

    def runs(self, batch: RecordBatch) -> Iterator[Iterator[Record]]:
        """The records run by run; what the live one has left is not handed out yet."""
        chunks = batch.chunks
        self.is_within = True
        for chunk in reversed(chunks):  # nothing counts as brought until it is handed out
            self._assigned[chunk.topic, chunk.partition].offset = chunk.row_offset(chunk.start)
        for chunk in chunks:
            partition = self._assigned[chunk.topic, chunk.partition]
            rows = iter(chunk.records())
            self._live = (partition, chunk, rows)
            yield rows
            if not self.is_at(rows):
                return  # settled meanwhile: the next poll brings the rest
            partition.offset = chunk.next_offset
            self._live = None
        self.is_within = False

    def begin(
        self, partition: AssignedPartition, chunk: Chunk, records: Iterator[Record]
    ) -> Iterator[Record]:
        """The run that is handed out from now on."""
        self._live = (partition, chunk, records)
        return records

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def is_at(self, records: Iterator[Record]) -> bool:
        """Whether this run is the live one still, and not one of a loop within its loop."""
        return self._live is not None and self._live[2] is records

    def end(self) -> None:
        """What was live is handed out, or belongs to nobody any more."""
        self._live = None

    @property
    def live(self) -> tuple[AssignedPartition, Chunk, int] | None:
        """The partition and chunk of the live run, and how many rows it has left."""
        if self._live is None:
            return None
        partition, chunk, records = self._live
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
        """Where the consumer stands in one partition, by what was handed out."""
        live = self.live
        if live is None or live[0] is not partition:
            return partition.offset
        _, chunk, left = live
        return chunk.row_offset(chunk.stop - left) if left else chunk.next_offset

    def abandon(self) -> None:
        """The rest of the live run is not handed out: the loop that walks through it goes on."""
        if self._live is not None:
            deque(self._live[2], maxlen=0)
            self._live = None

    def settle(self) -> None:
        """Turn what was handed out into positions. What was fetched and not handed out leaves the
        loop that walks through it, and is fetched again."""
        if self._live is None and not self.is_within:
            return
        self.is_within = False
        partition = None
        if self._live is not None:
            partition, chunk, _ = self._live
            partition.jump(self.offset_of(partition), chunk.leader_epoch)
        self.abandon()
        for other in self._assigned.values():
            if other is not partition and other.is_ahead:
                other.jump(other.offset, other.leader_epoch)
