"""The producer: records in, batches into lanes, answers back to deliveries.

`send` puts a record into its topic's open box without a lock; a full or lingering box is sealed
into batches, one per partition, which the outbox copies into the lanes of their writers. One thread
of the producer, the minder, looks after linger times, answers, deadlines and the node's comings and
goings; callers that wait do the minding themselves meanwhile.
Every batch carries producer id, epoch and sequence, so that sent twice it is appended once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from penstock.client import fork_safety, process_exit
from penstock.client.api_hints import Elsewhere
from penstock.client.arrow.send import send_arrow
from penstock.client.backoff import Retries
from penstock.client.producer import batch_builder
from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.backpressure import Pressure
from penstock.client.producer.books import Books
from penstock.client.producer.callbacks import Callbacks, Failures, Flushed
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.delivery import (
    AnyDelivery,
    BatchDelivery,
    BatchReceipt,
    Box,
    Delivery,
    DoneCallback,
    Receipt,
)
from penstock.client.producer.hooks import hooked
from penstock.client.producer.io_thread import Minder
from penstock.client.producer.repair import mend
from penstock.client.producer.routes import BATCH_OVERHEAD, Batch, TopicRoutes
from penstock.client.producer.sender import IN_FLIGHT_EAGER, Outbox
from penstock.client.producer.slow_path import make_ready, send_slowly
from penstock.client.producer.topic_lookup import learn
from penstock.client.producer.unthreaded import Unthreaded
from penstock.client.public_view import Shown
from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.session import Session
from penstock.client.validation import (
    HeadersLike,
    as_headers,
    check_columns,
)
from penstock.core import errors as er
from penstock.core.codecs import CODECS
from penstock.ipc import layout as lo

if TYPE_CHECKING:
    from penstock.client.options import ProducerOptions

logger = logging.getLogger("penstock.producer")

_blank = Delivery.__new__


class Producer(Elsewhere, Shown):
    """Sends records to topics. Made by `Client.producer`. Thread-safe. Its options are the fields
    of `penstock.client.producer.config.ProducerConfig`."""

    def __init__(self, socket: Place, **options: Unpack[ProducerOptions]) -> None:
        self.config = ProducerConfig(**options)
        self.socket = socket
        self.client_id = self.config.client_id
        self._codec = CODECS[self.config.compression]
        self._linger = self.config.linger
        self._delivery_timeout = self.config.delivery_timeout
        self.timeout = self.config.timeout
        if self.config.on_send is not None:
            self.send = hooked(self.send, self.config.on_send)  # type: ignore[method-assign]
        self._closed = self._is_left = False
        self.incarnation = 0
        self._reset()
        try:
            self._attach()
        except BaseException:
            self._leave()  # nobody gets it, and its thread would go on
            raise
        fork_safety.remember(self)

    def _reset(self) -> None:
        """Everything that a forked child must not inherit."""
        config = self.config
        self.books = Books(self.mend)
        self._lock = self.books.lock
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
            self, self.books, self._outbox, Retries(config.retry_backoff, config.retry_backoff_max)
        )
        self._failed = Failures()
        self.callbacks = Callbacks()
        self.pressure = Pressure(
            self, self._outbox, self._minder, policy=config.on_full,
            bytes_max=config.buffer_bytes_max, block_timeout=config.block_timeout,
        )  # fmt: skip
        self.unthreaded = Unthreaded(self, self.books, self._outbox, self._minder)
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
            return send_slowly(self, topic, value, key, headers, timestamp, partition)
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
        return send_slowly(self, topic, value, key, headers, timestamp, partition)

    def _got_in(self, box: Box, ordinal: int) -> bool:
        """Whether a record appended to a box that was being sealed is part of it."""
        with self._lock:
            self.books.open()
            got_in = box.holds(ordinal)
            self.books.close()
        return got_in

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
            self.books.open()
            box = self.boxes.open.get(topic)
            if box is not None:
                self._seal(box)
            self.books.close()

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
        partitions = None if partition is None else [partition] * len(values)
        rows = batch_builder.Rows(values, keys, pairs, timestamps, partitions)
        until: float | None = None
        while True:
            with self._lock:
                self.books.open()
                routes = self._known(topic)
                if routes is not None:
                    routes.check_partition(partition)
                    if topic in self.boxes.open:
                        self._seal(self.boxes.open[topic])
                    if not self.pressure.must_wait():
                        box = self._launch_rows(topic, rows, routes)
                        self.books.close()
                        return BatchDelivery(box)
                self.books.close()
            until = make_ready(self, topic, routes, until)

    def _launch_rows(self, topic: str, rows: batch_builder.Rows, routes: TopicRoutes) -> Box:
        """Send many records on their way, unless they are dropped (lock held)."""
        refused = self.pressure.refuse(topic, len(rows.values), rows.values)
        if refused is not None:
            return refused
        box = self.boxes.new(topic)
        box.sealed = True
        box.count = len(rows.values)
        if rows.values:
            batch_builder.check_rows(rows, routes)
            try:
                self._launch(box, rows, routes)
            except Exception as error:
                self._outbox.fail(error)
                raise
            self.boxes.closed(box)
        return box

    send_arrow = send_arrow

    def flush(self, timeout: float | None = None) -> None:
        """Send what is open and wait until everything sent so far is acknowledged.

        Raises `PenstockTimeout` (nothing is given up by it), or `DeliveryError` for failed
        deliveries that nobody looked at.
        """
        with self._lock:
            self.books.open()
            self._check_usable()
            self.seal_open(None)
            flushed = Flushed(self._outbox, self.callbacks)
            self.books.close()
        if not self._minder.wait(flushed, timeout):
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
            self.books.open()
            error = self._failed.error()
            self._failed = Failures()
            self.books.close()
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

        if not is_done() and not self._minder.wait(is_done, timeout):
            raise er.PenstockTimeout(
                f"no acknowledgement for {box.topic!r} within {timeout} s{self._outbox.why()}; "
                "the record is still on its way"
            )

    def call_when_done(self, delivery: AnyDelivery, box: Box, callback: DoneCallback) -> None:
        with self._lock:
            self.books.open()
            is_done = delivery.done()
            if not is_done:
                self.callbacks.expect(delivery, box, callback)
                self._minder.attend()
            self.books.close()
        if is_done:
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
            self.boxes.closed(box)

    def _give_up(self, box: Box, error: Exception) -> None:
        """Close an open box, and send nothing of it."""
        if self.boxes.close(box) is not None:
            self._counts["failed"] += box.count
            logger.warning("%d records for %r were not sent: %s", box.count, box.topic, error)
            self._fail(box, error)
            self.boxes.closed(box)

    def _launch(self, box: Box, rows: batch_builder.Rows, topic: TopicRoutes | None) -> None:
        session = self._session
        if topic is None or session is None:
            self._counts["failed"] += box.count
            self._fail(box, er.UnknownTopicError(f"topic {box.topic!r} was deleted"))
            return
        batches = batch_builder.seal(box, rows, topic, self._settings)
        self.boxes.closing = box  # all of them leave, or none: see `mend`
        self._outbox.post(batches)
        self._count(batches)

    mend = mend

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
        self._tell_error(box.topic, -1, box.count, error)
        if box.callbacks:
            self.callbacks.take(box)
            self._minder.nudge()

    def _known(self, topic: str) -> TopicRoutes | None:
        """Where a topic's records go, None where it is to be looked up (lock held). Raises where
        no record may be sent now."""
        if self._closed:
            self._check_usable()
        return self._outbox.topics.get(topic)

    learn = learn

    def _finished(self, batch: Batch) -> None:
        """The outbox settled a batch: queue its callbacks, count it."""
        is_dropped = isinstance(batch.error, er.DroppedError)  # by the policy, which counts it
        if batch.error is not None and not is_dropped:
            self._failed.note(batch)
        box = batch.box
        if box.callbacks and box.done:
            self.callbacks.take(box)
            self._minder.nudge()
        if not is_dropped:
            self._counts["acknowledged" if batch.error is None else "failed"] += batch.count
        if batch.error is None and self.config.on_delivery is not None:
            self.callbacks.call_soon(partial(self.config.on_delivery, BatchReceipt.of(batch)))
            self._minder.nudge()
        elif batch.error is not None and not is_dropped:
            self._tell_error(batch.route.topic, batch.route.partition, batch.count, batch.error)

    def _tell_error(self, topic: str, partition: int, count: int, error: Exception) -> None:
        if self.config.on_error is not None:
            self.callbacks.call_soon(partial(self.config.on_error, topic, partition, count, error))
            self._minder.nudge()

    # --- life ------------------------------------------------------------------------------------
    def _attach(self) -> None:
        session = Session.attach(
            self.socket, lo.KIND_PRODUCER, client_id=self.client_id, timeout=self.timeout
        )
        self._minder.start(session)  # first: an interrupt leaves none that nobody minds
        self.adopt(session)
        process_exit.remember(self)

    def adopt(self, session: Session) -> None:
        """Work with this attachment from now on (lock held, or nobody else there yet)."""
        self._session = session
        self._settings = batch_builder.SealSettings.at(
            session, self._codec, self.config.batch_bytes
        )
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
        if self._is_left:
            return
        try:
            if self._session is not None and not self._closed:
                self.flush(timeout)
        finally:
            self._leave()

    def _leave(self) -> None:
        """End the producer. Ended by an interrupt, it may be done again."""
        with self._lock:
            self.books.open()
            self._closed = True
            self.books.close()
        self._minder.stop()
        with self._lock:
            self.books.open()
            self.wind_up()
            self.books.close()
        self.callbacks.run()
        self._let_go()
        self._is_left = True

    def _let_go(self) -> None:
        """Give back what is not needed any more."""
        session = self._session or self._minder.session
        if session is not None:
            session.close()
        self._session = None
        fork_safety.forget(self)
        process_exit.forget(self)

    def wind_up(self) -> None:
        """Nothing more is sent or waited for (lock held): the last duty of the producer's thread,
        whatever becomes of who closes it."""
        left = er.ClosedError("the producer was closed before these records were acknowledged")
        for box in list(self.boxes.open.values()):
            self._give_up(box, left)
        self._open.clear()
        self._outbox.leave(left)
        self.pressure.close()

    def _described(self) -> str:
        counts, state = self._counts, "closed" if self._closed else "open"
        who = f"{self.client_id!r}, " if self.client_id else ""
        return (
            f"{who}{state}: {counts['records']} records in batches, "
            f"{counts['acknowledged']} acknowledged, {counts['failed']} failed"
        )

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
        """Give up what belongs to the parent; the next `send` attaches again (rule 7)."""
        session, links = self._session, list(self._outbox.links.values())
        self.incarnation += 1
        self._reset()
        for link in links:
            link.detach()
        if session is not None:
            session.close(polite=False)

    def _check_usable(self) -> None:
        if self._closed:
            raise er.ClosedError(f"this producer is closed{process_exit.hint()}")
