"""Keeps what the last poll has fetched, until its caller gets it.

An interrupt may end a poll when positions have moved on, or in the middle of a fetch. The caller
has got nothing then, so the next call goes back to where the poll began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.client.consumer.fetch_scheduler import FetchScheduler
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import RecordBatch
from penstock.core.errors import PenstockError


class LastPoll:
    """The state of a consumer's last poll. `assigned`: the partitions of the consumer; it changes
    in place."""

    def __init__(
        self, assigned: Mapping[TopicPartition, AssignedPartition], turns: FetchScheduler
    ) -> None:
        self._assigned = assigned
        self._turns = turns
        self.is_torn = False
        """Positions are ahead of what the caller has got."""

    def begin(self) -> None:
        """Marks the present positions as those that an interrupt leads back to, until the caller
        gets something: looks that find nothing keep them."""
        self._turns.marks = {}

    def fetch(
        self, gather: Callable[[int | None], RecordBatch[Any, Any]], max_records: int | None
    ) -> RecordBatch[Any, Any]:
        """Returns the records that are there. The caller calls `brought` once it has them."""
        was_torn, self.is_torn = self.is_torn, True
        try:
            batch = gather(max_records)
        except PenstockError:  # then nothing has moved
            self.is_torn = was_torn
            raise
        self.is_torn = was_torn or bool(batch.chunks)
        return batch

    def brought(self) -> None:
        """Notes that the caller has what was fetched."""
        self.is_torn = False

    def go_back(self) -> None:
        """Goes back after an interrupt: records that were fetched and never reached the caller come
        again."""
        if self.is_torn:
            marks = self._turns.marks
            for partition in self._assigned.values():
                offset, epoch = marks.get(partition, (partition.offset, partition.leader_epoch))
                partition.forget()
                partition.jump(offset, epoch)
            self.is_torn = False
