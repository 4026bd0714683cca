"""Messages that were delivered by a channel and have no answer yet, and how many more it takes.

Answers may come from any thread; the rest is for the thread that consumes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.kombu.sources import Arrival, Source

PREFETCH_MAX: Final = 64
"""Messages that a channel without a prefetch count gets at once."""


class UnackedMessage(NamedTuple):
    """A message in the hands of a consumer."""

    source: Source
    arrival: Arrival


class Unacked:
    """The `QoS` of a channel. `answered` is called after each answer."""

    restore_at_shutdown = False

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.prefetch_count = prefetch_count
        self._answered: Callable[[Source], None] = channel.answered
        self._held: dict[Any, UnackedMessage] = {}

    @property
    def room(self) -> int:
        """Messages that may be delivered now."""
        if not self.prefetch_count:
            return PREFETCH_MAX
        return self.prefetch_count - len(self._held)

    @property
    def tags(self) -> list[Any]:
        """Of the messages without an answer, in the order of their delivery."""
        return [*self._held]

    def can_consume(self) -> bool:
        return self.room > 0

    def can_consume_max_estimate(self) -> int | None:
        return max(self.room, 0) if self.prefetch_count else None

    def hold(self, delivery_tag: Any, source: Source, arrival: Arrival) -> None:
        self._held[delivery_tag] = UnackedMessage(source, arrival)

    def ack(self, delivery_tag: Any) -> None:
        held = self._held.pop(delivery_tag, None)
        if held is not None:
            if held.arrival.job is not None:
                held.arrival.job.ack()
            self._answered(held.source)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Others get it at once; without `requeue` it becomes a dead letter."""
        held = self._held.pop(delivery_tag, None)
        if held is None:
            return
        job = held.arrival.job
        if job is None:
            if requeue:
                held.source.pending.append(held.arrival)
        elif requeue:
            job.release()
        else:
            job.reject("rejected by its consumer")
        self._answered(held.source)

    def restore_unacked(self) -> None:
        """Gives everything back."""
        for tag in self.tags:
            self.reject(tag, requeue=True)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()
