"""Columns as sequences, what golden batches hold, and damage of every kind."""

from __future__ import annotations

import random
from contextlib import suppress

import golden_batches
import numpy as np
import pytest
from batch_bytes import (
    batch,
    directory,
    put,
    read_all,
    reseal,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.columns import BinaryColumn, NullColumn, decode
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

BOUNDED = settings(derandomize=True, max_examples=100)
ITEMS = st.one_of(
    st.lists(st.none() | st.binary(max_size=6), max_size=40),
    st.lists(st.binary(min_size=3, max_size=3), max_size=40),
    st.lists(st.none(), max_size=3),
)
NAMED = (CorruptBatchError, UnsupportedVersionError)
HAS_KEYS, HAS_HEADERS, SPARSE = 4, 8, 16


def column_of(items):
    filled = [item or b"" for item in items]
    offsets = np.zeros(len(items) + 1, np.int32)
    np.cumsum([len(item) for item in filled], out=offsets[1:])
    valid = np.array([item is not None for item in items], np.bool_)
    return BinaryColumn(offsets, memoryview(b"".join(filled)), None if valid.all() else valid)


# --- columns as sequences -----------------------------------------------------------------------
@BOUNDED
@given(ITEMS, st.data())
def test_a_column_is_the_list_it_stands_for(items, data):
    column = column_of(items)
    for _ in range(3):  # slices of slices too: offsets need not start at 0
        count = len(items)
        assert len(column) == count
        assert column.to_list() == list(column) == items
        assert [column[index] for index in range(-count, count)] == items * 2
        assert column.lengths.tolist() == [len(item or b"") for item in items]
        assert column.nbytes == sum(len(item or b"") for item in items)
        assert repr(column) == f"BinaryColumn({count} items, {column.nbytes} bytes)"
        for outside in (count, -count - 1):
            with pytest.raises(IndexError, match=f"item {outside} of a column of {count}"):
                column[outside]
        bounds = st.none() | st.integers(-count - 2, count + 2)
        part = slice(data.draw(bounds), data.draw(bounds))
        column, items = column[part], items[part]


def test_a_slice_shares_the_bytes_and_steps_are_refused():
    column = column_of([b"abc", b"de", b"f"])
    assert column[1:].data is column.data
    with pytest.raises(ValueError, match="steps of 1"):
        column[::2]
    assert all(type(item) is bytes for item in (column[0], *column, *column_of([b"ab"] * 9)))


@given(st.integers(0, 9), st.data())
@BOUNDED
def test_a_null_column_is_a_list_of_nones(count, data):
    column = NullColumn(count)
    items = [None] * count
    assert (len(column), column.to_list(), list(column)) == (count, items, items)
    assert [column[index] for index in range(-count, count)] == items * 2
    for outside in (count, -count - 1):
        with pytest.raises(IndexError):
            column[outside]
    bounds = st.none() | st.integers(-count - 2, count + 2)
    part = slice(data.draw(bounds), data.draw(bounds))
    assert column[part].to_list() == items[part]


# --- one decoded batch --------------------------------------------------------------------------
def test_columns_view_the_batch_where_it_lies():
    image = golden_batches.load("values")
    for before in (0, 8, 64, 4096):
        view = memoryview(b"?" * before + image + b"!" * 64)
        columns = decode(view, before, hd.checked(view, before))
        assert columns.values.to_list() == [b"one", b"", b"three"]
        assert np.shares_memory(np.frombuffer(columns.values.data, np.uint8), view)


@pytest.mark.parametrize("name", golden_batches.CASES)
def test_golden_batches_are_read_whatever_wrote_them(name):
    offsets, stamps, _, keys, values, headers, _ = read_all(golden_batches.load(name))
    base = golden_batches.BASE_TIME
    expected = {
        "values": ([0, 1, 2], [base] * 3, [None] * 3, [b"one", b"", b"three"], None),
        "stamped": ([0x0A0B0C0D0E0F], [base + 1], [None], [b"stamped"], None),
        "keys": ([0, 1], [base] * 2, [b"key", b""], [b"1", b"22"], None),
        "nulls": (
            list(range(12)),
            [base] * 12,
            [None, b"k", b"", b"kk"] * 3,
            [b"a", None, b"", None] * 3,
            None,
        ),
        "headers": (
            [0, 1, 2, 3],
            [base] * 4,
            [None] * 4,
            [b"a", b"b", b"c", b"d"],
            [(("trace", b"\x00\xff"), ("naïve", None)), (), (), (("", b""),)],
        ),
        "sparse": ([1, 5], [base] * 2, [None] * 2, [b"a", b"b"], None),
        **{
            f"control-{kind}": (
                [0],
                [base],
                [bytes((1, 0, number, 0))],
                [b"\0\0\0\0\x0d\x0c\x0b\x0a"],
                None,
            )
            for number, kind in enumerate(("begin", "commit", "abort"), 1)
        },
        "empty": ([], [], [], [], None),
        "timestamps-constant": ([0, 1], [base - 5] * 2, [None] * 2, [b"a", b"b"], None),
        "timestamps-int32": ([0, 1], [base + 9, base - 4], [None] * 2, [b"a", b"b"], None),
        "timestamps-int64": ([0, 1], [-1, (1 << 31) - 1], [None] * 2, [b"a", b"b"], None),
        "lz4": ([0, 1], [base] * 2, [b"k", None], [b"x" * 200, b"y" * 200], None),
        "lz4-not-smaller": ([0], [base], [None], [b"abc"], None),
        "work": ([0, 1, 2], [base] * 3, [b"k", None, b"kk"], [b"a", b"b", b"c"], None),
        "work-constant": ([0, 1], [base] * 2, [None] * 2, [b"a", b"b"], None),
        "work-lz4": ([0, 1, 2], [base] * 3, [None] * 3, [b"x" * 200] * 3, None),
        "work-lz4-not-smaller": ([0, 1, 2], [base] * 3, [None] * 3, [b"abc"] * 3, None),
    }
    assert (offsets, stamps, keys, values, headers) == expected[name]


def test_append_time_stands_for_every_record():
    image = bytearray(golden_batches.load("timestamps-int32"))
    put(image, flags=1, append_timestamp=77)
    reseal(image)
    columns = decode(memoryview(image), 0, hd.checked(image))
    assert columns.constant_timestamp == 77
    assert columns.timestamps.tolist() == [77, 77]


def test_the_first_record_at_an_offset():
    dense = memoryview(golden_batches.load("nulls"))
    put(image := bytearray(dense), base_offset=100)
    columns = decode(memoryview(reseal(image)), 0, hd.checked(image))
    assert [columns.first_at(offset) for offset in (0, 99, 100, 101, 111, 112, 1 << 62)] == [
        *(0, 0, 0, 1, 11, 12, 12)
    ]
    put(image := bytearray(golden_batches.load("sparse")), base_offset=100)
    sparse = decode(memoryview(reseal(image)), 0, hd.checked(image))
    assert [sparse.first_at(offset) for offset in (0, 100, 101, 102, 105, 106, 1 << 62)] == [
        *(0, 0, 0, 1, 1, 2, 2)
    ]


# --- cut off, flipped, random -------------------------------------------------------------------
@pytest.mark.parametrize("name", golden_batches.CASES)
def test_an_image_cut_at_any_byte_is_corrupt(name):
    image = golden_batches.load(name)
    for length in range(len(image)):
        with pytest.raises(CorruptBatchError):
            read_all(image[:length])


@pytest.mark.parametrize("name", golden_batches.CASES)
def test_any_flipped_byte_is_found_by_verify(name):
    image = golden_batches.load(name)
    for at in range(len(image)):
        damaged = bytearray(image)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptBatchError):
            read_all(damaged)


