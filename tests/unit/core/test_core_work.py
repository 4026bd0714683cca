"""Columns for work queues: there and back, checked where they come in, kept where a batch is made
of another, and passed over by who does not know them."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import golden_batches
import lz4.block
import numpy as np
import pytest
from batch_bytes import batch, body_of, identified, int32s, put, reseal
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.core.compacting import Keyed, compact
from unit.core.log_helpers import TOPIC

from penstock.core import header as hd
from penstock.core.admission import Refusal, verify, verify_verbatim
from penstock.core.columns import BinaryColumn, decode
from penstock.core.encode import encode_batch, record_overhead
from penstock.core.encode_columns import RecordColumns, encode_columns
from penstock.core.errors import CorruptBatchError, ErrorCode, UnsupportedVersionError
from penstock.core.plain import decode_records
from penstock.core.work import (
    DEDUP_ID_BYTES_MAX,
    PRIORITY_MAX,
    TIME_MAX,
    WorkColumns,
    WorkFields,
    read_work,
)

BOUNDED = settings(derandomize=True, max_examples=150)
PAIRS = (("name", b"value"),)
NEAR = st.integers(1 << 50, (1 << 50) + 99)
TIMES = st.none() | NEAR | st.integers(0, TIME_MAX)
FIELDS = st.builds(
    WorkFields,
    TIMES,
    TIMES,
    st.none() | st.integers(0, PRIORITY_MAX),
    st.none() | st.binary(min_size=1, max_size=DEDUP_ID_BYTES_MAX),
)
SAME = WorkFields(5, 1 << 40, 3, b"x")
ROWS = st.lists(st.none() | FIELDS, min_size=1, max_size=40) | st.integers(1, 40).map(
    lambda count: [SAME] * count
)
PLAIN = [(1, 1, b""), (7, 0, int32s(0, 1, 2)), (8, 0, b"ab")]
KEYS = [(5, 0, int32s(0, 1, 2)), (6, 0, b"kl")]
CODECS = st.sampled_from([hd.CODEC_NONE, hd.CODEC_LZ4])


def image_of(values, **columns):
    given = {"base_timestamp": 1_000, "topic_id": TOPIC, "partition": 0, **columns}
    return memoryview(encode_batch(values, **identified(**given)).image())


def columns_of(image):
    return decode(image, 0, hd.checked(image))


def sealed(sections, count=2, **fields):
    """A batch of these sections as they are, which promises columns for work queues."""
    given = {"record_count": count, "attributes": hd.ATTR_HAS_WORK, "topic_id": TOPIC, **fields}
    return memoryview(bytes(batch(body_of(sections), **given)))


def rows_of(columns, count):
    """What `WorkColumns.of` was told, with nothing for a row without anything."""
    if columns is None:
        return [WorkFields()] * count
    lists = [[None] * count if column is None else list(column) for column in columns]
    return [WorkFields(*row) for row in zip(*lists, strict=True)]


# --- there and back ------------------------------------------------------------------------------
@BOUNDED
@given(ROWS, CODECS, st.booleans(), st.booleans(), st.sampled_from([3, 300]))
def test_what_goes_in_comes_out_beside_whatever_else_there_is(rows, codec, keyed, headed, width):
    count = len(rows)
    values = [b"v" * width] * count
    more: dict[str, Any] = {"keys": values if keyed else None}
    more["headers"] = [PAIRS] * count if headed else None
    image = image_of(values, work=WorkColumns.of(rows), codec=codec, **more)
    columns = columns_of(image)
    assert rows_of(columns.work, count) == [row or WorkFields() for row in rows]
    assert columns.values.to_list() == values
    has_any = any(row is not None and row != WorkFields() for row in rows)
    assert bool(columns.head.attributes & hd.ATTR_HAS_WORK) == has_any == (columns.work is not None)
    verified = verify(image, TOPIC, 0, len(image))
    assert not isinstance(verified, Refusal)
    if not has_any:
        assert image == image_of(values, codec=codec, **more)
    key, pairs = (values[0] if keyed else None), (PAIRS if headed else None)
    bound = sum(record_overhead(values[0], key, pairs, row) for row in rows)
    assert len(image) <= bound + 768


@BOUNDED
@given(ROWS, CODECS, st.data())
def test_columns_make_the_same_bytes_whole_cut_and_reordered(rows, codec, data):
    count = len(rows)
    values = [b"%d" % number for number in range(count)]
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    column = BinaryColumn(offsets, memoryview(b"".join(values)))
    records = RecordColumns(column, work=WorkColumns.of(rows))
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    order = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=50))
    for found, chosen in (
        (records, range(count)),
        (records.run(start, stop), range(start, stop)),
        (records.take(np.array(order)), order),
    ):
        wanted = image_of(
            [values[row] for row in chosen],
            work=WorkColumns.of([rows[row] for row in chosen]),
            codec=codec,
        )
        fields = {"base_timestamp": 1_000, "identity": hd.BatchIdentity(TOPIC, 0), "codec": codec}
        assert encode_columns(found, **fields).image() == wanted
    body = len(image_of(values, work=WorkColumns.of(rows))) - hd.HEADER_BYTES
    assert body <= int(records.sizes().sum()) + 512


def test_one_value_of_all_takes_no_byte_of_each():
    values = [b"v"] * 1_000
    plain, full = (
        image_of(values),
        image_of(values, work=WorkColumns([7] * 1_000, None, [3] * 1_000)),
    )
    assert len(full) - len(plain) <= 64
    due = [7, *range(100, 1_099)]
    assert len(image_of(values, work=WorkColumns(due))) - len(plain) <= 4_000 + 64


@pytest.mark.parametrize("name", ["work", "work-lz4", "work-lz4-not-smaller", "work-constant"])
def test_golden_batches_are_read(name):
    image = memoryview(golden_batches.load(name))
    columns = columns_of(image)
    if name == "work-constant":
        first = golden_batches.BASE_TIME + 1
        assert columns.work == WorkColumns([first] * 2, priorities=[7, 7])
        return
    assert columns.work == golden_batches.WORK
    assert columns.head.codec == (hd.CODEC_LZ4 if name == "work-lz4" else hd.CODEC_NONE)


@pytest.mark.parametrize("name", golden_batches.CASES)
def test_golden_batches_without_them_have_none(name):
    image = memoryview(golden_batches.load(name))
    if not name.startswith("work"):
        assert columns_of(image).work is None


# --- both directions -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["work", "work-lz4", "work-lz4-not-smaller", "work-constant"])
def test_who_does_not_know_the_columns_reads_the_records(name):
    """As a build that does not look at the attribute."""
    image = bytearray(golden_batches.load(name))
    known = columns_of(memoryview(bytes(image)))
    put(image, attributes=known.head.attributes & ~hd.ATTR_HAS_WORK)
    older = columns_of(memoryview(bytes(reseal(image))))
    assert (older.work, older.values.to_list()) == (None, known.values.to_list())
    assert older.keys.to_list() == known.keys.to_list()
    records = decode_records(image, 0, hd.checked(image))
    assert [record.value for record in records] == known.values.to_list()


LATER = (99, 7, b"of a later version")


def test_sections_of_a_later_version_are_passed_over():
    image = sealed([*PLAIN, LATER], attributes=0x8000)
    assert columns_of(image).values.to_list() == [b"a", b"b"]
    image = sealed([*PLAIN, (17, 1, b"\5"), (25, 0, b"more of it")])
    assert columns_of(image).work == WorkColumns(priorities=[5, 5])
    assert not isinstance(verify(image, TOPIC, 0, len(image)), Refusal)


# --- batches made of others ----------------------------------------------------------------------
@pytest.mark.parametrize("codec", [hd.CODEC_NONE, hd.CODEC_LZ4])
def test_compaction_keeps_the_columns_of_the_records_that_stay(codec):
    keyed = Keyed()
    value = b"v" * 200
    rows = [SAME, None, WorkFields(9, None, 1), WorkFields(dedup_id=b"d")]
    pairs = [(b"%d" % number, value) for number in range(4)]
    keyed.put(*pairs, work=WorkColumns.of(rows), codec=codec)
    keyed.put((b"0", value), (b"3", value))
    keyed.close_segment()
    compact(keyed.storage, keyed.log)
    [(head, data), *_] = keyed.log.read(0, 1 << 20)
    columns = decode(memoryview(data), 0, head)
    assert (columns.offsets.tolist(), columns.head.codec) == ([1, 2], codec)
    assert rows_of(columns.work, 2) == [WorkFields(), rows[2]]


@pytest.mark.parametrize("codec", [hd.CODEC_NONE, hd.CODEC_LZ4])
def test_compaction_never_writes_again_what_it_does_not_know(codec):
    keyed = Keyed()
    raw = body_of([*PLAIN, *KEYS, *([LATER] if codec == hd.CODEC_NONE else [])])
    body, attributes = raw, hd.ATTR_HAS_KEYS
    if codec != hd.CODEC_NONE:
        block = lz4.block.compress(raw, store_size=False)
        stored = struct.pack("<II", len(block), 0) + block
        body = stored + bytes(-len(stored) % 8) + body_of([(17, 1, b"\1"), LATER])
        attributes |= hd.ATTR_HAS_WORK
    image = batch(
        body, record_count=2, codec=codec, attributes=attributes, raw_body_length=len(raw),
        topic_id=TOPIC, producer_id=1,
    )  # fmt: skip
    (result,) = keyed.log.append([memoryview(bytes(image))], keyed.at)
    assert not result.error, result
    keyed.put((b"k", b"newer"), producer=2)
    keyed.close_segment()
    with pytest.raises(UnsupportedVersionError, match=r"at offset 0 has sections .*99"):
        compact(keyed.storage, keyed.log)
    assert len(list(keyed.log.read(0, 1 << 20))) == 2


# --- hostile -------------------------------------------------------------------------------------
BASE = struct.pack("<q", 100)
IDS = (19, 0, int32s(0, 1, 2)), (20, 0, b"xy")

MALICIOUS = {
    "promised and not there": [],
    "ids without offsets": [(20, 0, b"xy")],
    "ids without bytes": [(19, 0, int32s(0, 1, 2))],
    "offsets of ids that fall": [(19, 0, int32s(0, 2, 1)), (20, 0, b"x")],
    "an id of no bytes": [(19, 0, int32s(0, 0, 2)), (20, 0, b"xy")],
    "an id that is too long": [(19, 0, int32s(0, 129, 130)), (20, 0, bytes(130))],
    "a validity of ids that is too long": [(18, 0, bytes(9)), *IDS],
    "a base that is cut": [(15, 1, bytes(7))],
    "a constant that has differences": [(15, 1, BASE + bytes(8))],
    "plain times": [(15, 0, bytes(16))],
    "times in an encoding that is unknown": [(16, 9, BASE + bytes(8))],
    "int32 times too few": [(15, 2, BASE + bytes(4))],
    "int32 times too many": [(16, 2, BASE + bytes(12))],
    "int64 times too few": [(16, 3, BASE + bytes(8))],
    "a negative base": [(15, 1, struct.pack("<q", -1))],
    "a base after the year 9999": [(15, 1, struct.pack("<q", TIME_MAX + 1))],
    "a difference below none": [(15, 2, BASE + int32s(0, -2))],
    "a time after the year 9999": [(15, 2, struct.pack("<q", TIME_MAX) + int32s(0, 1))],
    "a time that wraps": [(16, 3, BASE + struct.pack("<qq", 0, (1 << 63) - 1))],
    "a priority of 10": [(17, 0, b"\0\12")],
    "a constant priority of 10": [(17, 1, b"\12")],
    "priorities too few": [(17, 0, b"\1")],
    "priorities too many": [(17, 0, b"\1\2\3")],
    "a constant priority of two bytes": [(17, 1, b"\1\1")],
    "priorities in an encoding that is unknown": [(17, 2, b"\1\1")],
    "ids behind good times": [(15, 1, BASE), (19, 0, int32s(0, 5, 2)), (20, 0, b"xy")],
}


@pytest.mark.parametrize("case", MALICIOUS)
def test_bad_columns_are_refused_by_the_writer_and_by_readers(case):
    image = sealed([*PLAIN, *MALICIOUS[case]])
    refusal = verify(image, TOPIC, 0, len(image))
    assert isinstance(refusal, Refusal)
    assert refusal.result.error == ErrorCode.CORRUPT_BATCH
    with pytest.raises(CorruptBatchError):
        columns_of(image)
    # A follower takes what its leader took.
    assert isinstance(verify_verbatim(image, TOPIC, 0), hd.BatchHeader)


def test_the_honest_forms_are_good():
    honest = [(15, 2, BASE + int32s(-1, 5)), (16, 3, BASE + bytes(16)), (17, 0, b"\11\xff"), *IDS]
    image = sealed([*PLAIN, *honest])
    assert columns_of(image).work == WorkColumns([None, 105], [100, 100], [9, None], [b"x", b"y"])


def test_bad_columns_behind_a_block_are_refused_without_expanding_it():
    image = bytearray(golden_batches.load("work-lz4"))
    at = image.index(b"invoice-4711")
    (packed,) = struct.unpack_from("<I", image, hd.HEADER_BYTES)
    assert at > hd.HEADER_BYTES + 8 + packed
    image[hd.HEADER_BYTES + 8 : hd.HEADER_BYTES + 8 + packed] = bytes(packed)  # no lz4 any more
    head = hd.checked(reseal(image))
    stored = memoryview(bytes(image))[hd.HEADER_BYTES :]
    assert read_work(stored, head).columns(3) == golden_batches.WORK
    for bad in (packed + 64, 1 << 31, len(stored) - 8):
        struct.pack_into("<I", image, hd.HEADER_BYTES, bad)
        with pytest.raises(CorruptBatchError):
            read_work(memoryview(bytes(image))[hd.HEADER_BYTES :], head)


def test_records_that_are_only_claimed_take_no_memory_of_a_writer():
    work = [(15, 1, BASE), (16, 1, BASE), (17, 1, b"\1")]
    count = hd.RECORDS_MAX
    image = sealed([*PLAIN, *work], count, last_offset_delta=count - 1)
    tracemalloc.start()
    try:
        assert not isinstance(verify(image, TOPIC, 0, len(image)), Refusal)
        with pytest.raises(CorruptBatchError):
            columns_of(image)
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


@settings(derandomize=True, max_examples=400)
@given(
    st.lists(st.tuples(st.integers(14, 21), st.integers(0, 4), st.binary(max_size=24)), max_size=5),
    st.integers(0, 3),
)
def test_random_columns_raise_nothing_but_named_errors(sections, count):
    offsets = int32s(*range(count + 1))
    values = [(1, 1, b""), (7, 0, offsets), (8, 0, bytes(count))]
    image = sealed([*values, *sections], count)
    refusal = verify(image, TOPIC, 0, len(image))
    with suppress(CorruptBatchError):
        columns = columns_of(image)
        assert not isinstance(refusal, Refusal)
        assert columns.work is not None
        assert all(column is None or len(column) == count for column in columns.work)


@settings(derandomize=True, max_examples=200)
@given(st.integers(128, 500), st.binary(min_size=1, max_size=8), st.sampled_from([0, 1]))
def test_bytes_that_flip_in_good_batches_raise_nothing_but_named_errors(at, noise, which):
    image = bytearray(golden_batches.load(("work", "work-lz4")[which]))
    at = min(at, len(image) - len(noise))
    image[at : at + len(noise)] = noise
    with suppress(CorruptBatchError):
        columns_of(memoryview(bytes(reseal(image))))
