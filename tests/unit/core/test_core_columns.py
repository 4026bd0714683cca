"""Columns as sequences, and bytes of an enemy: `CorruptBatchError` and nothing worse."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress

import golden_batches
import lz4.block
import numpy as np
import pytest
from craft import batch, body_of, directory, int32s, put, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.columns import BinaryColumn, NullColumn, decode
from penstock.core.encode import encode_batch
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

BOUNDED = settings(derandomize=True, max_examples=200)
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


def read_all(image, **options):
    """Everything that a consumer may ask of a batch."""
    view = memoryview(bytes(image))
    columns = decode(view, 0, hd.checked(view), **options)
    return (
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        columns.constant_timestamp,
        columns.keys.to_list(),
        columns.values.to_list(),
        columns.headers(),
        [columns.first_at(offset) for offset in (0, columns.head.next_offset)],
    )


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
        "empty": ([], [], [], [], None),
        "timestamps-constant": ([0, 1], [base - 5] * 2, [None] * 2, [b"a", b"b"], None),
        "timestamps-int32": ([0, 1], [base + 9, base - 4], [None] * 2, [b"a", b"b"], None),
        "timestamps-int64": ([0, 1], [-1, (1 << 31) - 1], [None] * 2, [b"a", b"b"], None),
        "lz4": ([0, 1], [base] * 2, [b"k", None], [b"x" * 200, b"y" * 200], None),
        "lz4-not-smaller": ([0], [base], [None], [b"abc"], None),
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


@settings(derandomize=True, max_examples=300)
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


@settings(derandomize=True, max_examples=300)
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


# --- malicious columns under good checksums -----------------------------------------------------
TIMES = (1, 1, b"")
TWO_VALUES = [(7, 0, int32s(0, 1, 2)), (8, 0, b"ab")]
TWO_KEYS = [(5, 0, int32s(0, 1, 2)), (6, 0, b"kl")]
TWO_HEADERS = [
    (9, 0, int32s(0, 1, 2)),
    (10, 0, int32s(0, 1, 2)),
    (11, 0, b"no"),
    (13, 0, int32s(0, 1, 2)),
    (14, 0, b"12"),
]


def values(*offsets, data=b"ab"):
    return body_of([TIMES, (7, 0, int32s(*offsets)), (8, 0, data)])


MALICIOUS = {
    "no directory": (b"", {}),
    "a directory without an end": (directory(*[(1, 1, 0)] * 8, end=False), {}),
    "too many sections": (directory(*[(20, 0, 0)] * 40), {}),
    "a section past the end": (directory((8, 0, 10_000)), {}),
    "a section of 4 GiB": (directory((8, 0, (1 << 32) - 1)), {}),
    "a section after one that ends unaligned": (directory((20, 0, 47), (8, 0, 9)) + bytes(48), {}),
    "no values": (body_of([TIMES]), {}),
    "no value bytes": (body_of([TIMES, (7, 0, int32s(0, 0, 0))]), {}),
    "no value offsets": (body_of([TIMES, (8, 0, b"ab")]), {}),
    "one offset too few": (values(0, 2), {}),
    "one offset too many": (values(0, 1, 2, 2), {}),
    "no offsets": (values(data=b""), {}),
    "offsets that are no int32s": (body_of([(7, 0, bytes(11)), (8, 0, b"")]), {}),
    "offsets that fall": (values(0, 2, 1, data=b"a"), {}),
    "offsets that fall and rise": (values(0, 3, 2), {}),
    "offsets from 1": (values(1, 1, 2), {}),
    "negative offsets": (values(-1, 1, 2), {}),
    "a negative offset within": (values(0, -5, 2), {}),
    "a negative last offset": (values(0, 0, -2), {}),
    "offsets past the bytes": (values(0, 1, 3), {}),
    "offsets far past the bytes": (values(0, 1, (1 << 31) - 1), {}),
    "offsets short of the bytes": (values(0, 1, 1), {}),
    "keys promised and not there": (body_of([TIMES, *TWO_VALUES]), {"attributes": HAS_KEYS}),
    "key offsets that fall": (
        body_of([TIMES, *TWO_VALUES, (5, 0, int32s(0, 2, 1)), (6, 0, b"k")]),
        {"attributes": HAS_KEYS},
    ),
    "a bitmap too short": (body_of([TIMES, (4, 0, b""), *TWO_VALUES]), {}),
    "a bitmap too long": (body_of([TIMES, (4, 0, b"\3\0"), *TWO_VALUES]), {}),
    "a key bitmap too long": (
        body_of([TIMES, *TWO_VALUES, *TWO_KEYS, (3, 0, bytes(9))]),
        {"attributes": HAS_KEYS},
    ),
    "plain timestamps": (body_of([(1, 0, bytes(8)), *TWO_VALUES]), {}),
    "int32 timestamps too few": (body_of([(1, 2, bytes(4)), *TWO_VALUES]), {}),
    "int64 timestamps too few": (body_of([(1, 3, bytes(8)), *TWO_VALUES]), {}),
    "an unknown timestamp encoding": (body_of([(1, 9, bytes(8)), *TWO_VALUES]), {}),
    "fewer records than offsets without deltas": (
        body_of([TIMES, *TWO_VALUES]),
        {"last_offset_delta": 5},
    ),
    "sparse without deltas": (body_of([TIMES, *TWO_VALUES]), {"attributes": SPARSE}),
    "deltas too few": (
        body_of([TIMES, (2, 0, int32s(0)), *TWO_VALUES]),
        {"attributes": SPARSE, "last_offset_delta": 5},
    ),
    "negative deltas": (
        body_of([TIMES, (2, 0, int32s(-1, 0)), *TWO_VALUES]),
        {"attributes": SPARSE, "last_offset_delta": 5},
    ),
    "deltas that stand still": (
        body_of([TIMES, (2, 0, int32s(3, 3)), *TWO_VALUES]),
        {"attributes": SPARSE, "last_offset_delta": 5},
    ),
    "deltas past the batch": (
        body_of([TIMES, (2, 0, int32s(0, 6)), *TWO_VALUES]),
        {"attributes": SPARSE, "last_offset_delta": 5},
    ),
    "headers promised and not there": (body_of([TIMES, *TWO_VALUES]), {"attributes": HAS_HEADERS}),
    "more headers than names": (
        body_of([TIMES, *TWO_VALUES, (9, 0, int32s(0, 1, 3)), *TWO_HEADERS[1:]]),
        {"attributes": HAS_HEADERS},
    ),
    "two thousand million headers": (
        body_of([TIMES, *TWO_VALUES, (9, 0, int32s(0, 1, (1 << 31) - 1)), *TWO_HEADERS[1:]]),
        {"attributes": HAS_HEADERS},
    ),
    "a negative count of headers": (
        body_of([TIMES, *TWO_VALUES, (9, 0, int32s(0, 0, -1)), *TWO_HEADERS[1:]]),
        {"attributes": HAS_HEADERS},
    ),
    "header lists that fall": (
        body_of([TIMES, *TWO_VALUES, (9, 0, int32s(0, 3, 2)), *TWO_HEADERS[1:]]),
        {"attributes": HAS_HEADERS},
    ),
    "header lists from 1": (
        body_of([TIMES, *TWO_VALUES, (9, 0, int32s(1, 1, 2)), *TWO_HEADERS[1:]]),
        {"attributes": HAS_HEADERS},
    ),
    "header values missing": (
        body_of([TIMES, *TWO_VALUES, *TWO_HEADERS[:3]]),
        {"attributes": HAS_HEADERS},
    ),
    "sixteen million records in 64 bytes": (
        body_of([TIMES, *TWO_VALUES]),
        {"record_count": 1 << 24, "last_offset_delta": (1 << 24) - 1},
    ),
}


@pytest.mark.parametrize("case", MALICIOUS)
def test_malicious_columns_are_corrupt(case):
    body, fields = MALICIOUS[case]
    image = batch(body, **{"record_count": 2, **fields})
    hd.checked(image)  # the header is good: it is the columns that lie
    with pytest.raises(CorruptBatchError):
        read_all(image)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
@pytest.mark.parametrize(
    "bend",
    [
        lambda ends: [1, *ends[1:]],
        lambda ends: [-1, *ends[1:]],
        lambda ends: [*ends[:-1], ends[-1] + 1],
        lambda ends: [*ends[:-1], ends[-1] - 1],
        lambda ends: [*ends[:-1], (1 << 31) - 1],
        lambda ends: [*ends[:-1], -ends[-1]],
        lambda ends: [*ends[:-2], ends[-1] + 1, ends[-1]],
        lambda ends: [ends[0], -1, *ends[2:]] if len(ends) > 2 else [0, -1],
    ],
)
def test_bent_offsets_are_corrupt_in_batches_of_any_size(count, bend):
    ends = list(range(0, 2 * count + 1, 2))
    data = bytes(2 * count)
    honest = body_of([TIMES, (7, 0, int32s(*ends)), (8, 0, data)])
    read_all(batch(honest, record_count=count))
    bent = body_of([TIMES, (7, 0, int32s(*bend(ends))), (8, 0, data)])
    with pytest.raises(CorruptBatchError, match="do not rise"):
        read_all(batch(bent, record_count=count))


def test_the_honest_forms_of_the_malicious_batches_are_good():
    body = body_of(
        [
            (1, 2, int32s(0, 5)),
            (2, 0, int32s(0, 5)),
            *TWO_KEYS,
            *TWO_VALUES,
            (3, 0, b"\1"),
            (4, 0, b"\2"),
            *TWO_HEADERS,
            (99, 7, b"of a later version"),
        ]
    )
    image = batch(
        body,
        record_count=2,
        last_offset_delta=5,
        base_timestamp=10,
        attributes=HAS_KEYS | HAS_HEADERS | SPARSE,
    )
    assert read_all(image)[:-1] == (
        [0, 5],
        [10, 15],
        None,
        [b"k", None],
        [None, b"b"],
        [(("n", b"1"),), (("o", b"2"),)],
    )


def test_a_header_name_that_is_no_utf8_is_still_read():
    sections = [
        (11, 0, b"\xff\xfe") if ident == 11 else (ident, encoding, data)
        for ident, encoding, data in TWO_HEADERS
    ]
    image = batch(body_of([TIMES, *TWO_VALUES, *sections]), record_count=2, attributes=HAS_HEADERS)
    assert read_all(image)[5] == [(("\ufffd", b"1"),), (("\ufffd", b"2"),)]


# --- compressed bodies --------------------------------------------------------------------------
def packed(raw, **fields):
    block = lz4.block.compress(raw, store_size=False)
    body = len(block).to_bytes(4, "little") + bytes(4) + block
    return batch(body, **{"record_count": 2, "codec": 1, "raw_body_length": len(raw), **fields})


RAW = body_of([TIMES, *TWO_VALUES])


def peak_of(image):
    """The most memory that reading an image took, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            read_all(image)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claim", [(1 << 26) + 1, 1 << 27, 1 << 31, (1 << 32) - 1])
