"""From a box of records to encoded batches: choose partitions, split by size, encode.

Pure but for the sequence counters it moves on in the routes it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.encode import Headers, encode_batch, record_overhead
from penstock.delivery import RECORD_FIELDS, Batch, Box
from penstock.partitioner import partitions_of
from penstock.routes import PartitionRoute, TopicRoutes

_COUNTING: Final = list(range(1 << 16))


@dataclass(frozen=True, slots=True)
class SealSettings:
    """What encoding needs to know of a producer."""

    producer_id: int
    codec: int
    batch_bytes: int
    batch_bytes_max: int


class Rows(NamedTuple):
    """The columns of a box; None for a column that no record uses."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps: Sequence[int] | None
    partitions: Sequence[int | None] | None

    def take(self, indices: Sequence[int]) -> Rows:
        if len(indices) == 1:
            at = indices[0]
            return Rows(*(None if column is None else [column[at]] for column in self))
        pick = itemgetter(*indices)
        return Rows(*(None if column is None else pick(column) for column in self))

    def run(self, start: int, stop: int) -> Rows:
        return Rows(*(None if column is None else column[start:stop] for column in self))


def close_lid(box: Box) -> Rows:
    """Take the records out of a box whose `sealed` is set, noting which got in.

    Records that another thread appends after this are not in; their thread sees `sealed` and sends
    them again. Ordinals out of step (threads overtaking each other) are noted in `box.order`.
    """
    items = box.items
    count = len(items) // RECORD_FIELDS
    stop = count * RECORD_FIELDS
    ordinals = items[0:stop:RECORD_FIELDS]
    expected = _COUNTING[:count] if count <= len(_COUNTING) else list(range(count))
    if ordinals != expected:
        box.order = {ordinal: index for index, ordinal in enumerate(ordinals)}
    box.count = count
    columns: list[list[Any] | None] = [items[1:stop:RECORD_FIELDS]]
    for field in range(2, RECORD_FIELDS):
        column = items[field:stop:RECORD_FIELDS]
        columns.append(None if column.count(None) == count else column)
    items.clear()
    values, keys, headers, stamps, partitions = columns
    if stamps is not None:
        stamps = [box.opened if stamp is None else stamp for stamp in stamps]
    return Rows(values, keys, headers, stamps, partitions)  # type: ignore[arg-type]


def choose(rows: Rows, topic: TopicRoutes) -> int | npt.NDArray[np.int64]:
    """One partition for all rows, or int64[n]: explicit first, then by key, else the sticky one."""
    count = len(rows.values)
    if rows.keys is None and rows.partitions is None:
        return topic.next_sticky()
    if len(topic.routes) == 1:
        return 0
    chosen = np.full(count, topic.next_sticky(), np.int64)
    if rows.keys is not None:
        keyed = [index for index, key in enumerate(rows.keys) if key is not None]
        present = rows.keys if len(keyed) == count else [rows.keys[index] for index in keyed]
        chosen[keyed] = partitions_of(present, len(topic.routes))  # type: ignore[arg-type]
    if rows.partitions is not None:
        for index, partition in enumerate(rows.partitions):
            if partition is not None:
                chosen[index] = partition
    return chosen


def seal(box: Box, rows: Rows, topic: TopicRoutes, settings: SealSettings) -> list[Batch]:
    """Encode a box's rows; fills `box.batches` and `box.placement` and returns the batches."""
    chosen = choose(rows, topic)
    if isinstance(chosen, int):
        _encode_run(box, rows, topic.routes[chosen], settings)
        if len(box.batches) > 1:
            _place(box, [np.arange(len(rows.values))])
        return box.batches
    groups = []
    for partition in np.unique(chosen).tolist():
        indices = np.flatnonzero(chosen == partition)
        groups.append(indices)
        part = rows if len(indices) == len(chosen) else rows.take(indices.tolist())
        _encode_run(box, part, topic.routes[partition], settings)
    if len(box.batches) > 1:
        _place(box, groups)
    return box.batches


def _place(box: Box, groups: list[npt.NDArray[np.int64]]) -> None:
    """Where every row went: arrays of batch number and index within it."""
    total = sum(len(group) for group in groups)
    which = np.empty(total, np.int32)
    where = np.empty(total, np.int32)
    rows = np.concatenate(groups)
    start = 0
    for number, batch in enumerate(box.batches):
        mine = rows[start : start + batch.count]
        which[mine] = number
        where[mine] = np.arange(batch.count)
        start += batch.count
    box.placement = (which, where)


def _encode_run(box: Box, rows: Rows, route: PartitionRoute, settings: SealSettings) -> None:
    for start, stop in _runs(rows, settings):
        part = rows if stop - start == len(rows.values) else rows.run(start, stop)
        count = stop - start
        encoded = encode_batch(
            part.values,
            base_timestamp=box.opened,
            topic_id=route.topic_id,
            partition=route.partition,
            keys=part.keys,
            headers=part.headers,
            timestamps=part.timestamps,
            producer_id=settings.producer_id,
            producer_epoch=route.epoch,
            base_sequence=route.next_sequence,
            codec=settings.codec,
        )
        batch = Batch(box, route, encoded, count, route.next_sequence, box.deadline)
        route.next_sequence += count
        box.batches.append(batch)


def _runs(rows: Rows, settings: SealSettings) -> list[tuple[int, int]]:
    """Bounds of runs that fit a batch: one run almost always."""
    count = len(rows.values)
    if rows.headers is None:
        keys = rows.keys or ()
        total = sum(map(len, filter(None, rows.values))) + sum(map(len, filter(None, keys)))
        if total + 24 * count <= settings.batch_bytes_max:
            return [(0, count)]
    sizes = np.fromiter(
        (
            record_overhead(
                value,
                rows.keys[index] if rows.keys is not None else None,
                rows.headers[index] if rows.headers is not None else None,
            )
            for index, value in enumerate(rows.values)
        ),
        np.int64,
        count,
    )
    ends = np.cumsum(sizes)
    if ends[-1] <= settings.batch_bytes_max:
        return [(0, count)]
    runs = []
    start, base = 0, 0
    while start < count:
        stop = int(np.searchsorted(ends, base + settings.batch_bytes, side="right"))
        stop = max(stop, start + 1)
        runs.append((start, stop))
        base = int(ends[stop - 1])
        start = stop
    return runs
