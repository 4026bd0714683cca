"""Streams of others: every layout of byte strings, whatever was cut out of it, and clear words for
what cannot be sent."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest
from chunk_builder import chunk_of
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.arrow.intake import Wanted, opened
from penstock.client.consumer.records import RecordBatch
from penstock.core.errors import PenstockError

pa = pytest.importorskip("pyarrow")

BOUNDED = settings(derandomize=True, max_examples=100)
LAYOUTS = ["binary", "large_binary", "binary_view", "string", "large_string", "string_view"]
NOW = 77


def sent(data, **columns):
    """What would be sent, row by row: (value, key, timestamp, headers)."""
    found = []
    with opened(data, Wanted(**{"value": "value", **columns})) as intake:
        for part in intake.parts(NOW):
            middle = part.count // 2
            for start, stop in ((0, middle), (middle, part.count)):
                found += rows_of(part, start, stop)
    return found


def rows_of(part, start, stop):
    values = part.values.cut(start, stop).to_list()
    keys = [None] * len(values)
    if part.keys is not None:
        keys = part.keys.cut(start, stop).to_list()
    times = [None] * len(values)
    if part.timestamps is not None:
        times = part.timestamps[start:stop].tolist()
    pairs: list[Any] = [()] * len(values)
    if part.headers is not None:
        bounds, names, contents = part.headers.cut(start, stop)
        flat = list(zip(names.to_list(), contents.to_list(), strict=True))
        pairs = [tuple(flat[at:to]) for at, to in pairwise(bounds)]
    return list(zip(values, keys, times, pairs, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@BOUNDED
@given(
    st.lists(st.none() | st.text("abc", max_size=20), max_size=30),
    st.integers(0, 10),
    st.integers(0, 30),
)
def test_every_layout_of_strings_sliced_anywhere(layout, texts, start, count):
    items = [None if text is None else text.encode() for text in texts]
    array = pa.array(texts, pa.string()).cast(getattr(pa, layout)())
    table = pa.table({"x": range(len(texts)), "value": array, "k": array}).slice(start, count)
    wanted = items[start : start + count]
    assert [row[:2] for row in sent(table, key="k")] == list(zip(wanted, wanted, strict=True))


def test_long_views_stand_in_several_buffers():
    items = [b"%d" % n * (n % 40) if n % 5 else None for n in range(200)]
    parts = [pa.array(items[at : at + 50], pa.binary_view()) for at in range(0, 200, 50)]
    array = pa.concat_arrays(parts)
    assert len(array.buffers()) > 3
    assert [row[0] for row in sent(pa.table({"value": array}))] == items


def test_fixed_size_binary():
    array = pa.array([b"abcd", None, b"efgh", b"ijkl"], pa.binary(4))
    assert [row[0] for row in sent(pa.table({"value": array.slice(1)}))] == [None, b"efgh", b"ijkl"]


def test_bytes_behind_nulls_do_not_come_along():
    validity, offsets, data = pa.array([b"aa", b"bb", b"cc"]).buffers()
    bits = pa.py_buffer(bytes([0b101]))
    array = pa.Array.from_buffers(pa.binary(), 3, [bits, offsets, data])
    assert validity is None
    with opened(pa.table({"value": array}), Wanted("value")) as intake:
        [column] = [part.values.cut(0, 3) for part in intake.parts(NOW)]
        assert column.to_list() == [b"aa", None, b"cc"]
        assert column.nbytes == 4


@pytest.mark.parametrize(
    ("unit", "stamp", "microseconds"),
    [("s", 3, 3_000_000), ("ms", 3, 3_000), ("us", 3, 3), ("ns", 3_999, 3)],
)
def test_timestamps_of_every_unit(unit, stamp, microseconds):
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Zurich")):
        table = pa.table({"value": [b"a", b"b"], "t": pa.array([stamp, None], kind)})
        assert [row[2] for row in sent(table, timestamp="t")] == [microseconds, NOW]


def test_plain_integers_are_microseconds():
    table = pa.table({"value": [b"a", b"b"], "t": pa.array([5, None], pa.int64())})
    assert [row[2] for row in sent(table, timestamp="t")] == [5, NOW]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.large_list(pa.struct([("n", pa.binary()), ("v", pa.large_string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
)
def test_headers_as_lists_or_maps(kind):
    pairs: list[Any] = [
        [("a", b"1"), ("b", None)],
        None,
        [],
        [("c", b"")],
        [("d", b"x"), ("e", b"y")],
    ]
    as_given: list[Any] = pairs
    if not pa.types.is_map(kind):
        first, second = (kind.value_type.field(n).name for n in range(2))
        as_given = [
            None if row is None else [{first: name, second: value} for name, value in row]
            for row in pairs
        ]
    table = pa.table({"value": [b""] * 5, "h": pa.array(as_given, kind)})
    wanted = [tuple((name.encode(), value) for name, value in row or ()) for row in pairs]
    assert [row[3] for row in sent(table, headers="h")] == wanted
    assert [row[3] for row in sent(table.slice(2), headers="h")] == wanted[2:]


def test_batches_of_a_consumer_can_be_sent_on():
    chunk = chunk_of(
        [b"a", None, b"c"],
        keys=[b"k", None, b""],
        headers=[(("n", b"v"),), None, (("m", None), ("o", b""))],
        timestamps=[5, 6, 7],
        start=1,
    )
    columns = {"key": "key", "timestamp": "timestamp", "headers": "headers"}
    assert (
        sent(RecordBatch([chunk, chunk]), **columns)
        == [
            (None, None, 6, ()),
            (b"c", b"", 7, ((b"m", None), (b"o", b""))),
        ]
        * 2
    )


def test_polars_and_duckdb_streams():
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    frame = polars.DataFrame(
        {"value": ["a", "a longer text than that", None], "k": [b"", None, b"k"]}
    )
    wanted = [(b"a", b""), (b"a longer text than that", None), (None, b"k")]
    assert [row[:2] for row in sent(frame, key="k")] == wanted
    with duckdb.connect() as connection:
        connection.register("frame", frame)
        relation = connection.sql("select * from frame")
        assert [row[:2] for row in sent(relation, key="k")] == wanted


@pytest.mark.parametrize("name", ["value", "key", "timestamp", "headers"])
@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5]), "float64"),
        (pa.array(["a"]).dictionary_encode(), "dictionary"),
        (pa.array([[1]]), "list"),
        (pa.array([True]), "bool"),
    ],
)
def test_columns_of_other_types_are_refused_in_words(name, array, kind):
    table = pa.table({"value": [b"a"], "odd": array})
    with pytest.raises(TypeError, match=rf"column 'odd' of Table is {kind}; .* cast it"):
        sent(table, **{name: "odd"})


def test_other_mistakes_are_told():
    with pytest.raises(ValueError, match=r"no column 'value' \(the value_column\); it has 'x'"):
        sent(pa.table({"x": [b"a"]}))
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        sent([b"a"])
    with pytest.raises(TypeError, match="not of columns"):
        sent(pa.chunked_array([[b"a"]]))


def test_a_stream_that_fails_says_so():
    def batches():
        yield pa.record_batch({"value": [b"a"]})
        raise RuntimeError("the well is dry")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), batches())
    with pytest.raises(PenstockError, match="the well is dry"):
        sent(reader)


def test_a_failing_batch_of_ours_reaches_the_consumer_as_its_error(monkeypatch):
    chunk = chunk_of([b"a"])
    monkeypatch.setattr(chunk, "partition", "no number")
    with pytest.raises(ValueError, match="no number"):
        pa.table(RecordBatch([chunk]))


def test_nothing_is_kept_of_a_stream_that_was_left_early():
    before = pa.total_allocated_bytes()
    table = pa.table({"value": pa.chunked_array([pa.array([b"x" * 1000])] * 3)})
    with opened(table, Wanted("value")) as intake:
        parts = intake.parts(NOW)
        next(parts)
        parts.close()
    del table, intake, parts
    gc.collect()
    assert pa.total_allocated_bytes() == before
