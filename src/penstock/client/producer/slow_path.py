"""The long way of a single record: checked, under the lock, after a wait where one is needed.

What `Producer.send` cannot put into an open box goes this way. A call that has to wait gives the
lock back first, and begins again after that.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.client.producer.delivery import Delivery
from penstock.client.producer.single_record import express
from penstock.client.validation import HeadersLike, as_bytes, as_headers, as_microseconds
from penstock.core.encode import record_overhead

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer
    from penstock.client.producer.routes import TopicRoutes
    from penstock.core.encode import Headers


def send_slowly(
    self: Producer, topic: str, value: Any, key: Any, headers: HeadersLike | None,
    timestamp: int | datetime | None, partition: int | None,
) -> Delivery:  # fmt: skip
    if value.__class__ is not bytes:
        value = as_bytes("value", value)
    if key is not None:
        key = as_bytes("key", key)
    pairs = None if headers is None else as_headers(headers)
    stamp = None if timestamp is None else as_microseconds(timestamp)
    size = record_overhead(value, key, pairs) + 8
    until: float | None = None
    while True:
        with self._lock:
            self.books.open()
            routes = self._known(topic)
            if routes is not None:
                if partition is not None or size > routes.record_bytes_max:
                    routes.check_record(partition, size)
                queues = self._linger or topic in self.boxes.open or self._session is None
                if not queues and self._outbox.buffered < self.config.buffer_bytes_max:
                    alone = express(
                        self, self._outbox, routes, self._settings, (value, key, pairs), stamp,
                        partition, self._delivery_timeout,
                    )  # fmt: skip
                    if alone is not None:
                        self._count(alone.batches)
                        self.books.close()
                        return Delivery(alone, 0)
                if not self.pressure.must_wait():
                    taken = _gather(self, topic, size, value, key, pairs, stamp, partition)
                    self.books.close()
                    return taken
            self.books.close()
        until = make_ready(self, topic, routes, until)


def _gather(
    self: Producer, topic: str, size: int, value: bytes | None, key: bytes | None,
    headers: Headers | None, timestamp: int | None, partition: int | None,
) -> Delivery:  # fmt: skip
    """Put a record into the open box of its topic, unless it is dropped (lock held)."""
    wide = headers is not None or timestamp is not None or partition is not None
    refused = self.pressure.refuse(topic, 1, size, wide=wide)
    if refused is not None:
        return Delivery(refused, 0)
    box = self.boxes.open.get(topic)
    if box is not None and not box.takes(size, wide=wide):
        self._seal(box)
        box = None
    box = box or self.boxes.add(topic, wide=wide)
    ordinal = box.add(size, value, key, headers, timestamp, partition)
    if self._linger == 0:
        self._minder.gathered(box)
    else:
        self._minder.expect(box.linger_until)
    return Delivery(box, ordinal)


def make_ready(
    self: Producer, topic: str, routes: TopicRoutes | None, until: float | None
) -> float | None:
    """Wait for what a send lacks (lock not held): to know the topic, or room."""
    if routes is None:
        self.learn(topic)
        return until
    return self.pressure.wait(until)
