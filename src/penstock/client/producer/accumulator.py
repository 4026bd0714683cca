"""The open boxes of a producer: one a topic, until it is full, has lingered, or is asked for.

Owns which boxes are open and when they are due, and how one that is closed becomes batches on their
way. Never locks and never waits.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from penstock.client.producer import batch_builder
from penstock.client.producer.callbacks import Outcomes
from penstock.client.producer.delivery import WIDE, Awaited, Box
from penstock.client.producer.pace import EAGER_MAX
from penstock.client.producer.record_options import PLAIN, RecordFields
from penstock.client.producer.routes import BATCH_OVERHEAD, TopicRoutes
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState
from penstock.core import errors as er

logger = logging.getLogger("penstock.producer")

GATHER_MAX: Final = 0.005
"""Seconds for which records gather at most that were sent with linger 0 while others wait for their
answers (see `penstock.client.producer.pace`)."""


BOX_BYTES_MAX: Final = 4 << 20
"""Bytes of a box whose records go to several partitions."""
BUFFER_SHARE: Final = 4
"""Boxes of that size that fit the producer's buffer."""


class Boxes:
    """The open boxes of a producer, in `open` by topic.

    `seen` is what `send` reads without a lock. With a linger it is `open`. With linger 0 it holds
    boxes that are full, so that every record takes the path of those that leave at once. `awaited`:
    the object that their deliveries ask; it is set once it exists."""

    awaited: Awaited

    def __init__(self, state: ProducerState, outcomes: Outcomes, sender: Sender) -> None:
        self._state = state
        self._outcomes = outcomes
        self._sender = sender
        batch_bytes = state.config.batch_bytes
        self._room = batch_bytes - BATCH_OVERHEAD
        bound = min(BOX_BYTES_MAX, state.config.buffer_bytes_max // BUFFER_SHARE)
        self._room_max = max(bound, batch_bytes) - BATCH_OVERHEAD
        self._linger = state.config.linger
        self._delivery_timeout = state.config.delivery_timeout
        self.open: dict[str, Box] = {}
        self.closing: Box | None = None
        """One that `close` was called for, until it is `closed`: see `mend`."""
        self.seen: dict[str, Box] = self.open if self._linger else {}

    def know(self, topic: str) -> None:
        """Notes that the topic was looked up: its records may be sent."""
        if not self._linger:
            self.seen[topic] = self.new(topic)
            self.seen[topic].room = -1

    def new(self, topic: str) -> Box:
        """Returns a new box, which is not among the open ones."""
        now = time.monotonic()
        return Box(
            self.awaited, topic, self._room, time.time_ns() // 1000,
            now + (self._linger or GATHER_MAX), now + self._delivery_timeout,
        )  # fmt: skip

    def append(
        self, topic: str, size: int, value: bytes | None, key: bytes | None, fields: RecordFields
    ) -> tuple[Box, int]:
        """Adds a record to the open box of its topic, or to a new one. Returns the box and the
        record's ordinal there. A box that is open takes it: see `Box.takes`."""
        box = self.open.get(topic) or self._opened(topic, wide=fields is not PLAIN)
        if box.room < 0:
            box.slow_room -= size
        else:
            box.room -= size
        ordinal = next(box.ordinals)
        if box.width == WIDE:
            box.items.extend((ordinal, value, key, *fields))
        else:
            box.items.extend((ordinal, value, key))
        return box, ordinal

    def _opened(self, topic: str, *, wide: bool) -> Box:
        """Opens a box for a topic that has none: with room for a batch of each partition that the
        last box went to."""
        box = self.new(topic)
        routes = self._sender.topics.get(topic)
        if routes is not None and routes.reach > 1:  # else each of them got a part of a batch
            box.is_long = True
            box.room = min(self._room * routes.reach, self._room_max)
        if wide or self._linger == 0:
            box.slow(wide=wide)
        self.open[topic] = box  # whole: from here on records may come into it
        return box

    @property
    def gather(self) -> bool:
        """Returns whether records are kept that leave as soon as others are acknowledged."""
        return not self._linger and bool(self.open)

    def due(self, now: float | None) -> list[Box]:
        """Boxes that have lingered enough (all, if `now` is None)."""
        return [box for box in list(self.open.values()) if now is None or now >= box.linger_until]

    def linger_until(self) -> float | None:
        """Returns when the next open box is due (monotonic seconds); None while none is open."""
        return min((box.linger_until for box in list(self.open.values())), default=None)

    def close(self, box: Box) -> batch_builder.Rows | None:
        """Seals a box and returns its records, None where it has none or was sealed before. The
        caller calls `closed` once the records have another place or an outcome."""
        if box.sealed and self.closing is not box:
            return None
        self.closing = box
        if self.open.get(box.topic) is box:
            del self.open[box.topic]
        box.sealed = True
        rows = batch_builder.close_lid(box)
        if rows.values:
            return rows
        self.closing = None
        return None

    def closed(self, box: Box) -> None:
        """Forgets the records of a closed box: they have another place or an outcome."""
        box.items.clear()
        self.closing = None

    # --- on their way ----------------------------------------------------------------------------
    def seal(self, box: Box) -> None:
        """Closes a box and sends its batches."""
        rows = self.close(box)
        if rows is not None:
            self.launch(box, rows, self._sender.topics.get(box.topic))
            self.closed(box)

    def seal_open(self, now: float | None) -> bool:
        """Seals boxes that have lingered long enough (all, if `now` is None). True if there was
        one."""
        due = self.due(now)
        for box in due:
            self.seal(box)
        return bool(due)

    def seal_gathered(self) -> bool:
        """Seals the boxes that are open without a linger, and returns True if there was one. It
        skips a topic with many waiting batches, because more of them could not leave sooner."""
        due = [box for box in self.due(None) if not self._is_behind(box.topic)]
        for box in due:
            self.seal(box)
        return bool(due)

    def _is_behind(self, name: str) -> bool:
        topic = self._sender.topics.get(name)
        return topic is not None and topic.is_behind(EAGER_MAX)

    def launch_rows(self, topic: str, rows: batch_builder.Rows, routes: TopicRoutes) -> Box:
        """Sends many records and returns the box of their deliveries."""
        box = self.new(topic)
        box.sealed = True
        box.count = len(rows.values)
        if rows.values:
            batch_builder.check_rows(rows, routes)
            try:
                self.launch(box, rows, routes)
            except Exception as error:
                self._sender.fail(error)
                raise
            self.closed(box)
        return box

    def launch(self, box: Box, rows: batch_builder.Rows, topic: TopicRoutes | None) -> None:
        """Encodes the records of a box and posts the batches."""
        settings = self._state.settings
        if topic is None or settings is None:
            self._lose(box, er.UnknownTopicError(f"topic {box.topic!r} was deleted"))
            return
        batches = batch_builder.seal(box, rows, topic, settings)
        topic.reach = len({batch.route.partition for batch in batches})
        self.closing = box  # all of them leave, or none: see `mend`
        self._sender.post(batches)

    # --- given up --------------------------------------------------------------------------------
    def drop(self, error: Exception, *, level: int = logging.DEBUG) -> None:
        """Closes all open boxes and sends none of their records."""
        for box in list(self.open.values()):
            if self.close(box) is not None:
                told = (box.count, box.topic, error)
                logger.log(level, "%d records for %r were not sent: %s", *told)
                self._lose(box, error)
                self.closed(box)

    def _lose(self, box: Box, error: Exception) -> None:
        self._state.counts["failed"] += box.count
        self.fail(box, error)

    def fail(self, box: Box, error: Exception) -> None:
        """Fails all records of a box."""
        self._sender.fail(error)
        self._outcomes.failed(box, error)
