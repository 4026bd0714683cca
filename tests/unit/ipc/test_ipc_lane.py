"""Lanes byte for byte: how they come to be, what holds a frame back, and enemies inside."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts.striking import Interrupted, Strike
from lane_bytes import (
    ACK_HEAD,
    ACK_TAIL,
    FRAMES_AT,
    HEAD,
    HEAD_SEQUENCE,
    MANY,
    STATE,
    TAIL,
    TAIL_SEQUENCE,
    ack,
    at,
    frame_header,
    identity_of,
    made,
    put,
    write,
)
from store_crash import Died, DyingRegion, memory

from penstock.core.errors import UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc.lane import (
    Ack,
    LaneCorruptError,
    LaneReceiver,
    LaneSender,
    format_lane,
    read_identity,
    undrained,
)


@pytest.fixture
def lane():
    """A lane of 4096 bytes: region, sender, receiver."""
    return made(4096)


# --- bytes --------------------------------------------------------------------------------------
def test_every_byte_of_a_lane_in_use(lane):
    region, sender, receiver = lane
    assert write(sender, b"first batch", page=6) == 0
    assert write(sender, bytes(range(100)), page=7, flags=lo.FRAME_SYNC) == 1
    frames = receiver.frames(128, MANY)
    receiver.finish(frames[:1], [Ack(0, 5000, 1_700_000_000_000_000, -3, 9)])
    assert sender.acks() == [Ack(0, 5000, 1_700_000_000_000_000, -3, 9)]
    receiver.publish_sleeping(111)
    sender.publish_sleeping(222)
    sender.mark_closed()

    expected = bytearray(FRAMES_AT + 4096)
    struct.pack_into("<8sIIQQQQQQ", expected, 0, b"PSTKLANE", 1, 3, 4096, 11, 2, 4242, 987654321,
                     0xFEDCBA9876543210)  # fmt: skip
    struct.pack_into("<QQ", expected, 64, 128 + 192, 2)
    struct.pack_into("<QQQ", expected, 128, 2, 0, 1)
    struct.pack_into("<QQQQ", expected, 192, 128, 1, 1, 1)
    struct.pack_into("<Q", expected, 256, 111)
    struct.pack_into("<Q", expected, 320, 222)
    struct.pack_into("<QQQiI", expected, 4096, 0, 5000, 1_700_000_000_000_000, -3, 9)
    expected[8192:8224] = frame_header(128, 6, 0, 0, 1, 11)
    expected[8256:8267] = b"first batch"
    expected[8320:8352] = frame_header(192, 7, 1, 0, 1, 100, 1)
    expected[8384:8484] = bytes(range(100))
    assert bytes(region.bytes) == expected


def test_a_frame_that_does_not_fit_before_the_end_is_preceded_by_a_pad():
    region, sender, receiver = made(1024)
    for size in (192, 192, 192, 64):  # 896 of 1024 bytes
        write(sender, bytes(size))
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frame) for frame in frames])
    assert write(sender, b"x" * 100) == 4  # 192 bytes, 128 are left before the end
    assert at(region, TAIL) == 896 + 128 + 192
    where = FRAMES_AT + 896
    assert bytes(region.bytes[where : where + 32]) == frame_header(128, 0, 4, 0, 2, 0)
    where = FRAMES_AT
    assert bytes(region.bytes[where : where + 32]) == frame_header(192, 0, 4, 0, 1, 100)
    (frame,) = receiver.frames(9, MANY)
    assert (frame.sequence, bytes(frame.batch), frame.end) == (4, b"x" * 100, 1216)


# --- coming to be -------------------------------------------------------------------------------
@pytest.mark.rule(5)
def test_rule_5_a_half_made_lane_is_none():
    stores = 0
    while True:
        fd, region = memory(FRAMES_AT + 4096)
        os.close(fd)
        dying = DyingRegion(region)
        dying.dies_after(stores)
        try:
            format_lane(dying.as_region(), identity_of(4096))
        except Died:
            assert read_identity(region) is None, f"whole after {stores} stores"
            with pytest.raises(LaneCorruptError, match="never finished"):
                LaneSender(region, "lane")
            with pytest.raises(LaneCorruptError, match="never finished"):
                LaneReceiver(region, "lane", 1)
            stores += 1
            continue
        assert read_identity(region) == identity_of(4096)
        assert stores > 5
        return


@pytest.mark.rule(5)
@pytest.mark.parametrize("size", [8, 64, 4096, 8184])
def test_rule_5_memory_too_small_for_a_lane_is_none(size):
    fd, region = memory(size)
    os.close(fd)
    region.bytes[:8] = b"PSTKLANE"
    assert read_identity(region) is None


@pytest.mark.rule(5)
@pytest.mark.parametrize("version", [0, 2, (1 << 32) - 1])
def test_rule_5_a_lane_of_another_version_is_refused_and_the_version_named(lane, version):
    region, _, _ = lane
    struct.pack_into("<I", region.bytes, 8, version)
    for attach in (
        lambda: read_identity(region),
        lambda: LaneSender(region, "lane"),
        lambda: LaneReceiver(region, "lane", 2),
    ):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}, .*drains 1"):
            attach()


@pytest.mark.parametrize("capacity", [0, 1, 63, 4095, 4097, 4160, 1 << 40, (1 << 64) - 64])
def test_a_capacity_that_cannot_be_is_corrupt(lane, capacity):
    region, _, _ = lane
    put(region, 16, capacity)
    with pytest.raises(LaneCorruptError, match=f"claims {capacity} bytes"):
        read_identity(region)


@pytest.mark.rule(5)
def test_rule_5_what_is_not_drained_can_be_told_without_attaching(lane):
    region, sender, receiver = lane
    assert undrained(region) == 0
    write(sender, b"a")
    write(sender, b"b")
    assert undrained(region) == 256
    frames = receiver.frames(9, MANY)
    receiver.finish(frames[:1], [ack(frames[0])])
    assert undrained(region) == 128
    receiver.finish(frames[1:], [ack(frames[1])])
    assert undrained(region) == 0
    assert (receiver.is_closed, sender.is_idle) == (False, True)
    sender.mark_closed()
    assert receiver.is_closed


# --- answers ------------------------------------------------------------------------------------
@pytest.mark.rule(1)
def test_rule_1_a_full_ring_of_answers_holds_the_writer_back(lane):
    _, sender, receiver = lane
    for _ in range(2):
        for _ in range(64):
            write(sender, b"")
        receiver.finish(frames := receiver.frames(1000, MANY), [ack(frame) for frame in frames])
    for _ in range(3):
        write(sender, b"late")
    assert (receiver.has_frames, receiver.has_room) == (True, False)
    assert receiver.frames(1000, MANY) == []
    assert len(receiver.frames(1000, MANY, discard_acks=True)) == 3, (
        "of a dead producer none is kept"
    )
    assert len(sender.acks()) == 128
    assert receiver.has_room
    assert len(receiver.frames(1000, MANY)) == 3


@pytest.mark.rule(1)
def test_rule_1_the_room_of_a_frame_is_not_reused_before_head_passed_it(lane):
    _, sender, receiver = lane
    while write(sender, b"x" * 900) is not None:
        pass
    assert sender.free < 1024
    frames = receiver.frames(1, MANY)
    assert write(sender, b"y" * 900) is None, "taken is not answered"
    receiver.finish(frames, [ack(frames[0])])
    assert write(sender, b"y" * 900) is not None


@pytest.mark.rule(1)
def test_rule_1_the_room_of_a_held_frame_is_not_reused_after_head_passed_it(lane):
    _, sender, receiver = lane
    starts = []
    for letter in b"abcd":
        write(sender, bytes([letter]) * 900)
        starts.append(sender.last_start)
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frame) for frame in frames])
    sender.floor = starts[1]
    assert write(sender, b"e" * 900) is not None
    assert write(sender, b"f" * 900) is None
    assert sender.batch_at(starts[1], 900) == b"b" * 900
    sender.floor = starts[2]
    assert write(sender, b"f" * 900) is not None
    sender.floor = None
    assert write(sender, b"g" * 900) is not None


@pytest.mark.rule(2)
def test_rule_2_a_write_that_is_interrupted_anywhere_counts_where_the_tail_has_moved():
    points, counted = 0, 0
    while True:
        _, sender, receiver = made(4096)
        write(sender, b"before")
        strike = Strike(points, Interrupted)
        with suppress(Interrupted), strike.armed():
            write(sender, b"struck")
        if not strike.has_struck:
            break
        sender.mend()
        write(sender, b"the next, which is longer")
        values = [bytes(frame.batch) for frame in receiver.frames(128, MANY)]
        is_in = values[1] == b"struck"
        assert values == [b"before", *[b"struck"] * is_in, b"the next, which is longer"]
        points, counted = points + 1, counted + is_in
    assert 0 < counted < points


@pytest.mark.rule(2)
def test_rule_2_a_writer_that_died_before_head_is_given_the_same_frames_and_answers_again(lane):
    region, sender, receiver = lane
    for letter in b"abc":
        write(sender, bytes([letter]))
    frames = receiver.frames(9, MANY)
    dying = DyingRegion(region)
    first = LaneReceiver(dying.as_region(), "lane", 1)
    frames = first.frames(2, MANY)
    dying.dies_after(1)
    with pytest.raises(Died):
        first.finish(frames, [ack(frame) for frame in frames])
    second = LaneReceiver(region, "lane", 2)
    again = second.frames(9, MANY)
    assert [bytes(frame.batch) for frame in again] == [b"a", b"b", b"c"]
    assert [frame.sequence for frame in again] == [0, 1, 2]
    second.finish(again, [ack(frame) for frame in again])
    assert [answer.sequence for answer in sender.acks()] == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("ahead", [129, 1 << 20, (1 << 64) - 1])
def test_an_ack_tail_that_cannot_be_is_corrupt_and_takes_no_memory(lane, ahead):
    region, sender, _ = lane
    put(region, ACK_TAIL, ahead)
    with pytest.raises(LaneCorruptError, match="acknowledgement tail"):
        sender.acks()


def test_an_ack_tail_that_fell_is_corrupt(lane):
    region, sender, receiver = lane
    write(sender, b"a")
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frames[0])])
    assert len(sender.acks()) == 1
    put(region, ACK_TAIL, 0)
    with pytest.raises(LaneCorruptError, match="acknowledgement tail"):
        sender.acks()


# --- large lanes --------------------------------------------------------------------------------
def test_invariant_10_a_pad_longer_than_a_pass_does_not_hide_the_frame_behind_it():
    """A writer takes 2 MiB of a lane at a time; in a large lane a PAD may be longer."""
    region, _, _ = made(16 << 20)
    put(region, TAIL, 13 << 20)  # empty, and 3 MiB are left before the end
    put(region, HEAD, 13 << 20)
    sender, receiver = LaneSender(region, "lane"), LaneReceiver(region, "lane", 2)
    large = bytes((4 << 20) - 64)
    assert sender.try_write(0, [large], len(large)) == 0
    (frame,) = receiver.frames(128, 2 << 20)
    assert frame.end == (16 << 20) + (4 << 20)
    assert frame.batch == large


# --- enemies ------------------------------------------------------------------------------------
FIELDS = {
    "length 0": {"length": 0},
    "length of less than a header": {"length": 63},
    "length unaligned": {"length": 65},
    "length past the tail": {"length": 192},
    "length past the capacity": {"length": 8192},
    "length of 4 GiB": {"length": (1 << 32) - 64},
    "a batch longer than its frame": {"batch": 65},
    "a batch of 4 GiB": {"batch": (1 << 32) - 1},
    "a pad with a batch": {"kind": 2, "batch": 65},
    "a replicator's kind": {"kind": 3},
    "an unknown kind": {"kind": 77},
    "kind 0": {"kind": 0},
}


@pytest.mark.parametrize("case", FIELDS)
def test_frame_fields_that_cannot_be_are_corrupt_under_a_good_checksum(lane, case):
    region, sender, receiver = lane
    write(sender, bytes(64))
    honest = {"length": 128, "batch": 64}
    region.bytes[FRAMES_AT : FRAMES_AT + 32] = frame_header(**{**honest, **FIELDS[case]})
    with pytest.raises(LaneCorruptError, match="frame at 0"):
        receiver.frames(9, MANY)
    region.bytes[FRAMES_AT : FRAMES_AT + 32] = frame_header(**honest)
    assert len(receiver.frames(9, MANY)) == 1


@pytest.mark.parametrize("sequence", [0, 2, 3, (1 << 64) - 1])
def test_a_sequence_out_of_order_is_corrupt(lane, sequence):
    region, sender, receiver = lane
    write(sender, b"a")
    write(sender, b"b")
    where = FRAMES_AT + 128
    region.bytes[where : where + 32] = frame_header(128, 0, sequence, 0, 1, 1)
    # The good frame before it is drained first.
    (good,) = receiver.frames(9, MANY)
    receiver.finish([good], [ack(good)])
    with pytest.raises(LaneCorruptError, match="where 1 is due"):
        receiver.frames(9, MANY)


@pytest.mark.rule(27)
@pytest.mark.parametrize("ill", [1, 2, 3])
def test_rule_27_good_frames_in_front_of_a_bad_header_are_drained_before_it_is_told(ill):
    """They were accepted, and their producer may be dead: nobody would send them again."""
    region, sender, receiver = made(1024)
    for _ in range(5):  # the frames that follow go past the end, behind a pad
        write(sender, bytes(100))
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frame) for frame in frames])
    starts = []
    for number in range(4):
        write(sender, b"%d" % number * 100)
        starts.append(sender.last_start)
    region.bytes[FRAMES_AT + starts[ill] % 1024 + 8] ^= 1
    for _ in range(2):  # the same again as long as they are not answered
        found = receiver.frames(9, MANY)
        assert [bytes(frame.batch[:1]) for frame in found] == [b"%d" % n for n in range(ill)]
    receiver.finish(found, [ack(frame) for frame in found])
    with pytest.raises(LaneCorruptError, match="checksum"):
        receiver.frames(9, MANY)


def test_any_flipped_bit_of_a_frame_header_is_corrupt(lane):
    region, sender, receiver = lane
    write(sender, b"a")
    for bit in range(8 * 32):
        byte = FRAMES_AT + bit // 8
        region.bytes[byte] ^= 1 << bit % 8
        with pytest.raises(LaneCorruptError, match="checksum"):
            receiver.frames(9, MANY)
        region.bytes[byte] ^= 1 << bit % 8


def test_a_frame_across_the_end_is_corrupt():
    region, sender, receiver = made(1024)
    for _ in range(7):
        write(sender, bytes(64))
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frame) for frame in frames])
    put(region, TAIL, 896 + 192)
    region.bytes[FRAMES_AT + 896 : FRAMES_AT + 928] = frame_header(192, 0, 7, 0, 1, 64)
    with pytest.raises(LaneCorruptError):
        receiver.frames(9, MANY)


@pytest.mark.parametrize(
    ("position", "number"),
    [(TAIL, 4096 + 64), (TAIL, 1), (TAIL, (1 << 64) - 64), (TAIL, 32),
     (ACK_HEAD, 1), (ACK_HEAD, (1 << 64) - 1)],
)  # fmt: skip
def test_cursors_of_the_producer_that_cannot_be_are_corrupt(lane, position, number):
    region, sender, receiver = lane
    write(sender, b"a")
    put(region, position, number)
    with pytest.raises(LaneCorruptError):
        receiver.frames(9, MANY)


@pytest.mark.parametrize("head", [1, 60, 4090, 4095])
def test_a_head_that_is_at_no_frame_is_corrupt(lane, head):
    region, sender, _ = lane
    write(sender, b"a")
    put(region, HEAD, head)
    put(region, TAIL, 4096)
    with pytest.raises(LaneCorruptError, match=f"head {head} "):
        LaneReceiver(region, "lane", 2)


def test_the_room_of_a_pad_counts_too():
    """Between tail and the end is room for no frame, and before head is not enough without it."""
    _, sender, receiver = made(1024)
    for size in (64, 192, 192, 192):  # 896 of 1024
        assert write(sender, bytes([size]) * size) is not None
    frames = receiver.frames(9, MANY)
    receiver.finish(frames[:1], [ack(frames[0])])
    assert sender.free == 256
    assert write(sender, b"x" * 128) is None, "192 bytes behind a pad of 128"
    assert bytes(receiver.frames(1, MANY)[0].batch) == bytes([192]) * 192
    assert write(sender, b"y" * 64) is not None, "exactly up to the end"


def test_a_tail_that_fell_behind_head_is_corrupt(lane):
    region, sender, receiver = lane
    write(sender, b"a")
    receiver.finish(frames := receiver.frames(9, MANY), [ack(frames[0])])
    put(region, TAIL, 64)
    with pytest.raises(LaneCorruptError, match="tail 64"):
        receiver.frames(9, MANY)


U64 = st.integers(0, 64).map(lambda units: 64 * units) | st.integers(0, (1 << 64) - 1)
HEADERS = st.builds(
    frame_header,
    length=st.sampled_from([0, 64, 128, 192, 1024, 65, (1 << 32) - 64]),
    page=st.integers(0, (1 << 32) - 1),
    sequence=st.integers(0, 5) | st.integers(0, (1 << 64) - 1),
    kind=st.integers(0, 3),
    batch=st.sampled_from([0, 1, 64, 128, 1000, (1 << 32) - 1]),
)


@settings(derandomize=True, max_examples=400)
@given(
    st.dictionaries(
        st.sampled_from([TAIL, ACK_HEAD, HEAD, HEAD_SEQUENCE, ACK_TAIL, TAIL_SEQUENCE, STATE]), U64
    ),
    st.lists(st.tuples(st.integers(0, 15), HEADERS), max_size=8),
    st.none() | st.integers(0, 5000),
)
def test_memory_full_of_lies_raises_nothing_but_lane_corrupt(cursors, headers, capacity):
    region, _, _ = made(1024)
    for place, packed in headers:
        where = FRAMES_AT + 64 * place
        region.bytes[where : where + 32] = packed
    for position, number in cursors.items():
        put(region, position, number)
    if capacity is not None:
        put(region, 16, capacity)
    with suppress(LaneCorruptError):
        receiver = LaneReceiver(region, "lane", 2)
        for _ in range(4):
            frames = receiver.frames(128, 1 << 20)
            if not frames:
                break
            assert len(frames) <= 16
            for frame in frames:
                assert len(bytes(frame.batch)) <= 1024 - 64
            receiver.finish(frames, [ack(frame) for frame in frames])
    with suppress(LaneCorruptError):
        assert len(LaneSender(region, "lane").acks()) <= 128
