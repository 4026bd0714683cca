"""The producer: records in, batches into lanes, answers back to deliveries.

`send` puts a record into its topic's open box without a lock. A full or lingering box is sealed
into batches, one per partition, which the sender copies into the lanes of their writers. One I/O
thread of the producer handles linger times, answers, deadlines and lost nodes; callers that wait do
its work meanwhile. Every batch carries producer id, epoch and sequence, so that sent twice it is
appended once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from penstock.client import fork_safety, process_exit
from penstock.client.api_hints import Elsewhere
from penstock.client.arrow.intake import Wanted
from penstock.client.arrow.send import ended, sending
from penstock.client.producer.batch_builder import Rows
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.delivery import BatchDelivery, Delivery, Receipt
from penstock.client.producer.encoding import encoders_of
from penstock.client.producer.hooks import hooked
from penstock.client.producer.pipeline import Pipeline
from penstock.client.producer.record_options import (
    RecordOptions,
    WorkOptions,
    is_plain,
    work_of_rows,
)
from penstock.client.producer.unthreaded import Unthreaded
from penstock.client.public_view import Shown
from penstock.client.remote.address import Place
from penstock.client.typed import K, Typed, V
from penstock.client.validation import HeadersLike, as_headers, check_columns
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.options import ProducerOptions

logger = logging.getLogger("penstock.producer")


class Producer(Typed[V, K], Elsewhere, Shown, ABC):
    """Sends records to topics. Made by `Client.producer`. Thread-safe. Its options are the fields
    of `penstock.client.producer.config.ProducerConfig`.

    The verbs hand over to a pipeline, which is given. How a producer is closed, its kind says.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.config = pipeline.config
        if self.config.on_send is not None:
            self.send = hooked(self.send, self.config.on_send)  # type: ignore[method-assign]
        encoders = encoders_of(self.config.value, self.config.key)
        if encoders is not None:
            self.send = encoders.sending(self.send)  # type: ignore[method-assign]
            self.send_batch = encoders.sending_batch(self.send_batch)  # type: ignore[method-assign]
        self._is_left = False
        self._know_parts()
        try:
            self._attach()
        except BaseException:
            self._leave()  # nobody gets it, and its thread would go on
            raise
        fork_safety.remember(self)

    def _know_parts(self) -> None:
        """Takes the parts of the pipeline that it uses. A forked child has others."""
        self._open = self._pipeline.boxes.seen
        self.unthreaded = Unthreaded(self._pipeline)

    # --- sending ---------------------------------------------------------------------------------
    def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        **options: Unpack[RecordOptions],
    ) -> Delivery:
        """Hands over one record; returns at once unless the producer's memory bound is reached.

        Args:
            value: None is a tombstone. With serializers (the producer's `value=` and `key=`) value
                and key are what these take.
            headers: names and values, as a mapping or as pairs.
            timestamp: microseconds since the epoch, or a datetime. Without one the record carries
                the time its batch was opened, at most `linger` ago.
            partition: where it goes, whatever its key is.
            delay, at: when a work queue may deliver it: seconds from now, or a datetime (or
                microseconds since the epoch). Consumers that are no share group get it at once.
            ttl: seconds from now after which a work queue delivers it to nobody.
            priority: 0 to 9.
            dedup_id: a work queue delivers one of the records with the same id and key.

        Raises `UnknownTopicError`, `RecordTooLargeError`, `BufferFullError`, `ClosedError`,
        TypeError for a value or key that is not bytes, `EncodeError` for one that its serializer
        does not take, ValueError for options out of range.
        """
        try:
            box = self._open[topic]
        except KeyError:
            self._ready()
        else:
            if (
                value.__class__ is bytes
                and headers is None
                and partition is None
                and (not options or is_plain(options))
            ):
                room = box.room - len(value) - 24
                if key is not None:
                    room = room - len(key) if key.__class__ is bytes else -1
                if room >= 0:
                    ordinal = next(box.ordinals)
                    box.items.extend((ordinal, value, key))
                    box.room = room
                    if not box.sealed or self._pipeline.got_in(box, ordinal):
                        return Delivery(box, ordinal)
        return self._pipeline.send_slowly(topic, value, key, headers, partition, options)

    def send_and_wait(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        **options: Unpack[RecordOptions],
    ) -> Receipt:
        """Sends one record without lingering and waits for its receipt (see `Delivery.result`)."""
        delivery = self.send(topic, value, key=key, headers=headers, partition=partition, **options)
        self.hurry(topic)
        return delivery.result(timeout)

    def hurry(self, topic: str) -> None:
        """Ends the linger of a topic's open box."""
        self._pipeline.hurry(topic)

    def send_batch(
        self,
        topic: str,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | None = None,
        partition: int | None = None,
        **work: Unpack[WorkOptions],
    ) -> BatchDelivery:
        """Hands over many records with one call; they leave at once, in order.

        The other columns are None or as long as `values`. Records are split into batches of at most
        `batch_bytes`, by partition of their keys unless `partition` is given. `delays`, `ats`,
        `ttls`, `priorities` and `dedup_ids` are columns of what `send` takes for one record; None
        in one of them says nothing of its record.
        """
        check_columns(topic, len(values), keys=keys, headers=headers, timestamps=timestamps)
        pairs = None if headers is None else [as_headers(entry) for entry in headers]
        partitions = None if partition is None else [partition] * len(values)
        told = work_of_rows(topic, len(values), work) if work else None
        bare: tuple[Any, Any] = values, keys  # bytes: serializers have done their work
        rows = Rows(*bare, pairs, timestamps, partitions, told)
        self._ready()
        return BatchDelivery(self._pipeline.send_rows(topic, rows, partition))

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        value_column: str = "value",
        key_column: str | None = None,
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        partition: int | None = None,
    ) -> BatchDelivery:
        """Hands over every row of an Arrow stream; they leave at once, in order, as from
        `send_batch`.

        Args:
            data: anything with `__arrow_c_stream__`: tables and record batches of pyarrow, frames
                of Polars, DuckDB relations, batches of a consumer. It is read as it comes.
            value_column: binary or string, of any layout. Null: a tombstone.
            key_column: the same. Null: no key. Rows go to the partitions of their keys unless
                `partition` is given; rows without a key, batch by batch, to one after the other.
            timestamp_column: a timestamp, or int64 microseconds since the epoch. Null: now.
            headers_column: list<struct<name, value>>, as batches of a consumer have it, or a map.

        Waits for room like `send` (`block_timeout`) as often as it takes. Raises TypeError for
        columns of other types, ValueError for columns that are not there, and what `send` raises.
        Raises `PenstockError` where the stream itself fails; a note on the error says how many rows
        had been handed over by then.
        """
        wanted = Wanted(value_column, key_column, timestamp_column, headers_column)
        self._ready()
        return ended(sending(self._pipeline, topic, data, wanted, partition))

    # --- waiting ---------------------------------------------------------------------------------
    def flush(self, timeout: float | None = None) -> None:
        """Sends what is open and waits until everything sent so far is acknowledged.

        Raises `PenstockTimeout` (nothing is given up by it), or `DeliveryError` for failed
        deliveries that nobody looked at.
        """
        self._pipeline.flush(timeout)

    # --- life ------------------------------------------------------------------------------------
    def _ready(self) -> None:
        """Attaches, where there is no attachment yet: a forked child makes its own once it
        sends."""
        if self._pipeline.state.settings is None:
            self._attach()

    def _attach(self) -> None:
        self._pipeline.attach(partial(process_exit.remember, self))

    def metrics(self) -> dict[str, int]:
        """Counters since the producer was made, and `buffered_bytes` now."""
        return self._pipeline.metrics()

    @property
    def producer_id(self) -> int:
        """The id under which this producer's batches are in the log; 0 while not attached."""
        return self._pipeline.state.producer_id

    @abstractmethod
    def close(self, timeout: float | None = 30.0) -> None:
        """Flushes, then leaves. Raises what `flush` raises; the producer is closed in any case."""

    def _flush_and_leave(self, timeout: float | None) -> None:
        if self._is_left:
            return
        try:
            state = self._pipeline.state
            if state.settings is not None and not state.is_closed:
                self.flush(timeout)
        finally:
            self._leave()

    def leave(self) -> None:
        """Closes without a flush: unacknowledged records fail. Blocks for the thread's end."""
        if not self._pipeline.state.is_closed:
            self._leave()

    def _leave(self) -> None:
        """Ends the producer. After an interrupt it may be called again."""
        self._pipeline.leave()
        fork_safety.forget(self)
        process_exit.forget(self)
        self._is_left = True

    def _described(self) -> str:
        state = self._pipeline.state
        counts = self.metrics()
        who = "".join(f"{name!r}, " for name in (state.terms.name, self.config.client_id) if name)
        return (
            f"{who}{'closed' if state.is_closed else 'open'}: {counts['records']} records in "
            f"batches, {counts['acknowledged']} acknowledged, {counts['failed']} failed"
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
        """Gives up what belongs to the parent; the next `send` attaches again (rule 7)."""
        self._pipeline.after_fork_in_child()
        self._know_parts()


class PlainProducer(Producer[V, K]):
    """A producer whose records count one by one."""

    def __init__(self, socket: Place, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(Pipeline(socket, ProducerConfig(**options)))

    def close(self, timeout: float | None = 30.0) -> None:
        self._flush_and_leave(timeout)
