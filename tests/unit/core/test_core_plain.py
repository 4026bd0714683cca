"""Keyed records without numpy: the same bytes and values as the columns', and damage refused."""

from __future__ import annotations

import golden_batches
import pytest
from batch_bytes import (
    batch,
    body_of,
    identified,
    int32s,
    put,
    reseal,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.errors import CorruptBatchError, RecordTooLargeError
from penstock.core.plain import decode_records, encode_records

BOUNDED = settings(derandomize=True, max_examples=150)
ITEM = st.binary(max_size=12)
NULLABLE = st.one_of(st.none(), ITEM)
MANY = st.sampled_from([1, 7, 8, 9, 16, 33])
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
STAMP = st.integers(-(1 << 63), (1 << 63) - 1)
HEADER_FIELDS = st.fixed_dictionaries(
    {
        "base_timestamp": STAMP,
        "topic_id": st.binary(min_size=16, max_size=16),
        "partition": U32,
        "producer_id": U64,
        "producer_epoch": U32,
        "base_sequence": U64,
        "attributes": st.sampled_from([0, hd.ATTR_TRANSACTIONAL]),
    }
)
PAIRS = MANY.flatmap(lambda n: st.lists(st.tuples(ITEM, NULLABLE), min_size=n, max_size=n))


def plain(image):
    return decode_records(image, 0, hd.checked(image))


def by_columns(image):
    view = memoryview(image)
    columns = decode(view, 0, hd.checked(view))
    keys, values = columns.keys.to_list(), columns.values.to_list()
    return list(zip(columns.offsets.tolist(), keys, values, strict=True))


@BOUNDED
@given(pairs=PAIRS, fields=HEADER_FIELDS)
def test_the_bytes_are_those_that_the_columns_make_of_the_same_records(pairs, fields):
    image = encode_records(pairs, **identified(**fields))
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    assert image == encode_batch(values, keys=keys, **identified(**fields)).image()


@BOUNDED
@given(pairs=PAIRS, fields=HEADER_FIELDS)
def test_what_goes_in_comes_out_and_the_columns_read_the_same(pairs, fields):
    image = encode_records(pairs, **identified(**fields))
    assert [(key, value) for _, key, value in plain(image)] == pairs
    assert plain(image) == by_columns(image)
    head = hd.checked(image)
    assert (head.base_timestamp, head.max_timestamp) == (fields["base_timestamp"],) * 2


@BOUNDED
@given(
    values=st.lists(NULLABLE, min_size=1, max_size=20),
    keyed=st.booleans(),
    sparse=st.booleans(),
    codec=st.sampled_from([hd.CODEC_NONE, hd.CODEC_LZ4]),
)
def test_any_batch_of_the_columns_is_read_alike(values, keyed, sparse, codec):
    count = len(values)
    encoded = encode_batch(
        values,
        hd.BatchIdentity(bytes(16), 0),
        keys=values[::-1] if keyed else None,
        headers=[(("name", b"value"),)] * count,
        timestamps=range(5, 5 + count),
        offset_deltas=list(range(3, 3 + 2 * count, 2)) if sparse else None,
        last_offset_delta=3 + 2 * count if sparse else None,
        base_timestamp=0,
        codec=codec,
    )
    assert plain(encoded.image()) == by_columns(encoded.image())


@pytest.mark.parametrize("name", golden_batches.CASES)
def test_golden_batches_are_read_as_the_columns_read_them(name):
    image = bytes(golden_batches.load(name))
    assert plain(image) == by_columns(image)


def test_a_batch_that_compaction_emptied_has_no_records():
    image = batch(b"", record_count=0, last_offset_delta=4, attributes=hd.ATTR_SPARSE_OFFSETS)
    assert plain(bytes(image)) == []


@pytest.mark.parametrize(
    ("sections", "fields"),
    [
        ([(7, 0, int32s(0, 1)), (8, 0, b"x")], {"attributes": hd.ATTR_HAS_KEYS}),
        ([(7, 0, int32s(0, 2)), (8, 0, b"x")], {}),
        ([(7, 0, int32s(1, 1)), (8, 0, b"x")], {}),
        ([(7, 0, int32s(0, 1, 1)), (8, 0, b"x")], {}),
        ([(7, 0, int32s(0, 1))], {}),
        ([(4, 0, b"\1\0"), (7, 0, int32s(0, 1)), (8, 0, b"x")], {}),
        ([(7, 0, int32s(0, 1)), (8, 0, b"x")], {"last_offset_delta": 1}),
        ([(7, 0, int32s(0, 1)), (8, 0, b"x")], {"attributes": hd.ATTR_SPARSE_OFFSETS}),
        (
            [(2, 0, int32s(-1)), (7, 0, int32s(0, 1)), (8, 0, b"x")],
            {"attributes": hd.ATTR_SPARSE_OFFSETS},
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(sections, fields):
    image = bytes(batch(body_of(sections), record_count=1, **fields))
    with pytest.raises(CorruptBatchError):
        plain(image)


def test_a_batch_that_is_cut_off_or_whose_body_changed_is_refused():
    image = encode_records(
        [(b"k", b"v")], hd.BatchIdentity(bytes(16), 0, 1, 0, 0), base_timestamp=1
    )
    head = hd.checked(image)
    with pytest.raises(CorruptBatchError, match="are there"):
        decode_records(image[:-64], 0, head)
    changed = bytearray(image)
    changed[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        decode_records(changed, 0, head)


def test_a_column_beyond_the_format_is_refused_before_its_offsets_wrap():
    with pytest.raises(RecordTooLargeError, match="fewer or smaller"):
        encode_records(
            [(b"k", bytes(1 << 24))] * 17, hd.BatchIdentity(bytes(16), 0, 1, 0, 0), base_timestamp=1
        )


def test_damaged_directories_are_refused_as_the_columns_refuse_them():
    image = bytearray(golden_batches.load("keys"))
    put(image, record_count=2)
    for at in range(hd.HEADER_BYTES, hd.HEADER_BYTES + 48):
        for bit in range(8):
            damaged = bytearray(image)
            damaged[at] ^= 1 << bit
            reseal(damaged)
            outcomes = []
            for read in (plain, by_columns):
                try:
                    outcomes.append(read(bytes(damaged)))
                except CorruptBatchError:
                    outcomes.append(None)
            # Encodings of sections that `plain` does not look at may differ: timestamps.
            assert outcomes[0] == outcomes[1] or outcomes[1] is None
