"""Records that a worker reads ahead: their hashes by offset, gaps, the bound, what is taken."""

from __future__ import annotations

import random

import numpy as np
import pytest
from chunk_builder import chunk_of

from penstock.client.share.key_hashes import hashes_of, header_hashes, key_hashes
from penstock.client.share.look_ahead import LookAhead
from penstock.core.columns import BinaryColumn
from penstock.ipc.sharing import HASHES_BYTES_MAX, ShareSettings

NAME = ("t", 0)
KEYED = ShareSettings(order="key")
BOTH = ShareSettings(order="key", fair="header:tenant")


def column(items):
    lengths = [len(item or b"") for item in items]
    bounds = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    valid = np.array([item is not None for item in items])
    return BinaryColumn(bounds, memoryview(b"".join(item or b"" for item in items)), valid)


def longs(data):
    return np.frombuffer(data, "<u8").tolist()


def taken(ahead, *what):
    """Offsets of each chunk, and where that ends."""
    found = ahead.take(NAME, *what)
    return found and ([chunk.offsets.tolist() for chunk in found[0]], found[1])


def records(first, *keys, gap=0, tenants=None):
    """A chunk of them; each is `gap` offsets behind the one before it."""
    deltas = [number * (gap + 1) for number in range(len(keys))] if gap else None
    headers = tenants and [[("a", b"1"), ("tenant", one)] for one in tenants]
    return chunk_of(
        [b"v"] * len(keys), base_offset=first, keys=keys, headers=headers, offset_deltas=deltas,
        last_offset_delta=deltas[-1] if deltas else None,
    )  # fmt: skip


def test_every_byte_and_the_length_count_and_only_a_null_is_none():
    draw = random.Random(7)
    keys = [bytes(draw.randbytes(length)) for length in (*range(40), 255, 256, 257, 1000)] * 2
    found = hashes_of(column([*keys, None])).tolist()
    assert found[: len(keys) // 2] == found[len(keys) // 2 : -1], "the same of the same bytes"
    assert len(set(found)) == len(keys) // 2 + 1
    assert [at for at, one in enumerate(found) if not one] == [len(keys)]
    changed = [key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :] for key in keys for at in
               {0, len(key) // 2, len(key) - 1} if key]  # fmt: skip
    assert not set(hashes_of(column(changed)).tolist()) & set(found)
    zeros = [bytes(length) for length in range(30)]
    assert len(set(hashes_of(column(zeros)).tolist())) == 30, "also of zeros"
    assert hashes_of(column([b"customer-1", b""])).tolist() == [
        hashes_of(column([key])).tolist()[0] for key in (b"customer-1", b"")
    ]


def test_a_tenant_is_the_first_header_of_its_name():
    headers = [
        [("tenant", b"a")], [("other", b"a"), ("tenant", b"b"), ("tenant", b"a")], None,
        [("tenants", b"a")], [("tenant", None)], [("tenanT", b"a"), ("tenant", b"a")],
    ]  # fmt: skip
    chunk = chunk_of([b"v"] * 6, headers=headers)
    a, b = hashes_of(column([b"a", b"b"])).tolist()
    assert header_hashes(chunk, b"tenant").tolist() == [a, b, 0, 0, 0, a]
    assert header_hashes(chunk.cut(1, 3), b"tenant").tolist() == [b, 0]
    assert header_hashes(chunk_of([b"v"]), b"tenant").tolist() == [0]
    assert key_hashes(chunk).tolist() == [0] * 6


def test_hashes_are_told_by_offset_across_gaps_and_from_the_frontier_on():
    ahead = LookAhead(BOTH, 1 << 20)
    assert ahead.is_on
    assert ahead.expects(NAME, 10) == 10
    first = records(12, b"a", b"b", gap=1, tenants=[b"x", None])
    ahead.came(NAME, [first, records(17, b"a", tenants=[b"y"])], 20)
    a, b, x, y = hashes_of(column([b"a", b"b", b"x", b"y"])).tolist()
    told = ahead.told(NAME, 100)
    assert told.first == 10
    assert longs(told.keys) == [0, 0, a, 0, b, 0, 0, a, 0, 0]
    assert longs(told.tenants) == [0, 0, x, 0, 0, 0, 0, y, 0, 0]
    assert ahead.expects(NAME, 14) == 20
    assert ahead.untold(NAME) == 6
    told = ahead.told(NAME, 2)
    assert (told.first, longs(told.keys)) == (14, [b, 0])
    assert ahead.expects(NAME, 5) == 5, "the group went back"
    assert ahead.untold(NAME) == 0
    assert ahead.expects(NAME, 50) == 50, "others are ahead"


@pytest.mark.parametrize(
    ("settings", "records_max", "has_keys", "has_tenants"),
    [
        (KEYED, 1000, True, False),
        (BOTH, 500, True, True),
        (ShareSettings(fair="key"), 1000, False, True),
        (ShareSettings(order="key", fair="key"), 1000, True, False),
        (ShareSettings(fair="header:tenant"), 1000, False, True),
    ],
)
def test_only_what_the_group_goes_by_is_told(settings, records_max, has_keys, has_tenants):
    ahead = LookAhead(settings, 1 << 20)
    assert ahead.told_max == records_max == HASHES_BYTES_MAX // 8 // (has_keys + has_tenants)
    ahead.expects(NAME, 0)
    assert ahead.wants(NAME)
    ahead.came(NAME, [records(0, b"a", tenants=[b"x"])], 1)
    told = ahead.told(NAME, 9)
    assert (bool(told.keys), bool(told.tenants)) == (has_keys, has_tenants)
    ahead.came(NAME, [], records_max)
    assert not ahead.wants(NAME)


def test_leased_records_are_taken_from_what_was_read_ahead_as_long_as_that_is_kept():
    chunks = [records(first, b"a", b"b", b"c", b"d") for first in (0, 4, 8)]
    ahead = LookAhead(KEYED, 2 * chunks[0].size)
    assert ahead.take(NAME, 0, 4, 9) is None
    ahead.expects(NAME, 0)
    ahead.came(NAME, chunks, 14)
    assert ahead.take(NAME, 0, 4, 9) is None, "it was evicted, and is read again"
    assert longs(ahead.told(NAME, 1).keys)[0], "and its hashes are known"
    assert taken(ahead, 5, 12, 9) == ([[5, 6, 7], [8, 9, 10, 11]], 12)
    assert taken(ahead, 5, 12, 4) == ([[5, 6, 7], [8]], 9)
    assert ahead.take(NAME, 12, 14, 9) == ([], 14), "no record stands there"
    assert ahead.take(NAME, 14, 20, 9) is None
    ahead.passed(NAME, 20)
    assert ahead.take(NAME, 14, 20, 9) is None, "who is given these finds out what is wrong"
    assert longs(ahead.told(NAME, 99).keys)[-8:] == [0] * 8
    ahead.forget(NAME)
    assert ahead.take(NAME, 5, 12, 9) is None


def test_records_of_another_leader_epoch_are_read_again():
    ahead = LookAhead(KEYED, 1 << 20)
    ahead.led(NAME, 3)
    ahead.expects(NAME, 0)
    ahead.came(NAME, [records(0, b"a", b"b")], 2)
    ahead.led(NAME, 3)
    assert taken(ahead, 0, 2, 9) == ([[0, 1]], 2)
    ahead.led(NAME, 4)
    assert ahead.take(NAME, 0, 2, 9) is None
    assert ahead.expects(NAME, 0) == 0
