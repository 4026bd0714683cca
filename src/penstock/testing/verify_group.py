"""The verifiable consumer as a member of a group: events of Kafka's VerifiableConsumer.

    startup_complete, then as things come: partitions_assigned, record_data (with verbose),
    records_consumed, offsets_committed, partitions_revoked; shutdown_complete

At-most-once prints `offsets_committed` before the records of a claim, as it commits; at-least-once
and manual after they were printed. Offsets that others own by now are an `offsets_committed` with
`success` false. A consumer whose offsets belong into transactions commits nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.consumer.group.consumed import GroupBatch
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.core.errors import PenstockError
from penstock.testing.verify import EventWriter, Stopping, tell_records

POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class VerifiableMember:
    """Reads what a group gives it and tells what came and what was committed. The consumer's
    listeners are `assigned`, `revoked` and `lost`."""

    consumer: GroupConsumer
    events: EventWriter
    stopping: Stopping
    max_messages: int | None = None
    is_verbose: bool = False
    consumed: int = 0

    # --- listeners ---
    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.emit("partitions_assigned", partitions=_named(partitions))

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.emit("partitions_revoked", partitions=_named(partitions))

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.emit("partitions_revoked", partitions=_named(partitions), lost=True)

    # --- the loop ---
    def run(self) -> None:
        """Until `max_messages` came or a stop is wanted."""
        consumer = self.consumer
        self.events.emit("startup_complete")
        try:
            while not self._is_done():
                left = None if self.max_messages is None else self.max_messages - self.consumed
                batch = consumer.poll(left, timeout=POLL_SECONDS)
                if batch:
                    self._received(consumer, batch)
        finally:
            consumer.close()
            self.events.emit("shutdown_complete")

    def _is_done(self) -> bool:
        if self.stopping.requested or not self.events.is_open:
            return True
        return self.max_messages is not None and self.consumed >= self.max_messages

    def _received(self, consumer: GroupConsumer, batch: GroupBatch) -> None:
        if consumer.guarantee == "at-most-once":
            self._committed(batch)
        tell_records(self.events, batch, is_verbose=self.is_verbose)
        self.consumed += len(batch)
        if consumer.guarantee in ("at-least-once", "manual"):
            try:
                consumer.commit(batch)
            except PenstockError as error:
                self._committed(batch, error)
            else:
                self._committed(batch)

    def _committed(self, batch: GroupBatch, error: PenstockError | None = None) -> None:
        ends: Mapping[TopicPartition, int] = {
            (chunk.topic, chunk.partition): chunk.next_offset for chunk in batch.chunks
        }
        fields: dict[str, Any] = {"success": error is None}
        if error is not None:
            fields["error"] = f"{type(error).__name__}: {error}"
        self.events.emit(
            "offsets_committed",
            offsets=[
                {"topic": topic, "partition": number, "offset": offset}
                for (topic, number), offset in ends.items()
            ],
            **fields,
        )


def _named(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]
