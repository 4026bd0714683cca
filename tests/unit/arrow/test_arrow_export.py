"""Batches as Arrow: the same records in pyarrow, Polars and DuckDB, keys and values in place, and
everything given back."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from chunk_builder import chunk_of
from hypothesis import given, settings
from hypothesis import strategies as st
from node_helpers import ROOT, environment

import penstock.client.arrow
from penstock.client.consumer.records import RecordBatch
from penstock.core.columns import BinaryColumn

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.compute")

BOUNDED = settings(derandomize=True, max_examples=100)
ITEM = st.none() | st.binary(max_size=5)
PAIRS = st.lists(st.tuples(st.text(max_size=3), ITEM), max_size=2).map(tuple)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def rows_of(batch):
    """What the Arrow columns of a batch must hold."""
    return [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(microseconds=record.timestamp),
            "key": record.key,
            "value": record.value,
            "headers": [{"name": name, "value": value} for name, value in record.headers],
        }
        for record in batch
    ]


@st.composite
def batches(draw):
    chunks = []
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 20))

        def column(item, count=count):
            return draw(st.none() | st.lists(item, min_size=count, max_size=count))

        start = draw(st.integers(0, count))
        chunks.append(
            chunk_of(
                draw(st.lists(ITEM, min_size=count, max_size=count)),
                draw(st.sampled_from(["orders", "clicks"])),
                draw(st.integers(0, 9)),
                start,
                draw(st.integers(start, count)),
                draw(st.integers(0, 1 << 40)),
                keys=column(ITEM),
                headers=column(st.none() | PAIRS),
                timestamps=column(st.integers(0, 1 << 50)),
            )
        )
    return RecordBatch(chunks)


@BOUNDED
@given(batches())
def test_a_pyarrow_table_holds_the_records(batch):
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.schema.names == NAMES
    assert table.to_pylist() == rows_of(batch)
    assert pa.table(batch).equals(table)


@BOUNDED
@given(batches())
def test_polars_holds_the_records(batch):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(batch)
    assert frame.columns == NAMES
    assert frame.rows(named=True) == rows_of(batch)
    assert len(polars.from_arrow(batch)) == len(batch)


@settings(BOUNDED, max_examples=30)
@given(batches())
def test_duckdb_holds_the_records(batch):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("records", batch)
        found = connection.execute("select * from records").fetchall()
    assert found == [tuple(row.values()) for row in rows_of(batch)]


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 65_536, 65_537])
def test_constant_columns_are_as_long_as_the_rest(count):
    for partition in (3, 4):
        table = chunk_of([b"v"] * count, "t", partition).to_arrow()
        table.validate(full=True)
        assert table["topic"].unique().to_pylist() == ["t"]
        assert table["partition"].unique().to_pylist() == [partition]
        assert table["key"].null_count == len(table) == count
        assert pa.compute.list_value_length(table["headers"]).unique().to_pylist() == [0]


def test_a_chunk_is_a_stream_too():
    chunk = chunk_of([b"a", b"bb", b"ccc"], start=1)
    assert chunk.to_arrow()["value"].to_pylist() == [b"bb", b"ccc"]
    assert pa.table(chunk).equals(RecordBatch([chunk]).to_arrow())


def test_an_empty_batch_has_the_columns():
    table = RecordBatch().to_arrow()
    assert table.num_rows == 0
    assert table.schema.equals(RecordBatch([chunk_of([b"a"])]).to_arrow().schema)


def test_keys_and_values_are_not_copied():
    """The buffers begin and end within the bytes that were decoded, whole or cut."""
    for start, stop in ((0, None), (3, 7)):
        chunk = chunk_of(
            [b"value-%03d" % n for n in range(10)],
            keys=[b"key-%d" % n for n in range(10)],
            start=start,
            stop=stop,
        )
        table = RecordBatch([chunk]).to_arrow()
        for name, column in (("key", chunk.keys), ("value", chunk.values)):
            assert isinstance(column, BinaryColumn)
            _, offsets, data = table[name].chunk(0).buffers()
            assert offsets.address == column.offsets.ctypes.data
            assert data.address == np.frombuffer(column.data, np.uint8).ctypes.data


class Mapping(np.ndarray):
    """Bytes whose end can be watched."""


def watched_batch():
    """A batch, and a reference that dies with the bytes its values stand in."""
    values = np.frombuffer(b"x" * 500, np.uint8).view(Mapping)
    chunk = chunk_of([b"x" * 100] * 5, headers=[(("n", b"v"),)] * 5)
    chunk.columns.values.data = values.data
    return RecordBatch([chunk]), weakref.ref(values)


def test_arrays_keep_the_bytes_and_give_them_back():
    for consume in (pa.table, pytest.importorskip("polars").DataFrame):
        batch, mapping = watched_batch()
        column = consume(batch)["value"]
        del batch
        gc.collect()
        assert mapping() is not None
        assert pa.array(column).to_pylist() == [b"x" * 100] * 5
        del column
        gc.collect()
        assert mapping() is None


def test_streams_that_nobody_reads_give_the_bytes_back():
    batch, mapping = watched_batch()
    capsule = batch.__arrow_c_stream__()
    del batch
    assert mapping() is not None
    del capsule
    gc.collect()
    assert mapping() is None


def test_arrays_may_go_while_an_exception_unwinds():
    """As in `int(batch.to_arrow())`: the argument is dropped with the error already set."""
    polars = pytest.importorskip("polars")
    consume: Any
    for consume in (RecordBatch.to_arrow, polars.DataFrame, RecordBatch.__arrow_c_stream__):
        batch, mapping = watched_batch()
        with pytest.raises(TypeError, match="int"):
            int(consume(batch))
        with pytest.raises(ZeroDivisionError):
            print(consume(batch), 1 / 0)
        del batch
        gc.collect()
        assert mapping() is None


def test_arrays_are_given_back_by_other_threads():
    batch, mapping = watched_batch()
    tables = [batch.to_arrow() for _ in range(20)]
    del batch
    threads = [threading.Thread(target=tables.pop) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert mapping() is None


def test_header_names_that_are_no_utf8_are_repaired():
    chunk = chunk_of([b"a", b"b"], headers=[(("AB", b"1"),), (("C", None),)])
    columns = chunk.columns.header_columns
    assert columns is not None
    columns[1].data = memoryview(b"\xff\xfeC")
    table = RecordBatch([chunk]).to_arrow()
    table.validate(full=True)
    assert [pair["name"] for row in table["headers"].to_pylist() for pair in row] == ["��", "C"]


LEAVING = """
    import sys
    sys.path.insert(0, "tests")
    import duckdb, polars, pyarrow
    from chunk_builder import chunk_of
    from penstock.client.consumer.records import RecordBatch
    batch = RecordBatch([chunk_of([b"x"] * 100)])
    table, frame = batch.to_arrow(), polars.DataFrame(batch)
    capsule = batch.__arrow_c_stream__()
    connection = duckdb.connect()
    connection.register("records", batch)
    relation = connection.sql("select * from records")
    pyarrow.kept = table  # outlives this module, and so this one's teardown
    sys.kept = (table.slice(3), frame.slice(3), capsule)
    print("leaving")
"""


def test_an_interpreter_ends_well_with_arrays_still_held():
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEAVING)],
        capture_output=True,
        env=environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"leaving\n"), ended.stderr.decode()


def test_without_pyarrow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "penstock.client.arrow.export", raising=False)
    monkeypatch.delattr(penstock.client.arrow, "export", raising=False)
    for each in (RecordBatch([chunk_of([b"a"])]), chunk_of([b"a"])):
        with pytest.raises(ImportError, match=r"penstock\[arrow\]"):
            each.to_arrow()
        with pytest.raises(ImportError, match=r"penstock\[arrow\]"):
            each.__arrow_c_stream__()
