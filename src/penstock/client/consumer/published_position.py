"""Publishes a consumer's positions in its client slot, and the pages that wake it.

Never reads a record. Positions are published when the caller asks for more: it is done with what
was brought before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.client.consumer.fetch_scheduler import FetchScheduler
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.reconnect import Attachment


class Published:
    """The part of a consumer that its client slot shows. `counts`: of a consumer that leaves
    records out, for newer ones.

    `touched`: partitions that have moved since positions were published. `is_whole`: no interrupt
    has torn the last change of what is read.
    """

    def __init__(
        self,
        assigned: Mapping[TopicPartition, AssignedPartition],
        turns: FetchScheduler,
        attachment: Attachment,
        counts: Mapping[str, int] | None,
    ) -> None:
        self._assigned = assigned
        self._turns = turns
        self._attachment = attachment
        self._counts = counts
        self.touched: list[AssignedPartition] = []
        self.is_whole = True

    def all(self) -> None:
        """Publishes the pages that wake this consumer, and its positions."""
        self.is_whole = False
        for place, partition in enumerate(self._assigned.values()):
            partition.place = place
        self.touched.clear()
        self.pages()
        slot = self._attachment.session.slot
        if slot is not None:
            slot.publish_positions(
                [(part.page.index, part.offset) for part in self._assigned.values()]
            )
        self.is_whole = True

    def pages(self) -> None:
        """Publishes the pages that wake this consumer; paused partitions wake none."""
        was_whole, self.is_whole = self.is_whole, False
        turns, session = self._turns, self._attachment.session
        turns.choose(self._assigned.values())
        if session.far is not None and turns.active:
            share = turns.bytes_max // len(turns.active)
            for partition in turns.active:
                partition.allow(share)
        if session.slot is not None:
            session.slot.watch(part.page.index for part in turns.active)
        self.is_whole = was_whole

    def polled(self) -> None:
        """Publishes that the caller looks for records now: one store. It comes after a look that
        found nothing, so a poll that a record ends may look half a second older than it is."""
        slot = self._attachment.session.slot
        if slot is not None:
            slot.publish_polled(time.monotonic_ns() // 1000)

    def positions(self) -> None:
        """Publishes the end of what was brought: one store for each partition that moved."""
        if not self.is_whole:
            self.all()
        if not self.touched:
            return
        slot = self._attachment.session.slot
        if slot is not None:
            if self._counts is not None:
                slot.publish_dropped(self._counts["skipped"])
            for partition in self.touched:
                slot.publish_position(partition.place, partition.page.index, partition.offset)
        self.touched.clear()
