"""Applies the policy of a full buffer: records wait, are refused, or are dropped.

    on_full        a record that finds `buffer_bytes_max` unacknowledged bytes
    "block"        waits until some are acknowledged, up to `block_timeout`
    "error"        is refused: `BufferFullError`
    "drop-newest"  is dropped: its delivery fails with `DroppedError` at once
    "drop-oldest"  is taken; batches that wait for room in a lane are dropped, oldest first, or
                   where none does, the open box of its topic. Without either, as "drop-newest"

Only what is in private memory may be dropped: nothing that a lane has accepted, nor a batch that
was in one and is to go there again (rule 4). A declared policy is no surprise: drops are counted,
published in the client's slot and logged, and `flush` does not raise them.

Owns the choice and its account, and never waits. The producer's lock is held in every call but
those of a call that waits.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.callbacks import Outcomes
from penstock.client.producer.delivery import Box
from penstock.client.producer.routes import Batch, PartitionRoute
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState
from penstock.client.session import Session
from penstock.core import errors as er

logger = logging.getLogger("penstock.producer")

LOG_EVERY: Final = 5.0
"""Seconds between two lines of the log about drops, however many there are."""


class Pressure:
    """Applies `on_full` once the buffer is full. One per producer (and per forked child of it)."""

    def __init__(
        self, state: ProducerState, outcomes: Outcomes, sender: Sender, boxes: Boxes
    ) -> None:
        self._state = state
        self._outcomes = outcomes
        self._sender = sender
        self._boxes = boxes
        self._policy = state.config.on_full
        self._bytes_max = state.config.buffer_bytes_max
        self._block_timeout = state.config.block_timeout
        self._session: Session | None = None
        self._refused: dict[str, Box] = {}  # by topic: what answers for a run of dropped records
        self._log_at = 0.0
        self._logged = 0
        self.counts = dict.fromkeys(("blocked", "dropped_records", "dropped_bytes"), 0)

    @property
    def is_full(self) -> bool:
        """Returns whether the bound on unacknowledged bytes is reached."""
        return self._sender.buffered >= self._bytes_max

    def must_wait(self) -> bool:
        """Returns whether new records have to wait first. Raises `BufferFullError` where the policy
        is to refuse them."""
        if not self.is_full:
            if self._refused:
                self._refused.clear()
            return False
        if self._policy == "error":
            self.counts["blocked"] += 1
            self._state.books.close()
            raise er.BufferFullError(f"{self.told()}{self._sender.why()}")
        return self._policy == "block"

    def has_room(self) -> bool:
        return not self.is_full

    def begin_wait(self) -> float:
        """Counts a call that waits for room and returns until when it may wait (monotonic
        seconds)."""
        self.counts["blocked"] += 1
        return time.monotonic() + self._block_timeout

    def timed_out(self, told: str) -> er.BufferFullError:
        """Returns the error of a call that has waited for `block_timeout`. `told`: how full the
        buffer was when the wait began."""
        return er.BufferFullError(f"{told} for {self._block_timeout} s{self._sender.why()}")

    def told(self) -> str:
        """Says how full the buffer is."""
        size, bound = self._sender.buffered, self._bytes_max
        return f"{size} bytes are unacknowledged (buffer_bytes_max={bound})"

    def refuse(
        self, topic: str, records: int, size: int | Sequence[bytes | None], wide: bool | None = None
    ) -> Box | None:
        """Drops records as the policy says, where the buffer has no room for them.

        `size`: their bytes, or their values. `wide`: one record, for a box with or without the wide
        columns. Returns None if the records may be taken. Else they are dropped, and the returned
        box holds their outcome.
        """
        if not self.is_full or self._policy == "block":
            return None
        if wide is not None and isinstance(size, int):
            box = self._boxes.open.get(topic)
            if box is not None and box.takes(size, wide=wide):
                return None  # open boxes come on top of the bound
        if self._policy == "drop-oldest" and (self._drop_waiting() or self._drop_box(topic)):
            return None
        self._count(records, size if isinstance(size, int) else _bytes_of(size))
        refused = self._refused.get(topic)
        if refused is None:
            refused = self._boxes.new(topic)
            refused.sealed = True
            refused.fail(
                er.DroppedError(f"records for {topic!r} were dropped, the newest: {self._why()}")
            )
            self._refused[topic] = refused
        return refused

    def _why(self) -> str:
        return (
            f"{self._sender.buffered} bytes are unacknowledged (buffer_bytes_max="
            f"{self._bytes_max}, on_full={self._policy!r}){self._sender.why()}"
        )

    # --- the oldest ------------------------------------------------------------------------------
    def _drop_waiting(self) -> bool:
        """Drops batches that wait for a lane until there is room. Returns False if there is still
        none."""
        records = size = 0
        why = ""
        for batch in self._waiting():
            why = why or self._why()
            records, size = records + batch.count, size + batch.length
            self._sender.give_up(batch, er.DroppedError(
                f"{batch.count} records for {batch.route!r} were dropped, the oldest: {why}"
            ))  # fmt: skip
            if not self.is_full:
                break
        if records:
            self._count(records, size)
        return not self.is_full

    def _waiting(self) -> Iterator[Batch]:
        """Yields pending batches that were never in a lane, the oldest first. The caller removes
        each one before it asks for the next."""
        oldest = []
        for number, route in enumerate(self._sender.routes()):
            batch = _first(route)
            if batch is not None:
                oldest.append((batch.deadline, number, batch))
        heapq.heapify(oldest)
        while oldest:
            _, number, batch = oldest[0]
            yield batch
            following = _first(batch.route)
            if following is None:
                heapq.heappop(oldest)
            else:
                heapq.heapreplace(oldest, (following.deadline, number, following))

    def _drop_box(self, topic: str) -> bool:
        """Drops the records in the open box of a topic. Returns False if there is none, or it is
        empty."""
        boxes = self._boxes
        box = boxes.open.get(topic)
        rows = boxes.close(box) if box is not None else None
        if box is None or rows is None:
            return False
        told = f"{box.count} records for {topic!r} were dropped, the oldest: {self._why()}"
        box.fail(er.DroppedError(told))
        boxes.closed(box)
        self._count(box.count, _bytes_of(rows.values) + _bytes_of(rows.keys or ()))
        self._outcomes.tell(box)
        return True

    # --- the account -----------------------------------------------------------------------------
    def _count(self, records: int, size: int) -> None:
        """Counts dropped records, publishes the counts and logs them at most every `LOG_EVERY`
        seconds."""
        counts = self.counts
        counts["dropped_records"] += records
        counts["dropped_bytes"] += size
        self._tell()
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY
            self._log(self._why())

    def _log(self, why: str) -> None:
        total = self.counts["dropped_records"]
        logger.warning("dropped %d records, %d so far: %s", total - self._logged, total, why)
        self._logged = total

    def _tell(self) -> None:
        slot = self._session.slot if self._session is not None else None
        if slot is not None:
            slot.publish_dropped(self.counts["dropped_records"])

    def publish(self, session: Session) -> None:
        """Publishes the counts in this attachment's slot from now on."""
        self._session = session
        if session.slot is not None:
            session.slot.publish_producer(session.producer_id)
        self._tell()

    def close(self) -> None:
        """Logs the drops that no log line has reported yet."""
        self._session = None
        if self.counts["dropped_records"] > self._logged:
            self._log("the producer was closed")


def _first(route: PartitionRoute) -> Batch | None:
    """Returns the oldest pending batch that was never in a lane; those that were are in front of
    it."""
    return next((batch for batch in route.pending if not batch.flew), None)


def _bytes_of(items: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, items)))
