"""Encoding: bytes that never change, columns that come back, bounds that are never crossed."""

from __future__ import annotations

import golden_batches
import pytest
from batch_bytes import batch, body_of, get, identified, int32s
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch, record_overhead
from penstock.core.errors import ConfigError, RecordTooLargeError

BOUNDED = settings(derandomize=True, max_examples=150)
NEAR_VECTOR = [0, 1, 2, 31, 32, 33, 100]
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
SECONDS = st.integers(1_600_000_000, 1_600_000_100).map(lambda second: second * 1_000_000)
ITEM = st.one_of(st.none(), st.binary(max_size=12))
PAIRS = st.lists(st.tuples(st.text(max_size=5), ITEM), max_size=3).map(tuple)


def encode(values, **columns):
    given_columns = {"base_timestamp": 1_000, "topic_id": bytes(16), "partition": 0, **columns}
    return encode_batch(values, **identified(**given_columns))


def decoded(encoded):
    image = memoryview(encoded.image())
    return decode(image, 0, hd.checked(image))


# --- golden bytes -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", golden_batches.CASES)
def test_golden_bytes(name):
    image = golden_batches.CASES[name]().image()
    assert golden_batches.as_text(image) == (golden_batches.FOLDER / f"{name}.hex").read_text()


def test_every_golden_file_is_held_by_a_case():
    files = {file.stem for file in golden_batches.FOLDER.glob("*.hex")}
    assert files == set(golden_batches.CASES)


def test_a_golden_batch_is_what_the_format_says_written_by_hand():
    body = body_of(
        [
            (1, 1, b""),
            (7, 0, int32s(0, 3, 3, 8)),
            (8, 0, b"onethree"),
        ]
    )
    by_hand = batch(
        body,
        record_count=3,
        partition=7,
        producer_id=0x1122334455667788,
        producer_epoch=3,
        base_sequence=0x0102030405060708,
        base_timestamp=1_700_000_000_000_000,
        max_timestamp=1_700_000_000_000_000,
        topic_id=bytes(range(16)),
    )
    assert golden_batches.load("values") == by_hand


def test_the_columns_of_golden_batches_written_by_hand():
    def body(name):
        image = golden_batches.load(name)
        return image[128 : 128 + int(get(image, "raw_body_length"))]

    assert body("keys") == body_of(
        [
            (1, 1, b""),
            (5, 0, int32s(0, 3, 3)),
            (6, 0, b"key"),
            (7, 0, int32s(0, 1, 3)),
            (8, 0, b"122"),
        ]
    )
    assert body("nulls") == body_of(
        [
            (1, 1, b""),
            (3, 0, bytes([0b11101110, 0b1110])),
            (5, 0, int32s(0, 0, 1, 1, 3, 3, 4, 4, 6, 6, 7, 7, 9)),
            (6, 0, b"kkk" * 3),
            (4, 0, bytes([0b01010101, 0b0101])),
            (7, 0, int32s(0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)),
            (8, 0, b"aaa"),
        ]
    )
    assert body("headers") == body_of(
        [
            (1, 1, b""),
            (7, 0, int32s(0, 1, 2, 3, 4)),
            (8, 0, b"abcd"),
            (9, 0, int32s(0, 2, 2, 2, 3)),
            (10, 0, int32s(0, 5, 11, 11)),
            (11, 0, b"trace" + "naïve".encode()),
            (12, 0, bytes([0b101])),
            (13, 0, int32s(0, 2, 2, 2)),
            (14, 0, b"\x00\xff"),
        ]
    )
    assert body("sparse") == body_of(
        [(1, 1, b""), (2, 0, int32s(1, 5)), (7, 0, int32s(0, 1, 2)), (8, 0, b"ab")]
    )
    assert body("timestamps-int32") == body_of(
        [(1, 2, int32s(13, 0)), (7, 0, int32s(0, 1, 2)), (8, 0, b"ab")]
    )
    assert body("timestamps-int64") == body_of(
        [
            (1, 3, (0).to_bytes(8, "little") + (1 << 31).to_bytes(8, "little")),
            (7, 0, int32s(0, 1, 2)),
            (8, 0, b"ab"),
        ]
    )


