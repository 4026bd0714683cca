"""Columns encode to the bytes that the same records encode to one by one; gathered rows are the
rows that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.columns import BinaryColumn, decode
from penstock.core.encode import PiecedBatch, encode_batch, record_overhead
from penstock.core.encode_columns import HeaderColumns, RecordColumns, encode_columns
from penstock.core.gather import copy_items, gather, ranges, take, without_hidden_bytes

BOUNDED = settings(derandomize=True, max_examples=100)
ITEM = st.none() | st.binary(max_size=6)
PAIRS = st.lists(st.tuples(st.text("ab", max_size=3), ITEM), max_size=3)
FIELDS: dict[str, Any] = {
    "base_timestamp": 1_000,
    "identity": hd.BatchIdentity(bytes(range(16)), 3),
}


def column(items, before=b""):
    """A column of these items whose offsets begin behind `before`."""
    filled = [b"" if item is None else item for item in items]
    offsets = np.cumsum([len(before), *map(len, filled)]).astype(np.int32)
    valid = np.array([item is not None for item in items]) if None in items else None
    return BinaryColumn(offsets, memoryview(before + b"".join(filled)), valid)


@st.composite
def records(draw):
    """The same records as lists and as columns; both cut at the same places."""
    count = draw(st.integers(1, 20))

    def some(item):
        return draw(st.none() | st.lists(item, min_size=count, max_size=count))

    values = draw(st.lists(ITEM, min_size=count, max_size=count))
    keys, headers = some(ITEM), some(PAIRS)
    stamps = some(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 9))
    before = draw(st.binary(max_size=5))
    header_columns = None
    if headers is not None:
        flat = [pair for pairs in headers for pair in pairs]
        header_columns = HeaderColumns(
            np.cumsum([0, *map(len, headers)]).astype(np.int32),
            column([name.encode() for name, _ in flat], before),
            column([value for _, value in flat], before),
        )
    columns = RecordColumns(
        column(values, before),
        None if keys is None else column(keys, before),
        None if stamps is None else np.array(stamps, np.int64),
        header_columns,
    )
    return (values, keys, stamps, headers), columns


def image_of_lists(rows, lists, codec=0):
    values: Any
    values, keys, stamps, headers = (
        None if each is None else [each[row] for row in rows] for each in lists
    )
    return encode_batch(
        values, keys=keys, timestamps=stamps, headers=headers, codec=codec, **FIELDS
    ).image()


@BOUNDED
@given(records(), st.data())
def test_columns_make_the_same_bytes_whole_cut_and_reordered(pair, data):
    lists, columns = pair
    count = len(lists[0])
    assert encode_columns(columns, **FIELDS).image() == image_of_lists(range(count), lists)
    pieced = encode_columns(columns, in_pieces=True, **FIELDS)
    assert isinstance(pieced, PiecedBatch)
    assert pieced.settled() == encode_columns(columns, **FIELDS)
    assert (pieced.length, pieced.image()) == (len(pieced.image()), pieced.settled().image())
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    cut = encode_columns(columns.run(start, stop), **FIELDS).image()
    assert cut == image_of_lists(range(start, stop), lists)
    order = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=30))
    taken = encode_columns(columns.take(np.array(order)), **FIELDS).image()
    assert taken == image_of_lists(order, lists)


@BOUNDED
@given(records())
def test_sizes_bound_what_records_take(pair):
    lists, columns = pair
    sizes = columns.sizes()
    body = encode_columns(columns, **FIELDS).length - hd.HEADER_BYTES
    assert body <= int(sizes.sum()) + 512
    values, keys, _, headers = lists
    for row, size in enumerate(sizes.tolist()):
        alone = record_overhead(
            values[row], keys and keys[row], tuple(headers[row]) if headers else None
        )
        assert size <= alone + 16


def test_columns_are_compressed_alike():
    values = [b"x" * 100] * 100
    lz4 = encode_columns(RecordColumns(column(values)), codec=hd.CODEC_LZ4, **FIELDS)
    assert lz4.image() == encode_batch(values, codec=hd.CODEC_LZ4, **FIELDS).image()
    image = memoryview(lz4.image())
    assert decode(image, 0, hd.checked(image)).values.to_list() == values


@BOUNDED
@given(
    st.binary(max_size=200),
    st.integers(1, 120),
    st.sampled_from([0, 1, 7, 40]),
    st.randoms(use_true_random=False),
)
def test_gathered_items_are_the_ones_asked_for(data, count, spread, rng):
    """Widths are one, few, or many: three ways of copying."""
    source = np.frombuffer(data, np.uint8)
    width = rng.randrange(len(data) + 1)
    lengths = [min(len(data), max(0, width - rng.randrange(spread + 1))) for _ in range(count)]
    starts = [rng.randrange(len(data) - length + 1) for length in lengths]
    found = gather(source, np.array(starts, np.int64), np.array(lengths, np.int64))
    wanted = [data[at : at + length] for at, length in zip(starts, lengths, strict=True)]
    assert found.to_list() == wanted
    order = [rng.randrange(count) for _ in range(count)]
    assert take(found, np.array(order)).to_list() == [wanted[row] for row in order]


@BOUNDED
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_items_are_copied_to_where_they_belong(lengths, rng):
    places = list(range(len(lengths)))
    rng.shuffle(places)
    to, end = {}, 0
    for place in places:
        to[place], end = end, end + lengths[place]
    data = bytes(range(200))
    starts = [rng.randrange(len(data) - length) for length in lengths]
    out = np.zeros(end, np.uint8)
    copy_items(
        out,
        np.array([to[row] for row in range(len(lengths))]),
        np.frombuffer(data, np.uint8),
        np.array(starts),
        np.array(lengths),
    )
    wanted = b"".join(data[starts[place] : starts[place] + lengths[place]] for place in places)
    assert out.tobytes() == wanted


def test_ranges():
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(np.array([], int), np.array([], int)).tolist() == []


@pytest.mark.parametrize("valid", [[True, False, True], [False, True, False]])
def test_bytes_behind_nulls_are_taken_out(valid):
    hidden = BinaryColumn(np.array([0, 2, 4, 6], np.int32), memoryview(b"aabbcc"), np.array(valid))
    bare = without_hidden_bytes(hidden)
    assert bare.to_list() == hidden.to_list()
    assert bare.nbytes == 2 * sum(valid)
