"""Control frames of a replication lane: their bytes, and the lanes that may hold them."""

from __future__ import annotations

import os

import msgspec
import pytest
from lane_bytes import FRAMES_AT, identity_of
from store_crash import memory

from penstock.core.errors import CorruptBatchError
from penstock.core.header import OFFSET_MAX
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.lane import LaneCorruptError, LaneReceiver, LaneSender, format_lane

U32 = (1 << 32) - 1
TOPIC = bytes(range(16))
NAME = TOPIC + (3).to_bytes(4, "little")
ORDERS = [
    ro.Lead(0),
    ro.Follow(U32),
    ro.Truncate(3, OFFSET_MAX),
    ro.BeginAnew(1, 0),
    ro.HighWatermark(U32, 7),
    ro.Trim(2, 1 << 40),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_a_control_frame_says_what_it_was_made_of(order):
    packed = ro.encode_order(order, TOPIC, 3)
    assert ro.decode_order(memoryview(packed), TOPIC, 3) == order
    assert len(packed) <= 64, "many of them are to fit"


@pytest.mark.parametrize(("topic_id", "partition"), [(bytes(16), 3), (TOPIC, 4)])
def test_a_control_frame_is_for_one_partition_only(topic_id, partition):
    packed = ro.encode_order(ro.Lead(1), TOPIC, 3)
    with pytest.raises(CorruptBatchError, match=f"partition 3 of topic {TOPIC.hex()}, on the page"):
        ro.decode_order(memoryview(packed), topic_id, partition)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 8,
        NAME[:-1],
        NAME + msgspec.msgpack.encode([7, 1]),
        NAME + msgspec.msgpack.encode([1, -1]),
        NAME + msgspec.msgpack.encode([1, U32 + 1]),
        NAME + msgspec.msgpack.encode([3, 1, OFFSET_MAX + 1]),
        NAME + msgspec.msgpack.encode([3, 1]),
        NAME + msgspec.msgpack.encode([1, "x"]),
        NAME,
        ro.encode_order(ro.Lead(1), TOPIC, 3) + b"\0",
    ],
)
def test_other_bytes_are_no_control_frame(payload):
    with pytest.raises(CorruptBatchError, match=f"control frame of {len(payload)} bytes"):
        ro.decode_order(memoryview(payload), TOPIC, 3)


@pytest.mark.parametrize("replicates", [True, False])
def test_only_a_replicators_lane_may_hold_its_kinds(replicates):
    fd, region = memory(FRAMES_AT + (1 << 16))
    os.close(fd)
    format_lane(region, identity_of(1 << 16))
    sender = LaneSender(region, "lane")
    receiver = LaneReceiver(region, "lane", 1, replicates=replicates)
    packed = ro.encode_order(ro.Lead(9), TOPIC, 3)
    sender.try_write(4, [b"x" * 64], 64)
    sender.try_write(5, [packed], len(packed), kind=lo.KIND_ROLE)
    sender.try_write(6, [b"y" * 64], 64, kind=lo.KIND_REPLICA, fetch_epoch=9)
    found = receiver.frames(10, 1 << 20)
    if not replicates:
        assert [frame.kind for frame in found] == [lo.KIND_DATA]
        receiver.finish(found, [])
        with pytest.raises(LaneCorruptError, match="unknown kind 4"):
            receiver.frames(10, 1 << 20)
        return
    assert [(frame.page, frame.kind, frame.fetch_epoch) for frame in found] == [
        (4, lo.KIND_DATA, 0),
        (5, lo.KIND_ROLE, 0),
        (6, lo.KIND_REPLICA, 9),
    ]
    assert ro.decode_order(found[1].batch, TOPIC, 3) == ro.Lead(9)
    assert bytes(found[2].batch) == b"y" * 64
