"""From a box of records to encoded batches: choose partitions, split by size, encode.

Pure but for the sequence counters it moves on in the routes it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.client.producer.delivery import WIDE, Box
from penstock.client.producer.partitioner import partitions_of
from penstock.client.producer.record_options import RecordFields
from penstock.client.producer.routes import BATCH_OVERHEAD, Batch, PartitionRoute, TopicRoutes
from penstock.client.session import Session
from penstock.core import header as hd
from penstock.core.encode import (
    RECORD_OVERHEAD,
    EncodedBatch,
    Headers,
    encode_batch,
    encode_one,
    record_overhead,
)
from penstock.core.errors import RecordTooLargeError
from penstock.core.work import WorkColumns, WorkFields
from penstock.ipc import layout as lo

_COUNTING: Final = list(range(1 << 16))

Placement = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class SealSettings:
    """The settings of a producer that encoding needs.

    `batch_bytes` is where long runs are split, `batch_bytes_max` the most that a frame takes. Up to
    `records_trusted` rows are encoded before they are measured, because their box has bounded them.
    """

    producer_id: int
    codec: int
    batch_bytes: int
    batch_bytes_max: int
    attributes: int = 0
    records_trusted: int = 1 << 15

    @classmethod
    def at(cls, session: Session, codec: int, batch_bytes: int) -> SealSettings:
        """Returns the settings within the limits of this attachment."""
        limit = session.welcome.lane_capacity // lo.FRAME_SHARE - lo.FRAME_BYTES
        return cls(session.producer_id, codec, min(batch_bytes, limit - BATCH_OVERHEAD), limit)


def next_identity(route: PartitionRoute, settings: SealSettings) -> hd.BatchIdentity:
    """Returns the identity of the next batch of a route."""
    return hd.BatchIdentity(
        route.topic_id, route.partition, settings.producer_id, route.epoch, route.next_sequence
    )


class Rows(NamedTuple):
    """The columns of a box; None for a column that no record uses."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps: Sequence[int] | None
    partitions: Sequence[int | None] | None
    work: Sequence[WorkFields | None] | None = None

    def sizes(self) -> Iterator[int]:
        """Yields the most bytes that each record takes in a batch."""
        keys, headers = self.keys or repeat(None), self.headers or repeat(None)
        if self.work is None:
            return map(record_overhead, self.values, keys, headers)
        return map(record_overhead, self.values, keys, headers, self.work)

    def bytes_at_most(self) -> int:
        """Returns the sum of `sizes`, or a little more where that is quicker to know."""
        if self.headers is not None or self.work is not None:
            return sum(self.sizes())
        found = sum(map(len, filter(None, chain(self.values, self.keys or ()))))
        return found + RECORD_OVERHEAD * len(self.values)

    def take(self, indices: Sequence[int]) -> Rows:
        if len(indices) == 1:
            at = indices[0]
            return self.run(at, at + 1)
        pick = itemgetter(*indices)
        return Rows._make(column if column is None else pick(column) for column in self)

    def run(self, start: int, stop: int) -> Rows:
        return Rows._make(column if column is None else column[start:stop] for column in self)


def check_rows(rows: Rows, topic: TopicRoutes) -> None:
    """`TopicRoutes.check_size` for many; topics without a bound of their own leave it to the
    encoder."""
    if topic.info.settings.record_bytes_max is not None:
        topic.check_size(max(rows.sizes()))


