"""The producer: records in, batches into lanes, acknowledgements back to deliveries.

`send` puts a record into its topic's open box without a lock; a full or lingering box is sealed into
batches, one per partition, which are copied into the lane of the partition's writer. One thread of
the producer (`penstock-producer`) minds linger times, acknowledgements, deadlines and the node's
comings and goings; callers that wait do the minding themselves meanwhile.

Every batch carries producer id, epoch and sequence, so a batch sent again is appended once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from penstock import forks, sealing
from penstock.core import errors as er
from penstock.core.encode import CODECS, Headers, record_overhead
from penstock.core.header import HEADER_BYTES
from penstock.delivery import Batch, BatchDelivery, BatchReceipt, Box, Delivery, Receipt
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Backoff, Doorbell, fence
from penstock.ipc.messages import TopicInfo
from penstock.routes import LaneLink, PartitionRoute, TopicRoutes, resequence
from penstock.session import Session

logger = logging.getLogger("penstock.producer")

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
Acks = Literal[0, 1, "all"]

BATCH_OVERHEAD: Final = 512
"""Room kept in a frame for headers and directory, in bytes."""
EXPIRE_EVERY: Final = 0.1
IN_FLIGHT_EAGER: Final = 8
"""With linger 0, batches of one record leave at once until so many are unacknowledged; then records
gather until answers come (Nagle's rule, in batches)."""
WAIT_MAX: Final = 0.5
_HEADERS_MAX: Final = 64


class Producer:
    """Sends records to topics. Made by `Client.producer`. Thread-safe.

    Args:
        linger: seconds a record may wait for company. 0 sends at once.
        batch_bytes: a box is sealed at this size. At most a quarter of the lane.
        compression: "none" or "lz4", per batch.
        acks: 0 = accepted into shared memory ("ring"), 1 = appended, "all" = on every in-sync
            replica (the same as 1 where there is one copy).
        durability: "fsynced" makes deliveries wait until their records are on stable storage.
        idempotent: False means: do not resend a batch whose outcome is unknown after reconnecting.
        buffer_bytes_max: bound of unacknowledged bytes in this producer.
        on_full: "block" waits up to `block_timeout`, "error" raises `BufferFullError`.
        delivery_timeout: seconds after which an unacknowledged delivery fails.
    """

    def __init__(
        self,
        socket: Path,
        *,
        client_id: str = "",
        linger: float = 0.002,
        batch_bytes: int = 256 << 10,
        compression: str = "none",
        acks: Acks = 1,
        durability: Literal["fsynced"] | None = None,
        idempotent: bool = True,
        buffer_bytes_max: int = 32 << 20,
        on_full: Literal["block", "error"] = "block",
        block_timeout: float = 30.0,
        delivery_timeout: float = 30.0,
        timeout: float = 5.0,
    ) -> None:
        _check("linger", linger, 0.0, 60.0)
        _check("batch_bytes", batch_bytes, 1 << 10, lo.LANE_CAPACITY_MAX // lo.FRAME_SHARE)
        _check("buffer_bytes_max", buffer_bytes_max, batch_bytes, 1 << 34)
        _check("delivery_timeout", delivery_timeout, 0.01, 86400.0)
        _check("block_timeout", block_timeout, 0.0, 86400.0)
        _one_of("compression", compression, tuple(CODECS))
        _one_of("acks", acks, (0, 1, "all"))
        _one_of("durability", durability, (None, "fsynced"))
        _one_of("on_full", on_full, ("block", "error"))
        if acks == 0 and durability is not None:
            raise er.ConfigError("acks=0 waits for no writer, so durability='fsynced' needs acks=1")
        self._socket = socket
        self._client_id = client_id
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._codec = CODECS[compression]
        self._acks = acks
        self._level = durability or ("ring" if acks == 0 else "appended")
        self._idempotent = idempotent
        self._buffer_max = buffer_bytes_max
        self._on_full = on_full
        self._block_timeout = block_timeout
        self._delivery_timeout = delivery_timeout
        self._timeout = timeout
        self._closed = False
        self._incarnation = 0
        self._reset()
        self._attach(timeout)
        forks.remember(self)

    def _reset(self) -> None:
        """Everything that a forked child must not inherit."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._boxes: dict[str, Box] = {}
        self._topics: dict[str, TopicRoutes] = {}
        self._links: dict[int, LaneLink] = {}
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._lost: str | None = None
        self._buffered = 0
        self._leading = False
        self._dozing = 0
        self._ticket = 0
        self._minder_until = 0.0
        self._next_expiry = 0.0
        self._failed: list[Batch] = []
        self._callbacks: deque[tuple[Delivery, Callable[[Delivery], object]]] = deque()
        self._counts = dict.fromkeys(
            ("records", "batches", "bytes", "acknowledged", "failed", "resent", "blocked",
             "reconnects", "rings"), 0,
        )  # fmt: skip

    # --- sending ------------------------------------------------------------------------------
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
        TypeError for a value or key that is not bytes.
        """
        box = self._boxes.get(topic)
        if (
            box is None
            or value.__class__ is not bytes
            or not headers is timestamp is partition is None
        ):
            return self._send_slowly(topic, value, key, headers, timestamp, partition)
        room = box.room - len(value) - 24  # type: ignore[arg-type]
        if key is not None:
            if key.__class__ is not bytes:
                return self._send_slowly(topic, value, key, headers, timestamp, partition)
            room -= len(key)
        if room < 0:
            return self._send_slowly(topic, value, key, headers, timestamp, partition)
        ordinal = box.next_ordinal()
        box.extend((ordinal, value, key, None, None, None))
        box.room = room
        if box.sealed and not self._got_in(box, ordinal):
            return self._send_slowly(topic, value, key, headers, timestamp, partition)
        return Delivery(box, ordinal)

    def _got_in(self, box: Box, ordinal: int) -> bool:
        """Whether a record appended to a box that was being sealed is part of it."""
        with self._lock:
            return box.holds(ordinal)

    def _send_slowly(
        self, topic: str, value: Any, key: Any, headers: HeadersLike | None,
        timestamp: int | datetime | None, partition: int | None,
    ) -> Delivery:  # fmt: skip
        value = _as_bytes("value", value)
        key = _as_bytes("key", key)
        pairs = as_headers(headers)
        stamp = as_microseconds(timestamp)
        with self._lock:
            routes = self._routes(topic)
            _check_partition(topic, partition, routes)
            size = record_overhead(value, key, pairs)
            if size > routes.record_bytes_max:
                raise er.RecordTooLargeError(
                    f"a record of {size} bytes for {topic!r} is over the topic's bound of "
                    f"{routes.record_bytes_max} bytes; raise record_bytes_max of the topic (and the "
                    "node's lane capacity, of which a record may take a quarter) or split it"
                )
            box = self._boxes.get(topic)
            if box is not None and box.room < size and box.items:
                self._seal(box)
                box = None
            self._await_room()
            box = self._boxes.get(topic) or self._open_box(topic)
            ordinal = box.next_ordinal()
            box.extend((ordinal, value, key, pairs, stamp, partition))
            box.room -= size
            if box.room <= 0 or (self._linger == 0 and self._is_eager()):
                self._seal(box)
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
        with self._lock:
            box = self._boxes.get(topic)
            if box is not None:
                self._seal(box)
        return delivery.result(timeout)

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
        for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if column is not None and len(column) != len(values):
                raise ValueError(
                    f"send_batch to {topic!r}: {len(values)} values but {len(column)} {name}"
                )
        pairs = None if headers is None else [as_headers(entry) for entry in headers]
        now = time.monotonic()
        with self._lock:
            routes = self._routes(topic)
            _check_partition(topic, partition, routes)
            open_box = self._boxes.get(topic)
            if open_box is not None:
                self._seal(open_box)
            box = Box(
                self, topic, 0, time.time_ns() // 1000, now, now + self._delivery_timeout,
                self._incarnation,
            )  # fmt: skip
            box.sealed = True
            box.count = len(values)
            if not values:
                return BatchDelivery(box)
            longest = max(map(len, filter(None, values)), default=0)
            if longest > routes.record_bytes_max - BATCH_OVERHEAD:
                raise er.RecordTooLargeError(
                    f"a record of {longest} bytes for {topic!r} is over the topic's bound of "
                    f"{routes.record_bytes_max} bytes"
                )
            self._await_room()
            partitions = None if partition is None else [partition] * len(values)
            self._launch(box, sealing.Rows(values, keys, pairs, timestamps, partitions), routes)
        return BatchDelivery(box)

    def flush(self, timeout: float | None = None) -> None:
        """Send what is open and wait until everything sent so far is acknowledged.

        Raises `PenstockTimeout` (nothing is given up by it), or `DeliveryError` for failed
        deliveries that nobody looked at.
        """
        with self._lock:
            self._check_usable()
            for box in list(self._boxes.values()):
                self._seal(box)
            if not self._wait(self._is_quiet, timeout):
                raise er.PenstockTimeout(
                    f"flush: {self._buffered} bytes are unacknowledged after {timeout} s{self._why()}"
                )
            failed, self._failed = self._failed, []
        self._run_callbacks()
        unseen = [
            (batch.route.topic, batch.route.partition, batch.error, batch.count - batch.looked_at)
            for batch in failed
            if batch.error is not None and batch.looked_at < batch.count
        ]
        if unseen:
            total = sum(entry[3] for entry in unseen)
            topic, partition, error, _ = unseen[0]
            raise er.DeliveryError(
                f"{total} records were not delivered; first: {topic}-{partition}: {error}",
                unseen,
            )

    # --- receipts (used by Delivery) ------------------------------------------------------------
    def durability_of(self, route: PartitionRoute) -> str:
        """The level that this producer's receipts for a partition state."""
        if self._level == "appended" and self._settings_of(route) == "fsync":
            return "fsynced"
        return self._level

    def _settings_of(self, route: PartitionRoute) -> str:
        topic = self._topics.get(route.topic)
        return topic.info.settings.durability if topic is not None else "os"

    def await_box(self, box: Box, ordinal: int | None, timeout: float | None) -> None:
        """Wait until a box (or the record's batch in it) is done."""
        if box.incarnation != self._incarnation:
            raise er.ForkedClientError(
                "this delivery was made before fork(); its outcome belongs to the parent process"
            )

        def is_done() -> bool:
            if not box.sealed:
                return False
            if box.error is not None or ordinal is None:
                return box.done
            return box.locate(ordinal)[0].done

        if is_done():
            return
        with self._lock:
            if not self._wait(is_done, timeout):
                raise er.PenstockTimeout(
                    f"no acknowledgement for {box.topic!r} within {timeout} s{self._why()}; the "
                    "record is still on its way"
                )

    def call_when_done(
        self, delivery: Delivery, box: Box, callback: Callable[[Delivery], object]
    ) -> None:
        with self._lock:
            if not delivery.done():
                box.callbacks.append((delivery, callback))
                return
        self._call(delivery, callback)

    # --- boxes and batches (lock held) ----------------------------------------------------------
    def _open_box(self, topic: str) -> Box:
        now = time.monotonic()
        box = Box(
            self, topic, self._batch_bytes - BATCH_OVERHEAD, time.time_ns() // 1000,
            now + self._linger, now + self._delivery_timeout, self._incarnation,
        )  # fmt: skip
        if self._linger == 0:
            box.room = 0
        self._boxes[topic] = box
        if box.linger_until < self._minder_until and self._session is not None:
            self._minder_until = box.linger_until
            self._session.doorbell.ring()
        return box

    def _is_eager(self) -> bool:
        return sum(len(link.flights) for link in self._links.values()) < IN_FLIGHT_EAGER

    def _seal(self, box: Box) -> None:
        """Close a box and send its batches on their way."""
        if self._boxes.get(box.topic) is box:
            del self._boxes[box.topic]
        if box.sealed:
            return
        box.sealed = True
        rows = sealing.close_lid(box)
        if rows.values:
            self._launch(box, rows, self._topics[box.topic])

    def _launch(self, box: Box, rows: sealing.Rows, topic: TopicRoutes) -> None:
        assert self._session is not None
        frame_max = lo.LANE_CAPACITY_MAX
        for link in self._links.values():
            frame_max = min(frame_max, link.sender.frame_max)
        frame_max = min(frame_max, self._session.welcome.lane_capacity // lo.FRAME_SHARE)
        limit = frame_max - lo.FRAME_BYTES - HEADER_BYTES - BATCH_OVERHEAD
        settings = sealing.SealSettings(
            self._session.producer_id, self._codec, min(self._batch_bytes, limit), limit
        )
        try:
            batches = sealing.seal(box, rows, topic, settings)
        except Exception as error:
            box.error = error
            raise
        touched: dict[int, PartitionRoute] = {}
        for batch in batches:
            self._buffered += batch.nbytes
            self._counts["batches"] += 1
            self._counts["records"] += batch.count
            self._counts["bytes"] += batch.nbytes
            batch.route.pending.append(batch)
            touched[id(batch.route)] = batch.route
        for route in touched.values():
            self._pump(route)
        self._reap()

    def _pump(self, route: PartitionRoute) -> None:
        """Copy waiting batches into the lane while there is room."""
        if not route.pending:
            return
        link = route.link
        if link is None:
            link = route.link = self._link(route.writer)
            if link is None:
                return
        wrote = False
        while route.pending:
            batch = route.pending[0]
            encoded = batch.encoded
            assert encoded is not None
            sequence = link.sender.try_write(route.page, encoded, encoded.length)
            if sequence is None:
                break
            wrote = True
            route.pending.popleft()
            link.flights[sequence] = batch
            route.in_flight[batch.sequence] = batch
            if self._level == "ring":
                self._finish(batch, None)
        if wrote:
            link.wake_writer()

    def _link(self, writer: int) -> LaneLink | None:
        """The lane to a writer, opened on first use; None while there is no node to ask."""
        link = self._links.get(writer)
        if link is not None or self._session is None or self._lost is not None:
            return link
        try:
            sender, doorbell = self._session.open_lane(writer, self._timeout)
        except er.NotConnectedError as error:
            self._lost = str(error)
            return None
        link = self._links[writer] = LaneLink(sender, doorbell)
        return link

    def _routes(self, topic: str) -> TopicRoutes:
        known = self._topics.get(topic)
        if known is not None:
            self._check_usable()
            return known
        if self._session is None and not self._closed:
            self._attach(self._timeout)  # a forked child: its own attachment
        self._check_usable()
        assert self._session is not None
        if self._lost is not None and not self._wait(lambda: self._lost is None, self._timeout):
            raise er.NotConnectedError(
                f"cannot look up topic {topic!r}: {self._lost}; no node came back at "
                f"{self._socket} within {self._timeout} s"
            )
        routes = self._learn(self._session.find_topic(topic, self._timeout))
        self._topics[topic] = routes
        return routes

    def _learn(self, info: TopicInfo) -> TopicRoutes:
        assert self._session is not None
        capacity = self._session.welcome.lane_capacity
        bound = capacity // lo.FRAME_SHARE - lo.FRAME_BYTES - HEADER_BYTES - BATCH_OVERHEAD
        if info.settings.record_bytes_max is not None:
            bound = min(bound, info.settings.record_bytes_max)
        return TopicRoutes(
            info,
            [
                PartitionRoute(
                    info.name, info.topic_id, number, page, page % self._session.writers,
                    self._session.page(page),
                )
                for number, page in enumerate(info.pages)
            ],
            bound,
        )  # fmt: skip

    # --- outcomes (lock held) -------------------------------------------------------------------
    def _reap(self) -> bool:
        """Take in acknowledgements, settle what became durable, refill lanes. True if any."""
        moved = False
        for link in list(self._links.values()):
            for ack in link.sender.acks():
                moved = True
                batch = link.flights.pop(ack.sequence, None)
                if batch is not None:
                    self._settle(batch, ack.base_offset, ack.append_timestamp, ack.error,
                                 ack.leader_epoch)  # fmt: skip
        for topic in self._topics.values():
            for route in topic.routes:
                if route.waiting_durable:
                    moved = self._settle_durable(route) or moved
                if route.pending:
                    self._pump(route)
        if moved:
            self._changed.notify_all()
        return moved

    def _settle(
        self, batch: Batch, base_offset: int, timestamp: int, error: int, leader_epoch: int
    ) -> None:
        route = batch.route
        route.in_flight.pop(batch.sequence, None)
        if error:
            self._refused(batch, er.ErrorCode(error))
            return
        batch.base_offset = base_offset
        batch.append_timestamp = timestamp
        batch.leader_epoch = leader_epoch
        if self._level == "fsynced" and not batch.done:
            route.waiting_durable.append(batch)
            self._settle_durable(route)
        else:
            self._finish(batch, None)

    def _settle_durable(self, route: PartitionRoute) -> bool:
        """Finish what stands below `durable` in the epoch that acknowledged it (rule 1)."""
        moved = False
        durable, epoch = route.state.durable, route.state.leader_epoch
        waiting = route.waiting_durable
        while waiting:
            batch = waiting[0]
            assert batch.base_offset is not None
            if batch.leader_epoch != epoch:  # another log now: the same bytes go there again
                waiting.popleft()
                self._counts["resent"] += 1
                route.pending.appendleft(batch)
                moved = True
            elif durable >= batch.base_offset + batch.count:
                waiting.popleft()
                self._finish(batch, None)
                moved = True
            else:
                break
        return moved

    def _refused(self, batch: Batch, code: er.ErrorCode) -> None:
        """A final refusal: this batch fails; the ones poisoned by it go again in a new epoch."""
        route = batch.route
        where = f"{route!r} at {self._socket}"
        if code == er.ErrorCode.POISONED:
            again = batch
            route.pending.appendleft(again)
            while route.in_flight:  # those behind it were refused for the same reason: take all
                _, later = route.in_flight.popitem()
                self._unlink(later)
                route.pending.insert(1, later)
            self._new_epoch(route)
            self._counts["resent"] += len(route.pending)
            return
        self._finish(
            batch,
            er.ProduceError(
                f"{where} refused a batch of {batch.count} records: {code.name.lower()}"
                f"{_ADVICE.get(code, '')}",
                code,
            ),
        )
        if code in (er.ErrorCode.UNKNOWN_PARTITION, er.ErrorCode.WRONG_TOPIC_ID):
            self._topics.pop(route.topic, None)  # gone or recreated: look it up anew next time
            for waiting in list(route.pending):
                self._finish(waiting, batch.error)
            route.pending.clear()
        elif code == er.ErrorCode.PARTITION_OFFLINE:
            pass  # nothing was consumed out of order: sequences stay as they are
        else:
            later = [route.in_flight.pop(key) for key in list(route.in_flight)]
            for item in later:
                self._unlink(item)
            route.pending.extendleft(reversed(later))
            self._new_epoch(route)

    def _unlink(self, batch: Batch) -> None:
        """Forget that a batch flies: its lane's answer no longer decides its fate."""
        link = batch.route.link
        if link is not None:
            for sequence, flying in list(link.flights.items()):
                if flying is batch:
                    del link.flights[sequence]

    def _new_epoch(self, route: PartitionRoute) -> None:
        """Everything not acknowledged is numbered anew under the next epoch (rule 4)."""
        route.epoch += 1
        self._renumber(route)
        self._pump(route)

    def _renumber(self, route: PartitionRoute, start: int = 0) -> None:
        sequence = start
        for batch in route.pending:
            assert batch.encoded is not None
            batch.encoded = resequence(batch.encoded, route.epoch, sequence)
            batch.sequence = sequence
            sequence += batch.count
        route.next_sequence = sequence

    def _finish(self, batch: Batch, error: Exception | None) -> None:
        if batch.done:
            batch.encoded = None
            return
        batch.done = True
        self._buffered -= batch.nbytes
        if error is not None:
            batch.error = error
            self._counts["failed"] += batch.count
            self._failed.append(batch)
        else:
            self._counts["acknowledged"] += batch.count
        if batch.sequence not in batch.route.in_flight:
            batch.encoded = None
        box = batch.box
        if box.callbacks and box.done:
            self._callbacks.extend(box.callbacks)
            box.callbacks = []
            if self._session is not None:
                self._session.doorbell.ring()

    def _expire(self, now: float) -> None:
        """Fail what is past its delivery timeout. What lies in a lane may still be written."""
        self._next_expiry = now + EXPIRE_EVERY
        for topic in list(self._topics.values()):
            for route in topic.routes:
                dropped = False
                while route.pending and route.pending[0].deadline <= now:
                    batch = route.pending.popleft()
                    dropped = True
                    self._finish(batch, er.DeliveryTimeout(
                        f"{batch.count} records for {route!r} found no room in the lane within "
                        f"{self._delivery_timeout} s and were not sent{self._why(route)}"
                    ))  # fmt: skip
                if dropped:
                    last = max(route.in_flight, default=None)
                    start = (
                        0 if last is None and route.next_sequence == 0 else self._resume_at(route)
                    )
                    self._renumber(route, start)
                for batch in list(route.in_flight.values()) + list(route.waiting_durable):
                    if batch.deadline <= now and not batch.done:
                        self._finish(batch, er.DeliveryTimeout(
                            f"{batch.count} records for {route!r} were not acknowledged within "
                            f"{self._delivery_timeout} s; they may still be written"
                            f"{self._why(route)}"
                        ))  # fmt: skip

    # --- waiting ---------------------------------------------------------------------------------
    def _wait(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Mind the lanes until `predicate()`; lock held on entry and exit, not while asleep."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._reap()
            if predicate():
                return True
            if self._closed and self._thread is None:
                raise er.ClosedError("the producer was closed while a call waited on it")
            left = WAIT_MAX if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            if self._leading or self._session is None:
                self._changed.wait(min(left, WAIT_MAX))
                continue
            self._leading = True
            try:
                self._doze(self._session.caller_bell, min(left, 0.1))
            finally:
                self._leading = False
                self._changed.notify_all()
            now = time.monotonic()
            if now >= self._next_expiry:
                self._expire(now)

    def _doze(self, bell: Doorbell, bound: float) -> None:
        """Sleep on a doorbell by the protocol of rule 13; gives the lock up meanwhile.

        The minder and one caller may doze at once; who wakes first publishes a fresh ticket for the
        one who still sleeps.
        """
        self._ticket += 1
        links = list(self._links.values())
        for link in links:
            link.sender.publish_sleeping(self._ticket)
        fence()
        if not any(link.sender.has_acks() for link in links):
            self._dozing += 1
            self._lock.release()
            try:
                bell.wait(bound)
            except er.ClosedError:
                pass  # the attachment was replaced meanwhile
            finally:
                self._lock.acquire()
                self._dozing -= 1
        self._ticket += 1
        ticket = self._ticket if self._dozing else 0
        for link in self._links.values():
            link.sender.publish_sleeping(ticket)
        if ticket:
            fence()  # the caller looks for acknowledgements next, for the sleeper too

    def _await_room(self) -> None:
        """Hold the caller back while too much is unacknowledged."""
        if self._buffered < self._buffer_max:
            return
        self._reap()
        if self._buffered < self._buffer_max:
            return
        self._counts["blocked"] += 1
        message = f"{self._buffered} bytes are unacknowledged (buffer_bytes_max={self._buffer_max})"
        if self._on_full == "error":
            raise er.BufferFullError(f"{message}{self._why()}")
        if not self._wait(lambda: self._buffered < self._buffer_max, self._block_timeout):
            raise er.BufferFullError(f"{message} for {self._block_timeout} s{self._why()}")

    def _is_quiet(self) -> bool:
        return not self._buffered and not self._callbacks

    def _why(self, route: PartitionRoute | None = None) -> str:
        """What is known about why nothing moves, for messages."""
        if self._lost is not None:
            return f": no node at {self._socket} ({self._lost})"
        for topic in self._topics.values():
            for each in topic.routes if route is None else [route]:
                status = each.state.status
                if status not in (lo.STATUS_ONLINE, lo.STATUS_ABSENT):
                    return f": {each!r} is {lo.STATUS_NAMES.get(status, status)} (errno {each.state.errno})"
        return ""

    # --- the minder thread -----------------------------------------------------------------------
    def _attach(self, timeout: float) -> None:
        self._session = Session.attach(
            self._socket, lo.KIND_PRODUCER, client_id=self._client_id, timeout=timeout
        )
        self._thread = threading.Thread(
            target=self._mind, args=(self._incarnation,), name="penstock-producer", daemon=True
        )
        self._thread.start()

    def _mind(self, incarnation: int) -> None:
        backoff = Backoff()
        retry_at, retry_delay = 0.0, 0.05
        while incarnation == self._incarnation:
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                moved = self._reap()
                for box in list(self._boxes.values()):
                    if now >= box.linger_until:
                        self._seal(box)
                        moved = True
                if now >= self._next_expiry:
                    self._expire(now)
                if self._lost is None and self._session is not None:
                    self._lost = self._session.farewell()
                    if self._lost is not None:
                        logger.warning("lost the node at %s: %s", self._socket, self._lost)
                        retry_at, retry_delay = now, 0.05
                if self._leading and moved and self._session is not None:
                    self._session.doorbell.ring()  # this thread took the ring meant for the caller
                if self._callbacks:
                    moved = True
                elif self._leading:
                    self._changed.wait(self._nap(now, WAIT_MAX))
                elif not moved:
                    bound = self._nap(now, backoff.bound())
                    if self._lost is not None:
                        bound = min(bound, max(retry_at - now, 0.001))
                    self._minder_until = now + bound
                    assert self._session is not None
                    self._doze(self._session.doorbell, bound)
                    self._minder_until = 0.0
            if moved:
                backoff.reset()
                self._run_callbacks()
            if self._lost is not None and time.monotonic() >= retry_at:
                if not self._reattach():
                    retry_at = time.monotonic() + retry_delay
                    retry_delay = min(retry_delay * 2, 1.0)

    def _nap(self, now: float, bound: float) -> float:
        for box in list(self._boxes.values()):
            bound = min(bound, box.linger_until - now)
        return max(bound, 0.0)

    def _reattach(self) -> bool:
        """Find the node that came back, keep producer id and lanes (rule 5)."""
        old = self._session
        assert old is not None
        try:
            session = Session.attach(
                self._socket, lo.KIND_PRODUCER, client_id=self._client_id, timeout=1.0,
                resume=old.producer_id,
            )  # fmt: skip
        except er.PenstockError as error:
            logger.info("no node yet at %s: %s", self._socket, error)
            return False
        with self._lock:
            if self._closed:
                session.close()
                return True
            same = session.node_uuid == old.node_uuid and session.producer_id == old.producer_id
            self._session = session
            self._counts["reconnects"] += 1
            self._resume_lanes(session, same)
            self._lost = None
            old.close(polite=False)
            self._changed.notify_all()
        logger.info("back at the node %s, %d lanes resumed", self._socket, len(self._links))
        return True

    def _resume_lanes(self, session: Session, same: bool) -> None:
        lost: list[LaneLink] = []
        for writer, link in list(self._links.items()):
            doorbell = session.resumed.pop(link.sender.name, None) if same else None
            if doorbell is None:
                lost.append(link)
                del self._links[writer]
                continue
            link.doorbell.close()
            link.doorbell = doorbell
            link.rung = 0
            link.wake_writer()
        for topic in self._topics.values():
            for route in topic.routes:
                if route.link in lost:
                    route.link = None
                route.state = session.page(route.page)
                route.writer = route.page % session.writers
        for link in lost:
            self._resend(link, same)
            link.sender.detach()
            link.doorbell.close()

    def _resend(self, link: LaneLink, same: bool) -> None:
        """A lane is gone: what flew in it goes again with the same sequence, or fails."""
        touched: dict[int, PartitionRoute] = {}
        for batch in reversed(list(link.flights.values())):
            route = batch.route
            route.in_flight.pop(batch.sequence, None)
            touched[id(route)] = route
            if batch.done or batch.encoded is None:
                continue
            if same and self._idempotent:
                route.pending.appendleft(batch)
                self._counts["resent"] += 1
            else:
                self._finish(batch, er.ProduceError(
                    f"the lane to {route!r} was lost and {batch.count} records in it with it; "
                    "they may or may not have been written"
                ))  # fmt: skip
        link.flights.clear()
        if not same:
            for topic in self._topics.values():
                for route in topic.routes:
                    for batch in route.pending:
                        self._finish(batch, er.NotConnectedError(
                            f"another node (another data folder) answers at {self._socket} now"
                        ))  # fmt: skip
            self._topics.clear()
            return
        for route in touched.values():
            self._pump(route)

    def _resume_at(self, route: PartitionRoute) -> int:
        """The sequence after the last one that was put into a lane."""
        flying = [batch.sequence + batch.count for batch in route.in_flight.values()]
        if flying:
            return max(flying)
        return route.next_sequence - sum(batch.count for batch in route.pending)

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                delivery, callback = self._callbacks.popleft()
            except IndexError:
                return
            self._call(delivery, callback)

    @staticmethod
    def _call(delivery: Delivery, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(delivery)
        except Exception:
            logger.exception("a delivery callback raised")

    # --- life ------------------------------------------------------------------------------------
    def metrics(self) -> dict[str, int]:
        """Counters since the producer was made, and `buffered_bytes` now."""
        return {**self._counts, "buffered_bytes": self._buffered}

    @property
    def producer_id(self) -> int:
        """The id under which this producer's batches are in the log; 0 before the first attach."""
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
            thread, self._thread = self._thread, None
            session = self._session
            if session is not None:
                session.doorbell.ring()
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with self._lock:
            for link in self._links.values():
                link.sender.mark_closed()
                link.sender.detach()
                link.doorbell.close()
            self._links.clear()
            self._boxes.clear()
            self._session = None
        if session is not None:
            session.close()
        forks.forget(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout=5.0)
        except er.PenstockError as other:
            logger.warning("while leaving after %r: %s", error, other)

    def after_fork_in_child(self) -> None:
        """Give up everything that belongs to the parent; the next `send` attaches anew (rule 7)."""
        session, links = self._session, self._links
        self._incarnation += 1
        self._reset()
        for link in links.values():
            link.sender.detach()
            link.doorbell.close()
        if session is not None:
            session.close(polite=False)

    def _check_usable(self) -> None:
        if self._closed:
            raise er.ClosedError("this producer is closed")


_ADVICE: Final = {
    er.ErrorCode.UNKNOWN_PARTITION: ": the topic was deleted; create it anew",
    er.ErrorCode.WRONG_TOPIC_ID: ": the topic was deleted and created anew since",
    er.ErrorCode.BATCH_TOO_LARGE: ": make batch_bytes smaller",
    er.ErrorCode.PARTITION_OFFLINE: ": its log is offline; see the node's log for the reason",
    er.ErrorCode.DUPLICATE_TOO_OLD: ": it was sent before, but too long ago to say where it is",
}


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise er.ConfigError(f"{name}={value!r} must lie between {low} and {high}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise er.ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def _as_bytes(what: str, value: Any) -> bytes | None:
    if value is None or value.__class__ is bytes:
        return value  # type: ignore[no-any-return]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a record's {what} is bytes, not {type(value).__name__}; encode it first")


def _check_partition(topic: str, partition: int | None, routes: TopicRoutes) -> None:
    if partition is not None and not 0 <= partition < len(routes.routes):
        raise er.UnknownTopicError(
            f"topic {topic!r} has partitions 0 to {len(routes.routes) - 1}; {partition} was asked for"
        )


def as_headers(headers: HeadersLike | None) -> Headers | None:
    """Headers as a tuple of (name, value) pairs. Raises TypeError, or ValueError above 64."""
    if headers is None:
        return None
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    if len(pairs) > _HEADERS_MAX:
        raise ValueError(f"a record takes at most {_HEADERS_MAX} headers, {len(pairs)} were given")
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"header {name!r}: a name is str and a value bytes or None")
    return pairs


def as_microseconds(timestamp: int | datetime | None) -> int | None:
    """Microseconds since the epoch of an int (as it is) or a datetime (naive = local time)."""
    if timestamp is None or timestamp.__class__ is int:
        return timestamp  # type: ignore[return-value]
    if isinstance(timestamp, datetime):
        return int(timestamp.timestamp() * 1e6)
    raise TypeError(f"a timestamp is int microseconds or a datetime, not {type(timestamp).__name__}")


__all__ = ["BatchReceipt", "Producer"]
