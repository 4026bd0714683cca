"""The replication protocol's messages: their bounds, whatever bytes come."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.replica import Diverged, Fetched, FetchRefused, FetchRequest, Refusal
from penstock.server.replicator import wire

TOPIC = bytes(16)
REQUEST = FetchRequest((1 << 63) - 1, 7, 9, (1 << 32) - 1, 1 << 62, None, 1 << 62)
FETCHED = Fetched(1, 2, 3, 4, 5)
FOLLOWER = [
    wire.Hello(1, b"c" * wire.CLUSTER_ID_BYTES, 1, 2, 3),
    wire.Fetch(1, []),
    wire.Fetch(2, [(4095, TOPIC, REQUEST)] * wire.ITEMS_MAX),
]
LEADER = [
    wire.Welcome(1, 2, 3),
    wire.Refused("x" * 1000),
    wire.Answers(0),
    wire.Answers(
        9, [(1, 0, FETCHED)] * wire.ITEMS_MAX, [(2, Diverged(1, 2, 3, 4))] * wire.ITEMS_MAX,
        [(3, FetchRefused(1, Refusal.OLD_BROKER, 2))] * wire.ITEMS_MAX,
    ),
]  # fmt: skip


@pytest.mark.parametrize("message", FOLLOWER, ids=lambda m: type(m).__name__)
def test_what_a_follower_says_comes_as_it_was_and_fits(message):
    assert wire.from_follower([wire.encode(message)]) == message


@pytest.mark.parametrize("message", LEADER, ids=lambda m: type(m).__name__)
def test_what_a_leader_says_comes_as_it_was_and_fits(message):
    assert wire.from_leader([wire.encode(message)]) == message


def test_batches_are_as_many_frames_as_were_told_of():
    message = wire.Answers(1, [(1, 2, FETCHED), (2, 1, FETCHED)])
    frames = [wire.encode(message), b"a", b"b", b"c"]
    assert wire.from_leader(frames) == message
    for wrong in (frames[:3], [*frames, b"d"], frames[:1]):
        with pytest.raises(wire.WireError, match="frames of batches"):
            wire.from_leader(wrong)
    with pytest.raises(wire.WireError, match="frames of batches"):
        wire.from_leader([wire.encode(wire.Welcome(1, 2, 3)), b"x"])


def raw(*fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "bad",
    [
        raw("fetch", -1, []),
        raw("fetch", 1, [(4096, TOPIC, [1, 1, 1, 1, 1, None, 1])]),
        raw("fetch", 1, [(1, bytes(15), [1, 1, 1, 1, 1, None, 1])]),
        raw("fetch", 1, [(1, TOPIC, [1, 1, 1, 1, (1 << 62) + 1, None, 1])]),
        raw("fetch", 1, [(1, TOPIC, [1, 1, 1, 1 << 32, 1, None, 1])]),
        raw("fetch", 1, [(1, TOPIC, [1, 1, 1, 1, 1, None])]),
        raw("fetch", 1, [(1, TOPIC, [1, 1, 1, 1, 1, None, 1])] * (wire.ITEMS_MAX + 1)),
        raw("hello", 1, bytes(wire.CLUSTER_ID_BYTES + 1), 1, 1, 1),
        raw("welcome", 1, 1, 1),
        raw(),
        b"",
        b"\xc1",
        bytes(wire.HEADER_MAX + 1),
    ],
)
def test_what_a_follower_may_not_say(bad):
    with pytest.raises(wire.WireError):
        wire.from_follower([bad])


def test_a_follower_says_one_frame():
    for frames in ([], [wire.encode(wire.Fetch(1, [])), b""]):
        with pytest.raises(wire.WireError):
            wire.from_follower(frames)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_a_message_or_refused(frames):
    for decode in (wire.from_follower, wire.from_leader):
        try:
            decode(frames)
        except wire.WireError:
            continue


@given(st.sampled_from(FOLLOWER[:2] + LEADER[:3]), st.integers(0, 1 << 32))
def test_a_flipped_bit_is_a_message_or_refused(message, seed):
    data = bytearray(wire.encode(message))
    at = random.Random(seed).randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    for decode in (wire.from_follower, wire.from_leader):
        try:
            decode([bytes(data)])
        except wire.WireError:
            continue
