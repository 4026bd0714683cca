"""Bodies of an enemy under good checksums: `CorruptBatchError` and nothing worse."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress

import lz4.block
import pytest
from batch_bytes import (
    batch,
    body_of,
    directory,
    int32s,
    read_all,
    reseal,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.encode import encode_batch
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

NAMED = (CorruptBatchError, UnsupportedVersionError)
HAS_KEYS, HAS_HEADERS, SPARSE = 4, 8, 16

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


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=150), st.integers(0, 150), st.integers(0, 400))
def test_random_compressed_bodies_raise_nothing_but_named_errors(block, stored, claim):
    body = stored.to_bytes(4, "little") + bytes(4) + block
    with suppress(*NAMED):
        read_all(batch(body, record_count=1, codec=1, raw_body_length=claim))


def test_a_large_honest_batch_comes_through():
    items = [bytes([index & 255]) * 1000 for index in range(20_000)]
    encoded = encode_batch(
        items, hd.BatchIdentity(bytes(16), 0), keys=items, base_timestamp=0, codec=1
    )
    assert encoded.length < 4 << 20
    _, _, _, keys, found, _, _ = read_all(encoded.image())
    assert keys == found == items
