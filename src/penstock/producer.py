"""The producer: records in, batches into lanes, answers back to deliveries.

`send` puts a record into its topic's open box without a lock; a full or lingering box is sealed
into batches, one per partition, which the outbox copies into the lanes of their writers. One thread
of the producer, the minder, looks after linger times, answers, deadlines and the node's comings and
goings; callers that wait do the minding themselves meanwhile.
Every batch carries producer id, epoch and sequence, so that sent twice it is appended once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from penstock import forks, sealing
from penstock.arguments import (
    HeadersLike,
    as_bytes,
    as_headers,
    as_microseconds,
    check_columns,
)
from penstock.arrow.sending import send_arrow
from penstock.boxes import Boxes
from penstock.core import errors as er
from penstock.core.codecs import CODECS
from penstock.core.encode import record_overhead
from penstock.delivery import (
    AnyDelivery,
    Batch,
    BatchDelivery,
    Box,
    Delivery,
    DoneCallback,
    Receipt,
)
from penstock.elsewhere import Elsewhere
from penstock.express import express
from penstock.ipc import layout as lo
from penstock.minder import Minder
from penstock.outbox import IN_FLIGHT_EAGER, Outbox
from penstock.outcomes import Callbacks, Failures, Flushed
from penstock.pressure import Pressure
from penstock.producerconfig import ProducerConfig
from penstock.remote.address import Place, RemoteAddress
from penstock.retrying import Retries
from penstock.routes import BATCH_OVERHEAD, TopicRoutes, learn
from penstock.session import Session
from penstock.unthreaded import Unthreaded

if TYPE_CHECKING:
    from penstock.options import ProducerOptions

logger = logging.getLogger("penstock.producer")

_blank = Delivery.__new__


class Producer(Elsewhere):
    """Sends records to topics. Made by `Client.producer`. Thread-safe. Its options are the fields
    of `penstock.producerconfig.ProducerConfig`."""

    _asks_each_time = False  # for a topic may refuse records though it is known

    def __init__(self, socket: Place, **options: Unpack[ProducerOptions]) -> None:
        self.config = ProducerConfig(**options)
        self.socket = socket
        self.client_id = self.config.client_id
        self._codec = CODECS[self.config.compression]
        self._linger = self.config.linger
        self._delivery_timeout = self.config.delivery_timeout
        self.timeout = self.config.timeout
        self._closed = False
        self.incarnation = 0
        self._reset()
        self._attach()
        forks.remember(self)

    def _reset(self) -> None:
        """Everything that a forked child must not inherit."""
        config = self.config
        self._lock = threading.Lock()
        self.boxes = Boxes(
            self,
            room=config.batch_bytes - BATCH_OVERHEAD,
            linger=self._linger,
            delivery_timeout=self._delivery_timeout,
        )
        self._open = self.boxes.seen
        self._session: Session | None = None
        self._outbox = self._new_outbox()
        self._minder = Minder(
            self, self._lock, self._outbox, Retries(config.retry_backoff, config.retry_backoff_max)
        )
        self._failed = Failures()
        self.callbacks = Callbacks()
        self.pressure = Pressure(
            self, self._outbox, self._minder, policy=config.on_full,
            bytes_max=config.buffer_bytes_max, block_timeout=config.block_timeout,
        )  # fmt: skip
        self.unthreaded = Unthreaded(self, self._lock, self._outbox, self._minder)
        self._counts = dict.fromkeys(("records", "batches", "bytes", "acknowledged", "failed"), 0)

    def _new_outbox(self) -> Outbox:
        config = self.config
        return Outbox(
            self.socket,
            level=config.level(remote=isinstance(self.socket, RemoteAddress)),
            committed=config.acks == "all",
            idempotent=config.idempotent,
            delivery_timeout=config.delivery_timeout,
            open_lane=lambda writer: self._minder.open_lane(writer),
            finished=self._finished,
            retries=Retries(config.retry_backoff, config.retry_backoff_max),
        )

    # --- sending ---------------------------------------------------------------------------------
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Hand over one record; returns at once unless the producer's memory bound is reached.

        `value` None is a tombstone. `timestamp` in microseconds since the epoch (or a datetime);
        without one the record carries the time its box was opened, at most `linger` ago.
        Raises `UnknownTopicError`, `RecordTooLargeError`, `BufferFullError`, `ClosedError`,
        TypeError for a value or key that is not bytes."""
        try:
            box = self._open[topic]
        except KeyError:
            return self._send_slowly(topic, value, key, headers, timestamp, partition)
        if value.__class__ is bytes and headers is None and timestamp is partition is None:
            room = box.room - len(value) - 24
            if key is not None:
                room = room - len(key) if key.__class__ is bytes else -1
            if room >= 0:
                ordinal = box.next_ordinal()
                box.extend((ordinal, value, key))
                box.room = room
                if not box.sealed or self._got_in(box, ordinal):
                    delivery = _blank(Delivery)  # without __init__, which costs 100 ns
                    delivery._box = box
                    delivery._ordinal = ordinal
                    return delivery
        return self._send_slowly(topic, value, key, headers, timestamp, partition)

    def _got_in(self, box: Box, ordinal: int) -> bool:
        """Whether a record appended to a box that was being sealed is part of it."""
        with self._lock:
            return box.holds(ordinal)

    def _send_slowly(
        self, topic: str, value: Any, key: Any, headers: HeadersLike | None,
        timestamp: int | datetime | None, partition: int | None,
    ) -> Delivery:  # fmt: skip
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        if key is not None:
            key = as_bytes("key", key)
        pairs = None if headers is None else as_headers(headers)
        stamp = None if timestamp is None else as_microseconds(timestamp)
        with self._lock:
            is_known = not (self._closed or self._asks_each_time)
            routes = (is_known and self._outbox.topics.get(topic)) or self._routes(topic)
            size = record_overhead(value, key, pairs) + 8
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
                    return Delivery(alone, 0)
            wide = pairs is not None or stamp is not None or partition is not None
            refused = self.pressure.make_room(topic, 1, size, wide=wide)
            if refused is not None:
                return Delivery(refused, 0)
            box = self.boxes.open.get(topic)  # now: the lock may have been given up
            if box is not None and not box.takes(size, wide=wide):
                self._seal(box)
                box = None
            box = box or self.boxes.add(topic, wide=wide)
            ordinal = box.add(size, value, key, pairs, stamp, partition)
            if self._linger == 0:
                self._minder.gathered(box)
            else:
                self._minder.expect(box.linger_until)
        return Delivery(box, ordinal)

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one record without lingering and wait for its receipt (see `Delivery.result`)."""
        delivery = self.send(
            topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        self.hurry(topic)
        return delivery.result(timeout)

    def hurry(self, topic: str) -> None:
        """Let what is gathered for a topic linger no longer."""
        with self._lock:
            box = self.boxes.open.get(topic)
            if box is not None:
                self._seal(box)

    def send_batch(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | None = None,
        partition: int | None = None,
    ) -> BatchDelivery:
        """Hand over many records with one call; they leave at once, in order.

        The other columns are None or as long as `values`. Records are split into batches of at most
        `batch_bytes`, by partition of their keys unless `partition` is given.
        """
        check_columns(topic, len(values), keys=keys, headers=headers, timestamps=timestamps)
        pairs = None if headers is None else [as_headers(entry) for entry in headers]
        with self._lock:
            routes = self._routes(topic)
            routes.check_partition(partition)
            if topic in self.boxes.open:
                self._seal(self.boxes.open[topic])
            refused = self.pressure.make_room(topic, len(values), values)
            if refused is not None:
                return BatchDelivery(refused)
            routes = self._routes(topic)  # the lock was given up: they may be other ones now
            box = self.boxes.new(topic)
            box.sealed = True
            box.count = len(values)
            if values:
                partitions = None if partition is None else [partition] * len(values)
                rows = sealing.Rows(values, keys, pairs, timestamps, partitions)
                routes.check_rows(rows)
                try:
                    self._launch(box, rows, routes)
                except Exception:
                    box.looked_at = box.count  # by being raised here
                    raise
        return BatchDelivery(box)

    send_arrow = send_arrow

    def flush(self, timeout: float | None = None) -> None:
        """Send what is open and wait until everything sent so far is acknowledged.

        Raises `PenstockTimeout` (nothing is given up by it), or `DeliveryError` for failed
        deliveries that nobody looked at.
        """
        with self._lock:
            self._check_usable()
            self.seal_open(None)
            if not self._minder.wait(Flushed(self._outbox, self.callbacks), timeout):
                raise self.flush_timeout(timeout)
        self.raise_unseen()

    def flush_timeout(self, timeout: float | None) -> er.PenstockTimeout:
        outbox = self._outbox
        return er.PenstockTimeout(
            f"flush: {outbox.buffered} bytes are unacknowledged after {timeout} s{outbox.why()}"
        )

    def raise_unseen(self) -> None:
        """Raises `DeliveryError` for deliveries that have failed, and nobody has looked at."""
        with self._lock:
            failed, self._failed = self._failed, Failures()
        self.callbacks.run()
        error = failed.error()
        if error is not None:
            raise error

    # --- receipts (used by Delivery) -------------------------------------------------------------
    def await_box(self, box: Box, ordinal: int | None, timeout: float | None) -> None:
        """Wait until a box (or the record's batch in it) is done."""
        if box.incarnation != self.incarnation:
            raise er.ForkedClientError(
                "this delivery was made before fork(); its outcome belongs to the parent process"
            )

        def is_done() -> bool:
            return box.done if ordinal is None else box.is_done(ordinal)

        if is_done():
            return
        with self._lock:
            if not self._minder.wait(is_done, timeout):
                raise er.PenstockTimeout(
                    f"no acknowledgement for {box.topic!r} within {timeout} s{self._outbox.why()}; "
                    "the record is still on its way"
                )

    def call_when_done(self, delivery: AnyDelivery, box: Box, callback: DoneCallback) -> None:
        with self._lock:
            if not delivery.done():
                box.callbacks.append((delivery, callback))
                self._minder.attend()
                return
        Callbacks.call(delivery, callback)

    # --- boxes and batches (lock held) -----------------------------------------------------------
    def seal_open(self, now: float | None) -> bool:
        """Seal boxes that have lingered enough (all, if `now` is None). True if there was one."""
        due = self.boxes.due(now)
        for box in due:
            self._seal(box)
        return bool(due)

    def seal_gathered(self) -> None:
        """Seal what is open without a linger, unless many batches of its topic wait already: more
        of them would only be more to send, once they can go."""
        for box in self.boxes.due(None):
            topic = self._outbox.topics.get(box.topic)
            if topic is None or not topic.is_behind(IN_FLIGHT_EAGER):
                self._seal(box)

    def _seal(self, box: Box) -> None:
        """Close a box and send its batches on their way."""
        rows = self.boxes.close(box)
        if rows is not None:
            self._launch(box, rows, self._outbox.topics.get(box.topic))

    def _give_up(self, box: Box, error: Exception) -> None:
        """Close an open box, and send nothing of it."""
        if self.boxes.close(box) is not None:
            self._counts["failed"] += box.count
            logger.warning("%d records for %r were not sent: %s", box.count, box.topic, error)
            self._fail(box, error)

    def _launch(self, box: Box, rows: sealing.Rows, topic: TopicRoutes | None) -> None:
        session = self._session
        if topic is None or session is None:
            self._counts["failed"] += box.count
            self._fail(box, er.UnknownTopicError(f"topic {box.topic!r} was deleted"))
            return
        try:
            batches = sealing.seal(box, rows, topic, self._settings)
        except BaseException as error:  # of a caller's making, like a str among the values
            known = error if isinstance(error, Exception) else None
            self._fail(box, known or er.PenstockError(f"interrupted by {error!r}"))
            raise
        self._outbox.post(batches)
        self._count(batches)

    def _count(self, batches: Sequence[Batch]) -> None:
        """Batches have left."""
        counts = self._counts
        counts["batches"] += len(batches)
        for batch in batches:
            counts["records"] += batch.count
            counts["bytes"] += batch.length
        self._minder.posted()

    def _fail(self, box: Box, error: Exception) -> None:
        """None of a box's records can be sent."""
        self._failed.note(box.fail(error))
        if box.callbacks:
            self.callbacks.take(box)
            self._minder.nudge()

    def _routes(self, topic: str) -> TopicRoutes:
        """Where a topic's records go, looked up if need be (lock held, or given up meanwhile)."""
        self._check_usable()
        known = self._outbox.topics.get(topic)
        if known is not None:
            return known
        if self._session is None:
            self._attach()  # a forked child makes its own attachment
        outbox = self._outbox
        info = self._minder.find_topic(topic, self.timeout)  # may give the lock up for long
        self._check_usable()
        if topic in outbox.topics:
            return outbox.topics[topic]  # learnt meanwhile: two routes would share their sequences
        assert self._session is not None
        routes = learn(self._session, info)
        outbox.adopt(routes)
        for writer in {route.writer for route in routes.routes} - set(outbox.links):
            self._minder.open_lane(writer)  # refused now, and not once records wait for it
        outbox.topics[topic] = routes
        self.boxes.know(topic)
        return outbox.topics[topic]

    def _finished(self, batch: Batch) -> None:
        """The outbox settled a batch: count it, queue its callbacks."""
        if isinstance(batch.error, er.DroppedError):
            pass  # by the policy, which counts it
        elif batch.error is not None:
            self._counts["failed"] += batch.count
            self._failed.note(batch)
        else:
            self._counts["acknowledged"] += batch.count
        box = batch.box
        if box.callbacks and box.done:
            self.callbacks.take(box)
            self._minder.nudge()

    # --- life ------------------------------------------------------------------------------------
    def _attach(self) -> None:
        session = Session.attach(
            self.socket, lo.KIND_PRODUCER, client_id=self.client_id, timeout=self.timeout
        )
        self.adopt(session)
        self._minder.start(session)

    def adopt(self, session: Session) -> None:
        """Work with this attachment from now on (lock held, or nobody else there yet)."""
        self._session = session
        self._settings = sealing.SealSettings.at(session, self._codec, self.config.batch_bytes)
        self.pressure.publish(session)

    def metrics(self) -> dict[str, int]:
        """Counters since the producer was made, and `buffered_bytes` now."""
        return {
            **self._counts, **self.pressure.counts, "reconnects": self._minder.reconnects,
            **self._outbox.counts(),
        }  # fmt: skip

    @property
    def producer_id(self) -> int:
        """The id under which this producer's batches are in the log; 0 while not attached."""
        return self._session.producer_id if self._session is not None else 0

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush, then leave. Raises what `flush` raises; the producer is closed in any case."""
        if self._closed:
            return
        try:
            if self._session is not None:
                self.flush(timeout)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._closed = True
        self._minder.stop()
        with self._lock:
            left = er.ClosedError("the producer was closed before these records were acknowledged")
            for box in list(self.boxes.open.values()):
                self._give_up(box, left)
            self._open.clear()
            self._outbox.leave(left)
            self.pressure.close()
            session, self._session = self._session, None
        self.callbacks.run()
        if session is not None:
            session.close()
        forks.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout=5.0)
        except er.PenstockError as other:
            logger.warning("while leaving after %r: %s", error, other)

    def after_fork_in_child(self) -> None:
        """Give up everything that belongs to the parent; the next `send` attaches anew (rule 7)."""
        session, links = self._session, list(self._outbox.links.values())
        self.incarnation += 1
        self._reset()
        for link in links:
            link.detach()
        if session is not None:
            session.close(polite=False)

    def _check_usable(self) -> None:
        if self._closed:
            raise er.ClosedError("this producer is closed")
