"""`Producer.send_arrow`: columns of an Arrow stream become batches without an object per record.

Each array of the stream is cut into slabs of about a batch for each partition. A slab's rows are
put into the order of their partitions, encoded, and handed to the sender before the next one. So
the producer's memory bound holds for streams of any length.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.client.arrow.intake import Part, Wanted, opened
from penstock.client.producer.batch_builder import (
    SealSettings,
    append,
    next_identity,
    runs,
    spread_keys,
)
from penstock.client.producer.delivery import BatchDelivery, Box
from penstock.client.producer.partitioner import partitions_of_items
from penstock.client.producer.pipeline import Pipeline
from penstock.client.producer.routes import Batch, PartitionRoute, TopicRoutes
from penstock.client.validation import HEADERS_MAX
from penstock.core.columns import BinaryColumn
from penstock.core.encode import PiecedBatch
from penstock.core.encode_columns import RecordColumns, encode_columns
from penstock.core.errors import PenstockError
from penstock.core.gather import Longs

SLAB_BYTES_MAX: Final = 16 << 20
LANE_WAIT: Final = 0.05
"""Seconds that a slab waits for the lanes to take what came before it. While they do, it goes from
the stream's memory into the lane; otherwise it is copied out and waits in the buffer."""
RECORD_SLACK: Final = 32
"""Bytes that a record of its own costs a batch besides those that `sizes` counts."""


def ended(steps: Generator[None, None, BatchDelivery]) -> BatchDelivery:
    """Runs `sending` to its end and returns its delivery."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        delivery: BatchDelivery = done.value
        return delivery


def sending(
    pipeline: Pipeline,
    topic: str,
    data: Any,
    wanted: Wanted,
    partition: int | None,
    patience: float = 0.0,
) -> Generator[None, None, BatchDelivery]:
    """Sends as `Producer.send_arrow`, slab by slab. Where there is no room for one, the caller may
    wait for it, up to `patience` seconds a slab. After that the producer's policy decides."""
    state = pipeline.state
    with opened(data, wanted) as intake:
        _known(pipeline, topic).check_partition(partition)
        pipeline.hurry(topic)
        box = pipeline.boxes.new(topic)
        try:
            with closing(intake.parts(box.opened)) as parts:
                for part in parts:
                    routes = _known(pipeline, topic)
                    for slab in slabs(part, routes, pipeline.settings, partition):
                        until = time.monotonic() + patience
                        while not _launch(pipeline, box, slab, partition, until):
                            yield
                        yield
        except BaseException as error:
            if box.count:  # a part is no whole
                known = error if isinstance(error, Exception) else None
                with state.lock:
                    state.books.open()
                    pipeline.sender.fail(known or PenstockError(f"interrupted by {error!r}"))
                    state.books.close()
            error.add_note(f"send_arrow to {topic!r}: {box.count} rows had been handed over")
            raise
        finally:
            box.sealed = True
    return BatchDelivery(box)


def _known(pipeline: Pipeline, topic: str) -> TopicRoutes:
    """Returns the routes of a topic's records, looked up if need be."""
    state = pipeline.state
    while True:
        with state.lock:
            state.books.open()
            routes = pipeline.known(topic)
            state.books.close()
        if routes is not None:
            return routes
        pipeline.learn(topic)


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
    pipeline: Pipeline, box: Box, slab: RecordColumns, partition: int | None, until: float
) -> bool:
    """Encodes a slab and sends it, once there is room. Returns False where there is none now: then
    the caller waits for it, `until` at the latest."""
    state = pipeline.state
    room_until: float | None = None
    is_patient = True
    while True:
        routes = _known(pipeline, box.topic)
        if is_patient and routes.has_pending:
            is_patient = False
            pipeline.io.wait(partial(_has_left, routes), LANE_WAIT)
        with state.lock:
            state.books.open()
            if pipeline.sender.topics.get(box.topic) is not routes:
                state.books.close()
                continue
            if pipeline.pressure.is_full and time.monotonic() < until:
                pipeline.io.reap()
                if pipeline.pressure.is_full:
                    state.books.close()
                    return False
            if not pipeline.must_wait():
                _launch_slab(pipeline, box, slab, routes, partition)
                state.books.close()
                return True
            state.books.close()
        room_until = pipeline.await_room(room_until)


def _has_left(routes: TopicRoutes) -> bool:
    return not routes.has_pending


def _launch_slab(
    pipeline: Pipeline, box: Box, slab: RecordColumns, routes: TopicRoutes, partition: int | None
) -> None:
    """Encodes a slab and sends it, unless it is dropped (lock held)."""
    if slab.headers is not None:
        routes.check_size(int(slab.sizes().max()) + RECORD_SLACK)
    size = slab.values.nbytes + (0 if slab.keys is None else slab.keys.nbytes)
    refused = pipeline.pressure.refuse(box.topic, len(slab.values), size)
    if refused is not None:
        route = routes.routes[partition or 0]
        box.batches.append(Batch.refused(box, route, len(slab.values), refused.error))
        box.count += len(slab.values)
        return
    box.opened = time.time_ns() // 1000
    box.deadline = time.monotonic() + pipeline.state.config.delivery_timeout
    batches: list[Batch] = []
    _seal(batches, box, slab, routes, pipeline.settings, partition)
    pipeline.boxes.closing = box  # all of them leave, or none: see `mend`
    box.batches += batches
    box.count += len(slab.values)
    pipeline.sender.post(batches)
    for batch in batches:  # what found no room in a lane outlives the stream's memory
        if isinstance(batch.encoded, PiecedBatch):
            batch.encoded = batch.encoded.settled()
    pipeline.boxes.closed(box)
    pipeline.io.posted()


def _seal(
    batches: list[Batch], box: Box, slab: RecordColumns, topic: TopicRoutes,
    settings: SealSettings, partition: int | None,
) -> None:  # fmt: skip
    """Encodes a slab's rows, partition by partition."""
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
    """Returns the partition of every key, as int64[n]; the sticky one where there is none."""
    starts = keys.offsets[:-1].astype(np.int64)
    data = np.frombuffer(keys.data, np.uint8)
    lengths = keys.lengths.astype(np.int64)
    chosen = partitions_of_items(data, starts, lengths, len(topic.routes))
    if keys.valid is not None and not keys.valid.all():
        chosen[~keys.valid] = topic.next_sticky()
    if topic.spread:
        spread_keys(keys, chosen, topic)
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
        records, next_identity(route, settings), base_timestamp=box.opened, codec=settings.codec,
        attributes=settings.attributes, in_pieces=True,
    )  # fmt: skip
    append(batches, box, route, encoded, len(records.values))
