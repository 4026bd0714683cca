"""`Producer.send_arrow`: columns of an Arrow stream become batches without an object per record.

Each array of the stream is cut into slabs of about a batch for each partition; a slab's rows are
put into the order of their partitions, encoded, and handed to the outbox before the next one, so
that the producer's memory bound holds for streams of any length.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.client.arrow.intake import Part, Wanted, opened
from penstock.client.producer.batch_builder import SealSettings, address, append, runs
from penstock.client.producer.delivery import BatchDelivery, Box
from penstock.client.producer.partitioner import partitions_of_items
from penstock.client.producer.routes import Batch, PartitionRoute, TopicRoutes
from penstock.client.validation import HEADERS_MAX
from penstock.core.columns import BinaryColumn
from penstock.core.encode import PiecedBatch
from penstock.core.encode_columns import RecordColumns, encode_columns
from penstock.core.errors import PenstockError
from penstock.core.gather import Longs

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer

SLAB_BYTES_MAX: Final = 16 << 20
LANE_WAIT: Final = 0.05
"""Seconds that a slab waits for the lanes to take what came before it. While they do, it goes from
the stream's memory into the lane; otherwise it is copied out and waits in the buffer."""
RECORD_SLACK: Final = 32
"""What a record of its own costs a batch besides what `sizes` counts, in bytes."""


def send_arrow(
    self: Producer,
    topic: str,
    data: Any,
    *,
    value_column: str = "value",
    key_column: str | None = None,
    timestamp_column: str | None = None,
    headers_column: str | None = None,
    partition: int | None = None,
) -> BatchDelivery:
    """Hand over every row of an Arrow stream; they leave at once, in order, as from `send_batch`.

    Args:
        data: anything with `__arrow_c_stream__`: tables and record batches of pyarrow, frames of
            Polars, DuckDB relations, batches of a consumer. It is read as it comes.
        value_column: binary or string, of any layout. Null: a tombstone.
        key_column: the same. Null: no key. Rows go to the partitions of their keys unless
            `partition` is given; rows without a key, batch by batch, to one after the other.
        timestamp_column: a timestamp, or int64 microseconds since the epoch. Null: now.
        headers_column: list<struct<name, value>>, as batches of a consumer have it, or a map.

    Waits for room like `send` (`block_timeout`) as often as it takes. Raises TypeError for columns
    of other types, ValueError for columns that are not there, what `send` raises, and
    `PenstockError` where the stream itself fails; a note on the error says how many rows had been
    handed over by then.
    """
    steps = sending(
        self, topic, data, value_column=value_column, key_column=key_column,
        timestamp_column=timestamp_column, headers_column=headers_column, partition=partition,
    )  # fmt: skip
    try:
        while True:
            next(steps)
    except StopIteration as done:
        delivery: BatchDelivery = done.value
        return delivery


def sending(
    self: Producer,
    topic: str,
    data: Any,
    *,
    value_column: str,
    key_column: str | None,
    timestamp_column: str | None,
    headers_column: str | None,
    partition: int | None,
    patience: float = 0.0,
) -> Generator[None, None, BatchDelivery]:
    """`send_arrow`, slab by slab. Where there is no room for one, others may wait for it, up to
    `patience` seconds a slab; after that it is as the producer's policy says."""
    wanted = Wanted(value_column, key_column, timestamp_column, headers_column)
    with opened(data, wanted) as intake:
        _known(self, topic).check_partition(partition)
        self.hurry(topic)
        box = self.boxes.new(topic)
        try:
            with closing(intake.parts(box.opened)) as parts:
                for part in parts:
                    routes = _known(self, topic)
                    for slab in slabs(part, routes, self._settings, partition):
                        until = time.monotonic() + patience
                        while not _launch(self, box, slab, partition, until):
                            yield
                        yield
        except BaseException as error:
            if box.count:  # a part is no whole
                known = error if isinstance(error, Exception) else None
                with self._lock:
                    self.books.open()
                    self._outbox.fail(known or PenstockError(f"interrupted by {error!r}"))
                    self.books.close()
            error.add_note(f"send_arrow to {topic!r}: {box.count} rows had been handed over")
            raise
        finally:
            box.sealed = True
    return BatchDelivery(box)


def _known(self: Producer, topic: str) -> TopicRoutes:
    """Where a topic's records go, looked up if need be."""
    while True:
        with self._lock:
            self.books.open()
            routes = self._known(topic)
            self.books.close()
        if routes is not None:
            return routes
        self.learn(topic)


