"""The replication protocol's messages: their bounds, whatever bytes come."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.replica import Diverged, Fetched, FetchRefused, FetchRequest, ReplicaRefusal
from penstock.server.replicator import protocol

TOPIC = bytes(16)
REQUEST = FetchRequest((1 << 63) - 1, 7, 9, (1 << 32) - 1, 1 << 62, None, 1 << 62)
FETCHED = Fetched(1, 2, 3, 4, 5)
FOLLOWER = [
    protocol.Hello(1, b"c" * protocol.CLUSTER_ID_BYTES, 1, 2, 3),
    protocol.Fetch(1, []),
    protocol.Fetch(2, [(4095, TOPIC, REQUEST)] * protocol.ITEMS_MAX),
]
LEADER = [
    protocol.Welcome(1, 2, 3),
    protocol.Refused("x" * 1000),
    protocol.Answers(0),
    protocol.Answers(
        9, [(1, 0, FETCHED)] * protocol.ITEMS_MAX, [(2, Diverged(1, 2, 3, 4))] * protocol.ITEMS_MAX,
        [(3, FetchRefused(1, ReplicaRefusal.OLD_BROKER, 2))] * protocol.ITEMS_MAX,
    ),
]  # fmt: skip


@pytest.mark.parametrize("message", FOLLOWER, ids=lambda m: type(m).__name__)
def test_what_a_follower_says_comes_as_it_was_and_fits(message):
    assert protocol.from_follower([protocol.encode(message)]) == message


@pytest.mark.parametrize("message", LEADER, ids=lambda m: type(m).__name__)
def test_what_a_leader_says_comes_as_it_was_and_fits(message):
    assert protocol.from_leader([protocol.encode(message)]) == message


def test_batches_are_as_many_frames_as_were_told_of():
    message = protocol.Answers(1, [(1, 2, FETCHED), (2, 1, FETCHED)])
    frames = [protocol.encode(message), b"a", b"b", b"c"]
    assert protocol.from_leader(frames) == message
    for wrong in (frames[:3], [*frames, b"d"], frames[:1]):
        with pytest.raises(protocol.WireError, match="frames of batches"):
            protocol.from_leader(wrong)
    with pytest.raises(protocol.WireError, match="frames of batches"):
        protocol.from_leader([protocol.encode(protocol.Welcome(1, 2, 3)), b"x"])


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
        raw("fetch", 1, [(1, TOPIC, [1, 1, 1, 1, 1, None, 1])] * (protocol.ITEMS_MAX + 1)),
        raw("hello", 1, bytes(protocol.CLUSTER_ID_BYTES + 1), 1, 1, 1),
        raw("welcome", 1, 1, 1),
        raw(),
        b"",
        b"\xc1",
        bytes(protocol.HEADER_MAX + 1),
    ],
)
def test_what_a_follower_may_not_say(bad):
    with pytest.raises(protocol.WireError):
        protocol.from_follower([bad])


def test_a_follower_says_one_frame():
    for frames in ([], [protocol.encode(protocol.Fetch(1, [])), b""]):
        with pytest.raises(protocol.WireError):
            protocol.from_follower(frames)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_a_message_or_refused(frames):
    for decode in (protocol.from_follower, protocol.from_leader):
        try:
            decode(frames)
        except protocol.WireError:
            continue


@given(st.sampled_from(FOLLOWER[:2] + LEADER[:3]), st.integers(0, 1 << 32))
def test_a_flipped_bit_is_a_message_or_refused(message, seed):
    data = bytearray(protocol.encode(message))
    at = random.Random(seed).randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    for decode in (protocol.from_follower, protocol.from_leader):
        try:
            decode([bytes(data)])
        except protocol.WireError:
            continue