def test_a_compressed_batch_is_bounded_before_it_is_expanded(claim):
    assert peak_of(packed(RAW, raw_body_length=claim)) < 1 << 18
    assert peak_of(batch(RAW, record_count=2, raw_body_length=claim)) < 1 << 18


def test_the_bound_itself_is_expanded_and_found_wrong():
    with pytest.raises(CorruptBatchError, match="another length"):
        read_all(packed(RAW, raw_body_length=1 << 26))


def test_a_bomb_that_claims_less_than_it_holds_takes_no_more_than_its_claim():
    assert peak_of(packed(bytes(8 << 20), raw_body_length=4096)) < 1 << 18


@pytest.mark.parametrize("claim", [0, 1, len(RAW) - 1, len(RAW) + 1, len(RAW) + 8])
def test_a_claim_that_is_not_the_true_length_is_corrupt(claim):
    with pytest.raises(CorruptBatchError):
        read_all(packed(RAW, raw_body_length=claim))


@pytest.mark.parametrize("stored", [0, 1, 49, 57, 1 << 16, (1 << 32) - 1])
def test_a_stored_length_that_lies_is_corrupt(stored):
    image = packed(RAW)
    image[128:132] = stored.to_bytes(4, "little")
    with pytest.raises(CorruptBatchError):
        read_all(reseal(image))