def slabs(
    part: Part, routes: TopicRoutes, settings: SealSettings, partition: int | None
) -> Iterator[RecordColumns]:
    """Rows of about a batch for each partition that they may go to."""
    sizes = part.values.lengths + 5
    if part.keys is not None:
        sizes += part.keys.lengths + 5
    if part.timestamps is not None:
        sizes += 8
    if part.headers is not None:
        most = int(part.headers.counts.max())
        if most > HEADERS_MAX:
            raise ValueError(f"a record takes at most {HEADERS_MAX} headers, {most} were given")
        sizes += 64 * part.headers.counts
    routes.check_size(int(sizes.max()) + RECORD_SLACK)
    spread = len(routes.routes) if part.keys is not None and partition is None else 1
    for start, stop in runs(sizes, min(settings.batch_bytes * spread, SLAB_BYTES_MAX)):
        yield RecordColumns(
            part.values.cut(start, stop),
            None if part.keys is None else part.keys.cut(start, stop),
            None if part.timestamps is None else part.timestamps[start:stop],
            None if part.headers is None else part.headers.cut(start, stop),
        )


def _launch(
    self: Producer, box: Box, slab: RecordColumns, partition: int | None, until: float
) -> bool:
    """Encode a slab and send it on its way, once there is room. False, where there is none now:
    others are to wait for it `until` then."""
    room_until: float | None = None
    is_patient = True
    while True:
        routes = _known(self, box.topic)
        if is_patient and routes.has_pending:
            is_patient = False
            self._minder.wait(partial(_has_left, routes), LANE_WAIT)
        with self._lock:
            self.books.open()
            if self._outbox.topics.get(box.topic) is not routes:
                self.books.close()
                continue
            if self.pressure.is_full and time.monotonic() < until:
                self._minder.reap()
                if self.pressure.is_full:
                    self.books.close()
                    return False
            if not self.pressure.must_wait():
                _launch_slab(self, box, slab, routes, partition)
                self.books.close()
                return True
            self.books.close()
        room_until = self.pressure.wait(room_until)


def _has_left(routes: TopicRoutes) -> bool:
    return not routes.has_pending


def _launch_slab(
    self: Producer, box: Box, slab: RecordColumns, routes: TopicRoutes, partition: int | None
) -> None:
    """Encode a slab and send it on its way, unless it is dropped (lock held)."""
    if slab.headers is not None:
        routes.check_size(int(slab.sizes().max()) + RECORD_SLACK)
    size = slab.values.nbytes + (0 if slab.keys is None else slab.keys.nbytes)
    refused = self.pressure.refuse(box.topic, len(slab.values), size)
    if refused is not None:
        route = routes.routes[partition or 0]
        box.batches.append(Batch.refused(box, route, len(slab.values), refused.error))
        box.count += len(slab.values)
        return
    box.opened = time.time_ns() // 1000
    box.deadline = time.monotonic() + self._delivery_timeout
    batches: list[Batch] = []
    _seal(batches, box, slab, routes, self._settings, partition)
    self.boxes.closing = box  # all of them leave, or none: see `Producer.mend`
    box.batches += batches
    box.count += len(slab.values)
    self._outbox.post(batches)
    for batch in batches:  # what found no room in a lane outlives the stream's memory
        if isinstance(batch.encoded, PiecedBatch):
            batch.encoded = batch.encoded.settled()
    self._count(batches)
    self.boxes.closed(box)


def _seal(
    batches: list[Batch], box: Box, slab: RecordColumns, topic: TopicRoutes,
    settings: SealSettings, partition: int | None,
) -> None:  # fmt: skip
    """Encode a slab's rows, partition by partition."""
    total = len(topic.routes)
    if partition is not None or slab.keys is None or total == 1:
        route = topic.routes[topic.next_sticky() if partition is None else partition]
        if slab.headers is None:  # it was cut to fit a batch
            _encode(batches, box, slab, route, settings)
        else:
            _seal_run(batches, box, slab, route, settings)
        return
    chosen = choose(slab.keys, topic)
    order = np.argsort(chosen.astype(np.uint16) if total < 1 << 16 else chosen, kind="stable")
    slab = slab.take(order)
    edges = np.searchsorted(chosen[order], np.arange(total + 1)).tolist()
    for route, start, stop in zip(topic.routes, edges, edges[1:], strict=False):
        if start < stop:
            _seal_run(batches, box, slab.run(start, stop), route, settings)


def choose(keys: BinaryColumn, topic: TopicRoutes) -> Longs:
    """int64[n]: the partition of every key; the sticky one where there is none."""
    starts = keys.offsets[:-1].astype(np.int64)
    data = np.frombuffer(keys.data, np.uint8)
    lengths = keys.lengths.astype(np.int64)
    chosen = partitions_of_items(data, starts, lengths, len(topic.routes))
    if keys.valid is not None and not keys.valid.all():
        chosen[~keys.valid] = topic.next_sticky()
    return chosen


def _seal_run(
    batches: list[Batch], box: Box, records: RecordColumns, route: PartitionRoute,
    settings: SealSettings,
) -> None:  # fmt: skip
    for start, stop in runs(records.sizes(), settings.batch_bytes):
        _encode(batches, box, records.run(start, stop), route, settings)


def _encode(
    batches: list[Batch], box: Box, records: RecordColumns, route: PartitionRoute,
    settings: SealSettings,
) -> None:  # fmt: skip
    encoded = encode_columns(
        records, base_timestamp=box.opened, in_pieces=True, **address(route, settings)
    )
    append(batches, box, route, encoded, len(records.values))