def close_lid(box: Box) -> Rows:
    """Returns the records of a box whose `sealed` is set, and notes which of them are in.

    Records that another thread appends after this are not in; their thread sees `sealed` and sends
    them again. When it runs again after an interrupt they are in: nobody was told otherwise. It
    notes ordinals out of step (one thread overtook another) in `box.order`.
    """
    items, width = box.items, box.width
    count = len(items) // width
    stop = count * width
    ordinals = items[0:stop:width]
    expected = _COUNTING[:count] if count <= len(_COUNTING) else list(range(count))
    if ordinals != expected:
        box.order = {ordinal: index for index, ordinal in enumerate(ordinals)}
    box.count = count
    columns: list[list[Any] | None] = [items[1:stop:width]]
    for field in range(2, width):
        column = items[field:stop:width]
        columns.append(None if column.count(None) == count else column)
    columns += [None] * (WIDE - width)
    values, keys, headers, stamps, partitions, work = columns
    if stamps is not None:
        stamps = [box.opened if stamp is None else stamp for stamp in stamps]
    return Rows(values, keys, headers, stamps, partitions, work)  # type: ignore[arg-type]


def choose(rows: Rows, topic: TopicRoutes) -> int | npt.NDArray[np.int64]:
    """Chooses one partition for all rows, or int64[n]: explicit first, then by key, then by dedup
    id, so that records of one id meet; else the sticky one."""
    count = len(rows.values)
    ids = _dedup_ids(rows)
    if rows.keys is None and rows.partitions is None and not ids:
        return topic.next_sticky()
    if len(topic.routes) == 1:
        return 0
    chosen = np.full(count, topic.next_sticky(), np.int64)
    if ids:
        chosen[[*ids]] = partitions_of([*ids.values()], len(topic.routes))
    if rows.keys is not None:
        keyed = [index for index, key in enumerate(rows.keys) if key is not None]
        present = rows.keys if len(keyed) == count else [rows.keys[index] for index in keyed]
        chosen[keyed] = partitions_of(present, len(topic.routes))  # type: ignore[arg-type]
        if topic.spread:
            spread_keys(rows.keys, chosen, topic)
    if rows.partitions is not None:
        for index, partition in enumerate(rows.partitions):
            if partition is not None:
                chosen[index] = partition
    return chosen


def spread_keys(
    keys: Iterable[bytes | None], chosen: npt.NDArray[np.int64], topic: TopicRoutes
) -> None:
    """Lets the keys that are spread take their partitions by turns."""
    for row, key in enumerate(keys):
        if key is not None and key in topic.spread:
            chosen[row] = topic.spread_on(key, int(chosen[row]))


def _dedup_ids(rows: Rows) -> dict[int, bytes]:
    """The dedup ids of the rows that have one, by row."""
    if rows.work is None:
        return {}
    return {
        row: work.dedup_id
        for row, work in enumerate(rows.work)
        if work is not None and work.dedup_id is not None
    }


def seal(box: Box, rows: Rows, topic: TopicRoutes, settings: SealSettings) -> list[Batch]:
    """Encodes a box's rows; sets `box.placement`, then `box.batches`, and returns the batches."""
    chosen = choose(rows, topic)
    batches: list[Batch] = []
    groups = []
    if isinstance(chosen, int):
        _encode_run(batches, box, rows, topic.routes[chosen], settings)
        if len(batches) > 1:
            groups.append(np.arange(len(rows.values)))
    else:
        for partition in np.unique(chosen).tolist():
            indices = np.flatnonzero(chosen == partition)
            groups.append(indices)
            part = rows if len(indices) == len(chosen) else rows.take(indices.tolist())
            _encode_run(batches, box, part, topic.routes[partition], settings)
    box.placement = _placed(batches, groups) if len(batches) > 1 else None
    box.batches = batches
    return batches


