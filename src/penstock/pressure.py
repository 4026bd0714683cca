"""What becomes of records once a producer's buffer is full: they wait, are refused, or are dropped.

    on_full        a record that finds `buffer_bytes_max` unacknowledged bytes
    "block"        waits until some are acknowledged, up to `block_timeout`
    "error"        is refused: `BufferFullError`
    "drop_newest"  is dropped: its delivery fails with `DroppedError` at once
    "drop_oldest"  is taken; batches that wait for room in a lane are dropped, the oldest first, or
                   where none does, the open box of its topic. Without either, as "drop_newest"

Only what is in private memory may be dropped: nothing that a lane has accepted, nor a batch that
was in one and is to go there again (rule 4). A declared policy is no surprise: drops are counted,
published in the client's slot and logged, and `flush` does not raise them.

Owns the choice and its account. The producer's lock is held in every call but `close`.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core import errors as er
from penstock.delivery import Batch, Box
from penstock.minder import Minder
from penstock.outbox import Outbox
from penstock.producerconfig import OnFull
from penstock.routes import PartitionRoute
from penstock.session import Session

if TYPE_CHECKING:
    from penstock.producer import Producer

logger = logging.getLogger("penstock.producer")

LOG_EVERY: Final = 5.0
"""Seconds between two lines of the log about drops, however many there are."""


class Pressure:
    """See the module. One per producer (and per forked child of it)."""

    def __init__(
        self,
        producer: Producer,
        outbox: Outbox,
        minder: Minder,
        *,
        policy: OnFull,
        bytes_max: int,
        block_timeout: float,
    ) -> None:
        self._producer = producer
        self._outbox = outbox
        self._minder = minder
        self._policy = policy
        self._bytes_max = bytes_max
        self._block_timeout = block_timeout
        self._session: Session | None = None
        self._refused: dict[str, Box] = {}  # by topic: what answers for a run of dropped records
        self._log_at = 0.0
        self._logged = 0
        self.counts = dict.fromkeys(("blocked", "dropped_records", "dropped_bytes"), 0)

    @property
    def is_full(self) -> bool:
        """Whether the bound on unacknowledged bytes is reached."""
        return self._outbox.buffered >= self._bytes_max

    def make_room(
        self, topic: str, records: int, size: int | Sequence[bytes | None], wide: bool | None = None
    ) -> Box | None:
        """See to it that records (of `size` bytes, or these) may be taken, as the policy says.

        `wide`: it is one record, and goes into a box of that kind. None: they may be taken. Else
        they are dropped, and the box answers for them.

        Raises `BufferFullError`. May give the lock up.
        """
        if self.is_full:
            self._minder.reap()
        if not self.is_full:
            if self._refused:
                self._refused.clear()
            return None
        if self._policy in ("block", "error"):
            self._wait()
            return None
        if wide is not None and isinstance(size, int):
            box = self._producer.boxes.open.get(topic)
            if box is not None and box.takes(size, wide=wide):
                return None  # open boxes come on top of the bound
        if self._policy == "drop_oldest" and (self._drop_waiting() or self._drop_box(topic)):
            return None
        self._count(records, size if isinstance(size, int) else _bytes_of(size))
        refused = self._refused.get(topic)
        if refused is None:
            refused = self._refused[topic] = self._producer.boxes.new(topic)
            refused.sealed = True
            refused.fail(
                er.DroppedError(f"records for {topic!r} were dropped, the newest: {self._why()}")
            )
        return refused

    def _wait(self) -> None:
        self.counts["blocked"] += 1
        outbox, bound = self._outbox, self._bytes_max
        message = f"{outbox.buffered} bytes are unacknowledged (buffer_bytes_max={bound})"
        if self._policy == "error":
            raise er.BufferFullError(f"{message}{outbox.why()}")
        if not self._minder.wait(lambda: outbox.buffered < bound, self._block_timeout):
            raise er.BufferFullError(f"{message} for {self._block_timeout} s{outbox.why()}")

    def _why(self) -> str:
        return (
            f"{self._outbox.buffered} bytes are unacknowledged (buffer_bytes_max="
            f"{self._bytes_max}, on_full={self._policy!r}){self._outbox.why()}"
        )

    # --- the oldest ------------------------------------------------------------------------------
    def _drop_waiting(self) -> bool:
        """Drop batches that wait for a lane until there is room. False if there is none even so."""
        records = size = 0
        why = ""
        for batch in self._waiting():
            why = why or self._why()
            records, size = records + batch.count, size + batch.length
            self._outbox.give_up(batch, er.DroppedError(
                f"{batch.count} records for {batch.route!r} were dropped, the oldest: {why}"
            ))  # fmt: skip
            if not self.is_full:
                break
        if records:
            self._count(records, size)
        return not self.is_full

    def _waiting(self) -> Iterator[Batch]:
        """Pending batches that have never flown, the oldest first, each of which is gone when the
        next is asked for."""
        oldest = []
        for number, route in enumerate(self._outbox.routes()):
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
        """Drop what is in the open box of a topic. False if there is none, or nothing in it."""
        boxes = self._producer.boxes
        box = boxes.open.get(topic)
        rows = boxes.close(box) if box is not None else None
        if box is None or rows is None:
            return False
        told = f"{box.count} records for {topic!r} were dropped, the oldest: {self._why()}"
        box.fail(er.DroppedError(told))
        self._count(box.count, _bytes_of(rows.values) + _bytes_of(rows.keys or ()))
        if box.callbacks:
            self._producer.callbacks.take(box)
            self._minder.nudge()
        return True

    # --- the account -----------------------------------------------------------------------------
    def _count(self, records: int, size: int) -> None:
        """Records were dropped."""
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
        """Tell onlookers through this attachment from now on."""
        self._session = session
        if session.slot is not None:
            session.slot.publish_producer(session.producer_id)
        self._tell()

    def close(self) -> None:
        """Log what no line of the log has told of yet."""
        self._session = None
        if self.counts["dropped_records"] > self._logged:
            self._log("the producer was closed")


def _first(route: PartitionRoute) -> Batch | None:
    """The oldest pending batch that has never flown; those that have stand in front."""
    return next((batch for batch in route.pending if not batch.flew), None)


def _bytes_of(items: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, items)))