def test_verify_false_leaves_the_body_checksum_to_the_caller():
    image = bytearray(golden_batches.load("values"))
    image[-1] ^= 1  # padding
    with pytest.raises(CorruptBatchError, match="body checksum"):
        read_all(image)
    assert read_all(image, verify=False)[4] == [b"one", b"", b"three"]


@pytest.mark.parametrize("name", golden_batches.CASES)
def test_bodies_damaged_under_good_checksums_raise_nothing_but_named_errors(name):
    good = golden_batches.load(name)
    seed = f"damaged {name}"
    chance = random.Random(seed)
    refused = 0
    for _ in range(1500):
        image = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(48, len(image))
            image[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            read_all(reseal(image))
        except NAMED:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed!r}: {bytes(image).hex()}") from error
    assert refused > 100


@settings(derandomize=True, max_examples=150)
@given(
    st.binary(max_size=200),
    st.integers(0, 40),
    st.integers(0, 3),
    st.integers(0, 31),
    st.integers(0, 300) | st.integers(0, (1 << 32) - 1),
)
def test_random_bodies_under_good_checksums_raise_nothing_but_named_errors(
    body, records, codec, attributes, raw_length
):
    image = batch(
        body, record_count=records, attributes=attributes, codec=codec, raw_body_length=raw_length
    )
    with suppress(*NAMED):
        read_all(image)


@settings(derandomize=True, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 15), st.integers(0, 4), st.integers(0, 70) | st.just((1 << 32) - 1)
        ),
        max_size=12,
    ),
    st.binary(max_size=120),
    st.integers(0, 8),
    st.sampled_from([0, HAS_KEYS, HAS_HEADERS, SPARSE, HAS_KEYS | HAS_HEADERS | SPARSE]),
)
def test_random_directories_raise_nothing_but_named_errors(entries, rest, records, attributes):
    image = batch(directory(*entries) + rest, record_count=records, attributes=attributes)
    with suppress(*NAMED):
        read_all(image)
