"""`Producer.send_arrow`: columns of an Arrow stream become batches without an object per record.

Each array of the stream is cut into slabs of about a batch for each partition; a slab's rows are
put into the order of their partitions, encoded, and handed to the outbox before the next one, so
that the producer's memory bound holds for streams of any length.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.arguments import HEADERS_MAX
from penstock.arrow.intake import Part, Wanted, opened
from penstock.core.columns import BinaryColumn
from penstock.core.encode import PiecedBatch
from penstock.core.encode_columns import RecordColumns, encode_columns
from penstock.core.errors import PenstockError
from penstock.core.gather import Longs
from penstock.delivery import Batch, BatchDelivery, Box
from penstock.partitioner import partitions_of_items
from penstock.routes import PartitionRoute, TopicRoutes
from penstock.sealing import SealSettings, address, append, runs

if TYPE_CHECKING:
    from penstock.producer import Producer

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
        with self._lock:
            self._routes(topic).check_partition(partition)
            if topic in self.boxes.open:
                self._seal(self.boxes.open[topic])
            box = self.boxes.new(topic)
        try:
            with closing(intake.parts(box.opened)) as parts:
                for part in parts:
                    with self._lock:
                        routes = self._routes(topic)
                    for slab in slabs(part, routes, self._settings, partition):
                        until = time.monotonic() + patience
                        while not _launch(self, box, slab, partition, until):
                            yield
                        yield
        except BaseException as error:
            if box.count:  # a part is no whole
                known = error if isinstance(error, Exception) else None
                with self._lock:
                    self._outbox.fail(known or PenstockError(f"interrupted by {error!r}"))
            error.add_note(f"send_arrow to {topic!r}: {box.count} rows had been handed over")
            raise
        finally:
            box.sealed = True
    return BatchDelivery(box)


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
    with self._lock:
        if self.pressure.is_full and time.monotonic() < until:
            self._minder.reap()
            if self.pressure.is_full:
                return False
        routes = self._routes(box.topic)
        if slab.headers is not None:
            routes.check_size(int(slab.sizes().max()) + RECORD_SLACK)
        if routes.has_pending:
            self._minder.wait(lambda: not routes.has_pending, LANE_WAIT)
        size = slab.values.nbytes + (0 if slab.keys is None else slab.keys.nbytes)
        refused = self.pressure.make_room(box.topic, len(slab.values), size)
        if refused is not None:
            route = routes.routes[partition or 0]
            box.batches.append(Batch.refused(box, route, len(slab.values), refused.error))
            box.count += len(slab.values)
            return True
        if self._outbox.topics.get(box.topic) is not routes:  # the lock was given up meanwhile
            routes = self._routes(box.topic)
        box.opened = time.time_ns() // 1000
        box.deadline = time.monotonic() + self._delivery_timeout
        first = len(box.batches)
        try:
            _seal(box, slab, routes, self._settings, partition)
        except BaseException:
            box.take_back(first)
            raise
        batches = box.batches[first:]
        box.count += len(slab.values)
        self._outbox.post(batches)
        for batch in batches:  # what found no room in a lane outlives the stream's memory
            if isinstance(batch.encoded, PiecedBatch):
                batch.encoded = batch.encoded.settled()
        self._count(batches)
    return True


def _seal(
    box: Box, slab: RecordColumns, topic: TopicRoutes, settings: SealSettings, partition: int | None
) -> None:
    """Encode a slab's rows, partition by partition."""
    total = len(topic.routes)
    if partition is not None or slab.keys is None or total == 1:
        route = topic.routes[topic.next_sticky() if partition is None else partition]
        if slab.headers is None:  # it was cut to fit a batch
            _encode(box, slab, route, settings)
        else:
            _seal_run(box, slab, route, settings)
        return
    chosen = choose(slab.keys, topic)
    order = np.argsort(chosen.astype(np.uint16) if total < 1 << 16 else chosen, kind="stable")
    slab = slab.take(order)
    edges = np.searchsorted(chosen[order], np.arange(total + 1)).tolist()
    for route, start, stop in zip(topic.routes, edges, edges[1:], strict=False):
        if start < stop:
            _seal_run(box, slab.run(start, stop), route, settings)


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
    box: Box, records: RecordColumns, route: PartitionRoute, settings: SealSettings
) -> None:
    for start, stop in runs(records.sizes(), settings.batch_bytes):
        _encode(box, records.run(start, stop), route, settings)


def _encode(
    box: Box, records: RecordColumns, route: PartitionRoute, settings: SealSettings
) -> None:
    encoded = encode_columns(
        records, base_timestamp=box.opened, in_pieces=True, **address(route, settings)
    )
    append(box, route, encoded, len(records.values))