def seal_one(
    value: bytes | None,
    key: bytes | None,
    fields: RecordFields,
    now_us: int,
    route: PartitionRoute,
    settings: SealSettings,
) -> EncodedBatch:
    """Encodes a batch of one record and moves the route's sequence on. Raises `RecordTooLargeError`
    with nothing changed."""
    headers, timestamp, _, work = fields
    stamp = now_us if timestamp is None else timestamp
    is_plain = key is None and headers is None and work is None
    is_plain = is_plain and not (settings.codec or settings.attributes)
    if value is not None and is_plain:
        encoded = encode_one(
            value, stamp, route.topic_id, route.partition, settings.producer_id, route.epoch,
            route.next_sequence,
        )  # fmt: skip
    else:
        encoded = encode_batch(
            (value,),
            next_identity(route, settings),
            base_timestamp=stamp,
            keys=None if key is None else (key,),
            headers=None if headers is None else (headers,),
            work=None if work is None else WorkColumns.of((work,)),
            codec=settings.codec,
            attributes=settings.attributes,
        )
    if hd.HEADER_BYTES + len(encoded.body) > settings.batch_bytes_max:
        raise _too_large(encoded, route, settings)
    route.next_sequence += 1
    return encoded


def _placed(batches: list[Batch], groups: list[npt.NDArray[np.int64]]) -> Placement:
    """Returns the place of every row: arrays of batch number and index within it."""
    total = sum(len(group) for group in groups)
    which = np.empty(total, np.int32)
    where = np.empty(total, np.int32)
    rows = np.concatenate(groups)
    start = 0
    for number, batch in enumerate(batches):
        mine = rows[start : start + batch.count]
        which[mine] = number
        where[mine] = np.arange(batch.count)
        start += batch.count
    return which, where


def _encode_run(
    batches: list[Batch], box: Box, rows: Rows, route: PartitionRoute, settings: SealSettings
) -> None:
    """Encodes rows of one partition, as one batch if that fits a frame; rows of a long box, if it
    fits `batch_bytes`."""
    is_bounded = not box.is_long or rows.bytes_at_most() <= settings.batch_bytes
    if is_bounded and len(rows.values) <= settings.records_trusted:
        with suppress(RecordTooLargeError):  # all of them are more than a batch may ever hold
            encoded = _encode(box, rows, route, settings)
            if encoded.length <= settings.batch_bytes_max:
                append(batches, box, route, encoded, len(rows.values))
                return
    for start, stop in _runs(rows, settings):
        encoded = _encode(box, rows.run(start, stop), route, settings)
        if encoded.length > settings.batch_bytes_max:
            raise _too_large(encoded, route, settings)
        append(batches, box, route, encoded, stop - start)


def _too_large(
    encoded: EncodedBatch, route: PartitionRoute, settings: SealSettings
) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a record for {route!r} makes a batch of {encoded.length} bytes with its key and headers; "
        f"the most is {settings.batch_bytes_max}: raise the node's lane capacity (of which a batch "
        "may take a quarter), or split the record"
    )


def append(
    batches: list[Batch], box: Box, route: PartitionRoute, encoded: EncodedBatch, count: int
) -> None:
    """Adds the next batch of a box; moves the route's sequence on."""
    batches.append(Batch(box, route, encoded, count, route.next_sequence))
    route.next_sequence += count


def _encode(box: Box, rows: Rows, route: PartitionRoute, settings: SealSettings) -> EncodedBatch:
    return encode_batch(
        rows.values,
        next_identity(route, settings),
        base_timestamp=box.opened,
        keys=rows.keys,
        headers=rows.headers,
        timestamps=rows.timestamps,
        work=None if rows.work is None else WorkColumns.of(rows.work),
        codec=settings.codec,
        attributes=settings.attributes,
    )


def _runs(rows: Rows, settings: SealSettings) -> Iterator[tuple[int, int]]:
    return runs(np.fromiter(rows.sizes(), np.int64, len(rows.values)), settings.batch_bytes)


def runs(sizes: npt.NDArray[np.int64], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Bounds of runs of at most `bytes_max` each (a larger record is a run of its own)."""
    ends = sizes.cumsum()
    start, base = 0, 0
    while start < len(sizes):
        stop = int(ends.searchsorted(base + bytes_max, side="right"))
        stop = max(stop, start + 1)
        yield start, stop
        start, base = stop, int(ends[stop - 1])
