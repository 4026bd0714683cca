"""How a loop over records walks through a batch: in runs, between which the group gets its due.

A run is about a tenth of a second of the loop's own work, see `run_length`, and C code walks
through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.client.consumer.group.at_most_once import Claims
from penstock.client.consumer.group.consumed import GrantedPartitions, GroupBatch
from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.group.run_length import RunPace
from penstock.client.consumer.partition_cursor import AssignedPartition
from penstock.client.consumer.records import Chunk, Record

Runs = Iterator[Iterator[Record[Any, Any]] | None]
"""None: the group wants its due, before the next run is asked for."""


AHEAD_MIN: Final = 32
"""Records that a loop works off in a tenth of a second, for the next claim to be asked for ahead: a
slower one would gain nothing, and lose one more record when it dies."""


class Looping:
    """Loop over records in runs. `is_due` tells, by the time after a run, if the group is due."""

    def __init__(self, reader: GroupReader, is_due: Callable[[float], bool]) -> None:
        self._reader = reader
        self._is_due = is_due
        self.pace = RunPace()

    def begin(
        self, batch: GroupBatch[Any, Any], now: GrantedPartitions
    ) -> list[tuple[AssignedPartition, Chunk]]:
        """Returns the chunks for `runs`, without partitions given away or sought since the poll.

        Nothing counts as brought until it is handed out.
        """
        partitions = self._reader.partitions
        todo = [
            (partitions[name], chunk)
            for chunk in batch.chunks
            if (name := (chunk.topic, chunk.partition)) in partitions
            and now.is_still(batch.ownership, name)
        ]
        self._reader.handout.is_within = True
        for partition, chunk in reversed(todo):
            partition.offset = chunk.row_offset(chunk.start)
        return todo

    def runs(self, todo: list[tuple[AssignedPartition, Chunk]]) -> Runs:
        """The records; partitions that go meanwhile take theirs with them."""
        reader, handout, pace = self._reader, self._reader.handout, self.pace
        for partition, chunk in todo:
            records: list[Record[Any, Any]] = []
            at, count = 0, len(chunk)
            while at < count and reader.reads(partition):
                size = pace.records
                if size >= count and not at:
                    piece, rows, size = chunk, iter(chunk.records()), count
                else:
                    records = records or chunk.records()
                    size = min(size, count - at)
                    piece = chunk.cut(chunk.start + at, chunk.start + at + size)
                    rows = iter(records[at : at + size])
                begun = time.monotonic()
                yield handout.begin(partition, piece, rows)
                if not handout.is_at(rows):
                    return  # settled meanwhile: the next poll brings the rest
                partition.offset = piece.next_offset
                handout.end()
                at += size
                now = time.monotonic()
                pace.note(size, now - begun)
                if self._is_due(now):
                    yield None
                    if not handout.is_within:
                        return  # as above
        handout.is_within = False

    @property
    def claim_size(self) -> int:
        """Number of records of a claim: the work of the loop in a tenth of a second.

        It is half of that where the next claim is asked for meanwhile. Records that are claimed
        and not handed out are lost.
        """
        records = self.pace.records
        return records if records < AHEAD_MIN else records // 2

    def claimed(self, claims: Claims) -> Runs:
        """Yields the runs of the claimed chunks in the queue."""
        handout = self._reader.handout
        if self.pace.records >= AHEAD_MIN:
            claims.ahead(self.claim_size)
        begun, count = time.monotonic(), 0
        while claims.queue:
            chunk = claims.queue[0]
            partition = self._reader.partitions[chunk.topic, chunk.partition]
            rows = iter(chunk.records())
            rest = claims.queue.copy()
            rest.popleft()
            # In one go: an interrupt leaves it in the queue, or as what is handed out.
            claims.queue, handout.run = rest, (partition, chunk, rows)
            yield rows
            if not handout.is_at(rows):
                return
            handout.end()
            count += len(chunk)
        if count:
            self.pace.note(count, time.monotonic() - begun)