# --- there and back -----------------------------------------------------------------------------
@st.composite
def batches(draw):
    count = draw(st.one_of(st.integers(1, 8), st.sampled_from(NEAR_VECTOR[1:])))

    def column(item):
        return st.lists(item, min_size=count, max_size=count)

    columns = {
        "values": column(draw(st.sampled_from([ITEM, st.binary(max_size=9), st.just(b"same")]))),
        "keys": st.none() | column(ITEM),
        "headers": st.none() | column(st.none() | PAIRS),
        "timestamps": st.none() | column(I64) | column(SECONDS) | I64.map(lambda t: [t] * count),
        "codec": st.sampled_from([hd.CODEC_NONE, hd.CODEC_LZ4]),
        "base_timestamp": I64,
        "producer_id": st.integers(0, (1 << 64) - 1),
        "producer_epoch": st.integers(0, (1 << 32) - 1),
        "base_sequence": st.integers(0, (1 << 64) - 1),
        "partition": st.integers(0, (1 << 32) - 1),
        "topic_id": st.binary(min_size=16, max_size=16),
    }
    found = {name: draw(strategy) for name, strategy in columns.items()}
    if draw(st.booleans()):
        deltas = draw(
            st.lists(st.integers(0, (1 << 24) - 1), min_size=count, max_size=count, unique=True)
        )
        found["offset_deltas"] = sorted(deltas)
        found["last_offset_delta"] = draw(st.integers(max(deltas), (1 << 24) - 1))
    return found


@BOUNDED
@given(batches())
def test_what_was_encoded_comes_back(wanted):
    values = wanted.pop("values")
    encoded = encode(values, **wanted)
    assert encoded.length == len(encoded.image()) == get(encoded.header, "length")
    assert encoded.length % 64 == 0
    found = decoded(encoded)
    head = found.head
    count = len(values)
    assert found.count == count
    assert found.values.to_list() == values
    keys = wanted["keys"]
    assert found.keys.to_list() == (keys if keys is not None else [None] * count)
    headers = wanted["headers"]
    assert found.headers() == (
        None if headers is None else [tuple(entry) if entry else () for entry in headers]
    )
    stamps = wanted["timestamps"] or [wanted["base_timestamp"]] * count
    assert found.timestamps.tolist() == stamps
    assert found.constant_timestamp in (None, stamps[0])
    assert (found.constant_timestamp is None) == (len(set(stamps)) > 1)
    assert (head.base_timestamp, head.max_timestamp) == (min(stamps), max(stamps))
    offsets = wanted.get("offset_deltas", list(range(count)))
    assert found.offsets.tolist() == offsets
    assert found.is_dense == ("offset_deltas" not in wanted)
    assert head.last_offset_delta == wanted.get("last_offset_delta", count - 1)
    for name in ("producer_id", "producer_epoch", "base_sequence", "partition", "topic_id"):
        assert getattr(head, name) == wanted[name]


@pytest.mark.parametrize("codec", [hd.CODEC_NONE, hd.CODEC_LZ4])
@pytest.mark.parametrize("count", NEAR_VECTOR[1:])
def test_columns_are_the_same_bytes_whichever_way_their_offsets_were_made(count, codec):
    values = [b"v" * (index % 7) for index in range(count)]
    ends = [sum(index % 7 for index in range(stop)) for stop in range(count + 1)]
    encoded = encode(values, codec=codec)
    assert decoded(encoded).values.offsets.tolist() == ends
    assert decoded(encoded).values.to_list() == values


@pytest.mark.parametrize("nulls", [[0], [7], [8], [0, 8, 31], list(range(40))], ids=str)
def test_nulls_are_set_apart_from_empty_items(nulls):
    values = [None if index in nulls else b"" for index in range(40)]
    found = decoded(encode(values, keys=values)).values
    assert found.to_list() == values
    assert [found[index] for index in range(40)] == values
    assert found.valid is not None
    assert found.valid.tolist() == [value is not None for value in values]


def test_a_column_without_nulls_has_no_bitmap():
    assert decoded(encode([b""] * 40)).values.valid is None


def test_an_empty_sparse_batch_keeps_its_offsets_and_sequence():
    found = decoded(encode([], offset_deltas=[], last_offset_delta=9, base_sequence=5))
    assert (found.count, found.head.next_offset, found.head.base_sequence) == (0, 10, 5)
    assert found.offsets.tolist() == found.timestamps.tolist() == found.values.to_list() == []


