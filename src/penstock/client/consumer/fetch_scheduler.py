"""Chooses which partitions a poll reads from, within its byte limit.

Paused partitions are not among them, and cost nothing. One bound limits what a poll decodes over
all partitions. Where it is reached, the next poll begins with the partitions that came too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.client.consumer.partition_cursor import FETCH_BYTES, AssignedPartition
from penstock.client.consumer.records import Chunk
from penstock.core.errors import PenstockError

ALONE_MAX: Final = 8
"""Among more partitions nobody looks for a record that came alone."""

Take = Callable[[AssignedPartition, int | None, int], list[Chunk]]


class FetchScheduler:
    """The unpaused partitions of a consumer and their order. `bytes_max`: the bound of what is
    decoded and not handed out."""

    def __init__(self, bytes_max: int, *, whole: bool) -> None:
        self.bytes_max = bytes_max
        self._share = bytes_max if whole else min(FETCH_BYTES, bytes_max)
        self.active: list[AssignedPartition] = []
        self._turn = 0
        self._holding = False
        self.marks: dict[AssignedPartition, tuple[int, int]] = {}
        """Positions of partitions, with the leader epoch before them, at the first request for
        records since this was emptied."""

    def choose(self, partitions: Iterable[AssignedPartition]) -> None:
        """Takes another assignment, or other paused partitions."""
        self.active = [partition for partition in partitions if not partition.paused]

    def has_more(self) -> bool:
        for partition in self.active:  # noqa: SIM110 - a generator costs what two of these do
            if partition.has_more:
                return True
        return False

    def only(self) -> AssignedPartition | None:
        """Returns the only partition that may have something. None where there are more, or what is
        there is not to be taken by the short path."""
        if self._holding or len(self.active) > ALONE_MAX:
            return None
        ready = self.active
        if len(ready) > 1:
            ready = [partition for partition in ready if partition.has_more]
        if len(ready) != 1:
            return None
        only = ready[0]
        if only not in self.marks:
            self.marks[only] = only.offset, only.leader_epoch
        return only

    def gather(self, room: int | None, take: Take) -> list[Chunk]:
        """Returns the records that are there now, at most `room` of them."""
        partitions = self.active
        if not partitions:
            return []
        self._turn = (self._turn + 1) % len(partitions)
        if self._turn:
            partitions = partitions[self._turn :] + partitions[: self._turn]
        all_held = 0
        if room is not None or self._holding:
            all_held = sum(partition.held for partition in partitions)
            self._holding = room is not None
        left = self.bytes_max - all_held
        chunks: list[Chunk] = []
        late: int | None = None
        for place, partition in enumerate(partitions):
            if not partition.has_more:
                continue
            held = partition.held
            if not held and left <= 0 and (chunks or all_held):
                late = place if late is None else late
                continue
            if partition not in self.marks:
                self.marks[partition] = partition.offset, partition.leader_epoch
            try:
                taken = take(partition, room, min(self._share, max(left, 1)))
            except PenstockError:  # of this partition: others come from a signal's handler
                if not chunks:
                    raise
                # Others have moved on: their chunks go out first. This one does not move while its
                # error lasts, and is asked first the next time.
                late = place
                break
            chunks += taken
            if not held:
                left -= partition.fetched
            if room is not None:
                room -= sum(map(len, taken))
                if room <= 0:
                    break
        if late is not None:
            self._turn += late - 1
        return chunks