def test_a_stored_length_that_lies_where_no_padding_gives_it_away_is_corrupt():
    for size in range(100):
        noise = random.Random(1).randbytes(size)
        raw = body_of([TIMES, (7, 0, int32s(0, 0, size)), (8, 0, noise)])
        image = packed(raw[: len(raw) - -size % 8])
        stored = int.from_bytes(image[128:132], "little")
        if stored + 8 == len(image) - 128:
            assert read_all(image)[4] == [b"", noise]
            image[128:132] = (stored + 1).to_bytes(4, "little")
            with pytest.raises(CorruptBatchError, match="longer than its batch"):
                read_all(reseal(image))
            return
    raise AssertionError("no body of these fills its batch")


def test_a_compressed_batch_without_a_body_is_corrupt():
    image = batch(b"", record_count=0, codec=1)
    assert len(image) == 128
    with pytest.raises(CorruptBatchError):
        read_all(image)


def test_zstd_is_unsupported_and_not_corrupt():
    with pytest.raises(UnsupportedVersionError, match="zstd"):
        read_all(packed(RAW, codec=2))


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=150), st.integers(0, 150), st.integers(0, 400))
def test_random_compressed_bodies_raise_nothing_but_named_errors(block, stored, claim):
    body = stored.to_bytes(4, "little") + bytes(4) + block
    with suppress(*NAMED):
        read_all(batch(body, record_count=1, codec=1, raw_body_length=claim))


def test_a_large_honest_batch_comes_through():
    items = [bytes([index & 255]) * 1000 for index in range(20_000)]
    encoded = encode_batch(
        items, keys=items, base_timestamp=0, topic_id=bytes(16), partition=0, codec=1
    )
    assert encoded.length < 4 << 20
    _, _, _, keys, found, _, _ = read_all(encoded.image())
    assert keys == found == items