@pytest.mark.parametrize(
    ("spread", "encoding"), [(0, 1), (1, 2), ((1 << 31) - 1, 2), (1 << 31, 3), ((1 << 64) - 1, 3)]
)
def test_timestamps_take_the_narrowest_encoding(spread, encoding):
    low = -(1 << 63)
    encoded = encode([b"", b""], timestamps=[low + spread, low])
    assert encoded.body[2] == encoding
    assert decoded(encoded).timestamps.tolist() == [low + spread, low]


# --- codecs and bounds --------------------------------------------------------------------------
def test_lz4_makes_a_batch_smaller_or_is_not_used():
    small = encode([b"0" * 100_000], codec=hd.CODEC_LZ4)
    assert small.length < 2_000
    assert get(small.header, "codec") == hd.CODEC_LZ4
    assert int(get(small.header, "raw_body_length")) >= 100_000
    noise = bytes(range(256))
    same = encode([noise], codec=hd.CODEC_LZ4)
    assert get(same.header, "codec") == hd.CODEC_NONE
    assert same == encode([noise])


@pytest.mark.parametrize("keys", [None, [b"k"]])
def test_what_readers_would_not_expand_is_not_compressed(monkeypatch, keys):
    """A batch nobody can read must not get into a log, however small lz4 makes it."""
    whole = encode([bytes(70_000)], keys=keys, codec=hd.CODEC_LZ4)
    raw = int(get(whole.header, "raw_body_length"))
    assert whole.length < raw // 10
    monkeypatch.setattr(hd, "RAW_BODY_MAX", raw)
    assert encode([bytes(70_000)], keys=keys, codec=hd.CODEC_LZ4) == whole
    monkeypatch.setattr(hd, "RAW_BODY_MAX", raw - 1)
    plain = encode([bytes(70_000)], keys=keys, codec=hd.CODEC_LZ4)
    assert plain == encode([bytes(70_000)], keys=keys)
    assert decoded(plain).values.to_list() == [bytes(70_000)]


def test_a_codec_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match="lz4"):
        encode([b"x"], codec=9)


MIB = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "columns",
    [
        {"values": [MIB] * 4096},  # 2**32 bytes: the int32 offsets would wrap to 0
        {"values": [MIB] * 2048},  # 2**31
        {"values": [MIB] * 257},
        {"values": [MIB * 64] * 31},  # few enough for the short way
        {"values": [MIB * 64, None] * 5},
        {"values": [b""] * 4096, "keys": [MIB] * 4096},
        {"values": [b""] * 4096, "headers": [(("h", MIB),)] * 4096},
        {"values": [MIB] * 128, "keys": [MIB] * 128},  # each column fits, both do not
    ],
    ids=["4GiB", "2GiB", "257MiB", "short", "nulls", "keys", "headers", "together"],
)
def test_a_batch_above_the_formats_bound_is_refused_before_it_is_made(columns):
    with pytest.raises(RecordTooLargeError, match=str(hd.BATCH_BYTES_MAX)):
        encode(columns.pop("values"), **columns)


@BOUNDED
@given(batches())
def test_record_overhead_is_an_upper_bound_of_any_batch(wanted):
    values = wanted.pop("values")
    wanted.pop("offset_deltas", None)  # producers never send sparse batches
    wanted.pop("last_offset_delta", None)
    wanted["codec"] = hd.CODEC_NONE
    keys = wanted["keys"] or [None] * len(values)
    headers = wanted["headers"] or [None] * len(values)
    bound = sum(
        record_overhead(value, key, entry)
        for value, key, entry in zip(values, keys, headers, strict=True)
    )
    assert encode(values, **wanted).length - 128 <= bound + 512


def test_record_overhead_is_an_upper_bound_for_many_small_records():
    count = 20_000
    values = [None, b""] * (count // 2)
    headers = [None] * (count - 1) + [(("h", b""),)]
    bound = sum(record_overhead(value, value, None) for value in values)
    spread = [0, 1 << 40] * (count // 2)
    encoded = encode(values, keys=values, headers=headers, timestamps=spread)
    assert encoded.length - 128 <= bound + 512
