"""Records and batches of them: rows of chunks, whatever was cut out of which columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from batch_bytes import put, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.records import Chunk, ChunkedColumn, Record, RecordBatch, WorkRecord
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.work import WorkColumns, WorkFields

BOUNDED = settings(derandomize=True, max_examples=150)
ITEM = st.none() | st.binary(max_size=5)
WORK = st.sampled_from([WorkFields(5, 9), WorkFields(None, None, 7, b"id"), WorkFields(6, 7, 0)])
PAIRS = st.lists(st.tuples(st.text(max_size=3), ITEM), max_size=2).map(tuple)


def columns_of(values, *, base_offset=0, epoch=0, **columns):
    encoded = encode_batch(values, hd.BatchIdentity(bytes(16), 0), base_timestamp=1_000, **columns)
    image = bytearray(encoded.image())
    put(image, base_offset=base_offset, leader_epoch=epoch)
    view = memoryview(bytes(reseal(image)))
    return decode(view, 0, hd.checked(view))


@st.composite
def chunks(draw):
    """A chunk and the records that it stands for."""
    count = draw(st.integers(1, 9))

    def column(item):
        return draw(st.none() | st.lists(item, min_size=count, max_size=count))

    values = draw(st.lists(ITEM, min_size=count, max_size=count))
    keys, headers = column(ITEM), column(st.none() | PAIRS)
    stamps = column(st.integers(0, 1 << 50))
    deltas = list(range(count))
    sparse = {}
    if draw(st.booleans()):
        deltas = sorted(
            draw(st.lists(st.integers(0, 99), min_size=count, max_size=count, unique=True))
        )
        sparse = {"offset_deltas": deltas, "last_offset_delta": 99}
    base = draw(st.integers(0, 1 << 40))
    topic, partition = draw(st.sampled_from([("a", 0), ("b", 7)]))
    work = column(st.none() | WORK)
    columns = columns_of(
        values, keys=keys, headers=headers, timestamps=stamps, base_offset=base,
        work=None if work is None else WorkColumns.of(work), **sparse,
    )  # fmt: skip
    start = draw(st.integers(0, count))
    stop = draw(st.integers(start, count))
    has_work = work is not None and any(each is not None for each in work)
    records = [
        (WorkRecord if has_work else Record)(
            topic,
            partition,
            base + deltas[row],
            stamps[row] if stamps else 1_000,
            keys[row] if keys else None,
            values[row],
            (headers[row] or ()) if headers else (),
            *(((work and work[row]) or WorkFields()) if has_work else ()),
        )
        for row in range(count)
    ]
    return Chunk(topic, partition, columns, start, stop), records[start:stop]


def check_work(rows, records):
    """Columns and records have the same for work queues, and no column where none has any."""
    if isinstance(rows, Chunk):
        columns = [None] * 4 if rows.work is None else [*rows.work]
    else:
        columns = [rows.due, rows.expires, rows.priorities, rows.dedup_ids]
    for column, name in zip(columns, WorkFields._fields, strict=True):
        wanted = [getattr(record, name) for record in records]
        assert wanted == ([None] * len(records) if column is None else list(column))


@BOUNDED
@given(chunks())
def test_a_chunk_is_the_records_it_stands_for(pair):
    chunk, records = pair
    assert chunk.records() == records
    assert len(chunk) == len(records)
    assert chunk.offsets.tolist() == [record.offset for record in records]
    assert chunk.timestamps.tolist() == [record.timestamp for record in records]
    assert chunk.values.to_list() == [record.value for record in records]
    assert chunk.keys.to_list() == [record.key for record in records]
    headers = chunk.headers()
    assert headers is None or headers == [record.headers for record in records]
    check_work(chunk, records)
    check_work(RecordBatch([chunk, chunk]), records * 2)
    rows = range(chunk.start, chunk.stop)
    assert [chunk.row_offset(row) for row in rows] == chunk.offsets.tolist()


@BOUNDED
@given(chunks())
def test_a_chunk_is_followed_by_the_next_row_or_by_the_next_batch(pair):
    chunk, _ = pair
    columns = chunk.columns
    everything = columns.offsets.tolist()
    if chunk.stop == columns.count:
        assert chunk.next_offset == columns.head.next_offset > everything[-1]
    else:
        assert chunk.next_offset == everything[chunk.stop]


@BOUNDED
@given(st.lists(chunks(), max_size=4))
def test_a_batch_is_its_chunks_one_behind_the_other(pairs):
    batch = RecordBatch([chunk for chunk, _ in pairs])
    records = [record for _, part in pairs for record in part]
    assert len(batch) == len(records)
    assert bool(batch) == bool(records)
    assert list(batch) == records
    assert batch.offsets.tolist() == [record.offset for record in records]
    assert batch.timestamps.tolist() == [record.timestamp for record in records]
    assert batch.partitions.tolist() == [record.partition for record in records]
    assert batch.nbytes == sum(len(record.value or b"") for record in records)
    for column, wanted in (
        (batch.values, [record.value for record in records]),
        (batch.keys, [record.key for record in records]),
    ):
        count = len(wanted)
        assert (len(column), column.to_list(), list(column)) == (count, wanted, wanted)
        assert [column[index] for index in range(-count, count)] == wanted * 2
        assert column[1:-1] == wanted[1:-1]
        assert column[::2] == wanted[::2]
        for outside in (count, -count - 1):
            with pytest.raises(IndexError):
                column[outside]
    assert repr(batch).startswith(f"<RecordBatch of {len(records)} records")


def test_an_empty_batch_has_empty_columns_of_the_right_types():
    batch = RecordBatch()
    assert not batch
    assert batch.offsets.dtype == np.dtype(np.int64)
    assert batch.timestamps.dtype == np.dtype(np.int64)
    assert batch.partitions.dtype == np.dtype(np.int32)
    assert batch.offsets.tolist() == batch.timestamps.tolist() == batch.partitions.tolist() == []
    assert list(batch) == []
    assert batch.values.to_list() == batch.keys.to_list() == []
    assert len(ChunkedColumn([])) == 0
    assert batch.nbytes == 0


def test_a_chunk_knows_the_leader_epoch_of_its_batch():
    assert Chunk("t", 0, columns_of([b"a"], epoch=9)).leader_epoch == 9


def test_a_large_dense_batch_comes_as_records():
    values = [b"%d" % number for number in range(5000)]
    chunk = Chunk("t", 3, columns_of(values, base_offset=100), 10, 4000)
    assert chunk.records() == [
        Record("t", 3, 100 + row, 1_000, None, values[row]) for row in range(10, 4000)
    ]


@BOUNDED
@given(st.integers(-(10**15), 4 * 10**15))
def test_a_records_datetime_is_its_very_microsecond(timestamp):
    record = Record("t", 0, 0, timestamp, None, b"")
    assert record.datetime == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp)


def test_a_record_is_not_changed_and_has_no_headers_unless_given():
    record = Record("t", 0, 1, 2, None, b"v")
    assert record.headers == ()
    with pytest.raises(AttributeError):
        record.value = b"w"  # type: ignore[misc]
