"""The batch header against its table, and what no checksum may let through."""

from __future__ import annotations

import struct

import batch_bytes
import golden_batches
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

BOUNDED = settings(derandomize=True, max_examples=150)
U16 = st.integers(0, (1 << 16) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
CODES = {"B": st.integers(0, 255), "H": U16, "I": U32, "Q": U64, "q": I64}


def strategy(name):
    code = batch_bytes.FIELDS[name][1]
    if code.endswith("s"):
        size = int(code[:-1])
        return st.binary(min_size=size, max_size=size)
    return CODES[code]


def example(**changed):
    """A good batch of two records without columns: only its header is looked at here."""
    return batch_bytes.batch(bytes(64), **{"record_count": 2, **changed})


def test_the_table_of_the_format_covers_all_128_bytes_once():
    position = 0
    for start, code in batch_bytes.FIELDS.values():
        assert start == position
        position += struct.calcsize("<" + code)
    assert position == hd.HEADER_BYTES == 128


@BOUNDED
@given(st.fixed_dictionaries({name: strategy(name) for name in batch_bytes.FIELDS}))
def test_every_field_is_read_from_its_place(fields):
    raw = bytearray(128)
    batch_bytes.put(raw, **fields)
    assert hd.parse(bytes(raw))._asdict() == fields
    assert hd.parse(memoryview(b"?" * 5 + raw), 5)._asdict() == fields


PRODUCERS = ("length", "codec", "attributes", "last_offset_delta", "record_count", "producer_id",
             "producer_epoch", "base_sequence", "base_timestamp", "max_timestamp",
             "raw_body_length", "partition", "topic_id")  # fmt: skip


@BOUNDED
@given(st.fixed_dictionaries({name: strategy(name) for name in (*PRODUCERS, "body_crc")}))
def test_the_producers_part_is_written_to_its_place(fields):
    body_crc = fields.pop("body_crc")
    packed = hd.pack_header(**batch_bytes.identified(**fields))
    hd.seal_header(packed, body_crc)
    expected = bytearray(128)
    batch_bytes.put(expected, magic=b"PSTK", version=1, header_units=8, body_crc=body_crc, **fields)
    struct.pack_into("<I", expected, 8, crc32c(bytes(expected)))
    assert packed == expected


@BOUNDED
@given(
    st.fixed_dictionaries(
        {
            name: strategy(name)
            for name in ("base_offset", "leader_epoch", "generation", "append_timestamp", "flags")
        }
    )
)
def test_the_stamp_changes_bytes_0_to_43_only_and_keeps_the_length(fields):
    before = example(delete_horizon=77, reserved_end=1 << 60)
    private = bytearray(before[:128])
    hd.stamp(private, **fields)
    assert private[44:] == before[44:128]
    assert batch_bytes.get(private, "length") == len(before)
    expected = bytearray(before[:128])
    batch_bytes.put(expected, delete_horizon=0, header_crc=0, **fields)
    struct.pack_into("<I", expected, 8, crc32c(bytes(expected)))
    assert private == expected


def test_a_stamped_batch_is_good_and_its_body_crc_survives():
    image = example()
    private = bytearray(image[:128])
    hd.stamp(private, base_offset=41, leader_epoch=2, generation=3, append_timestamp=9, flags=1)
    whole = memoryview(bytes(private) + bytes(image[128:]))
    head = hd.checked(whole)
    assert (head.base_offset, head.last_offset, head.next_offset) == (41, 42, 43)
    assert hd.body_is_good(whole, 0, head)


@pytest.mark.parametrize("name", ["stamped", "lz4", "headers"])
def test_any_single_flipped_bit_is_found(name):
    good = golden_batches.load(name)
    missed = []
    for bit in range(8 * len(good)):
        image = bytearray(good)
        image[bit >> 3] ^= 1 << (bit & 7)
        try:
            head = hd.checked(image)
        except CorruptBatchError:
            continue
        if hd.body_is_good(memoryview(image), 0, head):
            missed.append((bit >> 3, bit & 7))
    assert missed == []


def test_the_header_checksum_alone_covers_the_brokers_and_the_producers_part():
    good = golden_batches.load("stamped")
    for byte in range(128):
        image = bytearray(good)
        image[byte] ^= 0x10
        with pytest.raises(CorruptBatchError):
            hd.checked(image)


def test_the_body_checksum_alone_covers_bytes_48_to_the_end():
    good = golden_batches.load("stamped")
    head = hd.checked(good)
    for byte in range(len(good)):
        image = bytearray(good)
        image[byte] ^= 0x10
        assert hd.body_is_good(memoryview(image), 0, head) is (byte < 48)


def test_fewer_bytes_than_a_header_are_corrupt_and_counted():
    for length in range(128):
        image = bytes(example()[:length])
        with pytest.raises(CorruptBatchError, match=f" {length} are there"):
            hd.checked(image)
        with pytest.raises(CorruptBatchError, match=f" {length} are there"):
            hd.parse(b"x" * 3 + image, 3)


def test_a_position_behind_the_end_is_corrupt():
    with pytest.raises(CorruptBatchError, match="0 are there"):
        hd.parse(b"x" * 10, 11)


@BOUNDED
@given(st.binary(min_size=128, max_size=256))
def test_garbage_is_corrupt(garbage):
    for image in (garbage, b"PSTK" + garbage[4:]):
        with pytest.raises(CorruptBatchError):
            hd.checked(image)


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 0},
        {"length": 64},
        {"length": 128 + 96},
        {"length": (1 << 28) + 64},
        {"length": (1 << 32) - 64},
        {"record_count": 3, "last_offset_delta": 1},
        {"record_count": (1 << 32) - 1},
        {"last_offset_delta": 1 << 24},
        {"last_offset_delta": (1 << 32) - 1, "record_count": 0},
        {"checksum_kind": 1},
        {"codec": 3},
        {"codec": 255},
        {"base_offset": 1 << 63},
        {"base_offset": (1 << 64) - 1},
        {"raw_body_length": 65},  # more than the 64 bytes that are there
        {"raw_body_length": (1 << 32) - 1},
        {"raw_body_length": (1 << 26) + 1, "codec": 1},
        {"raw_body_length": (1 << 32) - 1, "codec": 2},
    ],
    ids=str,
)
def test_impossible_fields_under_a_good_checksum_are_corrupt(fields):
    with pytest.raises(CorruptBatchError, match="impossible"):
        hd.checked(example(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 128, "raw_body_length": 0},
        {"length": 1 << 28},
        {"length": 1 << 28, "raw_body_length": (1 << 28) - 128},
        {"raw_body_length": 1 << 26, "codec": 1},
        {"record_count": 1, "last_offset_delta": 5},
        {"record_count": 0, "last_offset_delta": 0},
        {"last_offset_delta": (1 << 24) - 1, "record_count": 1 << 24},
        {"codec": 2},
        {"base_offset": 1 << 61},
        {"delete_horizon": 1, "reserved_end": 1},
        {"flags": 0xFFFF, "attributes": 0xFFFF},
    ],
    ids=str,
)
def test_the_bounds_themselves_are_good(fields):
    head = hd.checked(example(**fields))
    assert {name: getattr(head, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 0}, "version 0"),
        ({"version": 2}, "version 2"),
        ({"header_units": 9}, "header of 144 bytes"),
    ],
    ids=str,
)
def test_another_version_is_named_as_such_only_under_a_good_checksum(fields, said):
    image = example(**fields)
    with pytest.raises(UnsupportedVersionError, match=f"{said}.* reads version 1 with 128"):
        hd.checked(image)
    image[30] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        hd.checked(image)


def test_an_unknown_magic_is_shown():
    with pytest.raises(CorruptBatchError, match="KAFK"):
        hd.checked(example(magic=b"KAFK"))


@given(st.integers(0, 1 << 30))
@BOUNDED
def test_aligned_is_the_next_multiple_of_64(length):
    assert length <= hd.aligned(length) < length + 64
    assert hd.aligned(length) % 64 == 0
