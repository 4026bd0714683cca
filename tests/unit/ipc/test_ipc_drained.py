"""Which producers have lanes, by the names of what is in shared memory; what may come by a lane."""

from __future__ import annotations

import contextlib
import os
import uuid

import pytest

from penstock.core.control import ControlType, encode_control
from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_TRANSACTIONAL, BatchIdentity
from penstock.core.plain import encode_records
from penstock.ipc import layout as lo
from penstock.ipc import shm
from penstock.ipc.drained import DrainedLane, producers_with_lanes
from penstock.ipc.lane import LANE_KIND, Frame, LaneIdentity, LaneReceiver, format_lane
from penstock.ipc.shm import Region


@pytest.mark.rule(3)
def test_rule_3_the_producers_of_whom_a_lane_exists():
    node, other = uuid.uuid4().hex, uuid.uuid4().hex
    names = [
        shm.object_name(node, LANE_KIND, 4097, 0, 1),
        shm.object_name(node, LANE_KIND, 4097, 1, 1),
        shm.object_name(node, LANE_KIND, 12, 0, 3),
        shm.object_name(node, "state"),
        shm.object_name(other, LANE_KIND, 5, 0, 1),
    ]
    assert producers_with_lanes(node) == set()
    try:
        for name in names:
            os.close(shm.create(name, 4096))
        assert producers_with_lanes(node) == {4097, 12}
    finally:
        for name in names:
            shm.unlink(name)
    assert producers_with_lanes(node) == set()


PRODUCER = (3 << lo.PRODUCER_COUNTER_BITS) + 5
COORDINATOR = 3 << lo.PRODUCER_COUNTER_BITS


def data(producer_id: int, attributes: int = 0) -> memoryview:
    return memoryview(
        encode_records(
            [(b"k", b"v")],
            BatchIdentity(bytes(16), 0, producer_id, 0, 0),
            base_timestamp=0,
            attributes=attributes,
        )
    )


def control(producer_id: int) -> memoryview:
    return memoryview(
        encode_control(
            ControlType.COMMIT,
            producer_id=producer_id,
            producer_epoch=1,
            coordinator_epoch=1,
            timestamp=0,
            topic_id=bytes(16),
            partition=0,
        )
    )


@pytest.mark.parametrize(
    ("granted", "batch", "may"),
    [
        (PRODUCER, data(PRODUCER), True),
        (PRODUCER, data(PRODUCER + 1), False),
        (PRODUCER, data(PRODUCER + 1, ATTR_TRANSACTIONAL), True),
        (PRODUCER, control(PRODUCER), False),
        (PRODUCER, data(PRODUCER)[:100], False),
        (COORDINATOR, data(COORDINATOR), True),
        (COORDINATOR, data(PRODUCER), False),
        (COORDINATOR, control(PRODUCER), True),
    ],
    ids=["own", "anothers", "in a transaction", "an end of one", "cut off", "the coordinator's log",
         "under its name", "the coordinator's marker"],
)  # fmt: skip
def test_what_may_come_by_a_lane(granted, batch, may):
    with lane_of(granted) as lane:
        assert lane.owns(batch) is may
        refusal = lane.refusal(Frame(7, 0, 0, batch, 64), 3)
        assert (None if refusal is None else refusal.error) == (
            None if may else ErrorCode.CORRUPT_BATCH
        )


@contextlib.contextmanager
def lane_of(granted):
    name = shm.object_name(uuid.uuid4().hex, LANE_KIND, granted, 0, 1)
    region = Region.of_fd(shm.create(name, lo.lane_bytes(lo.LANE_CAPACITY_MIN)))
    try:
        format_lane(region, LaneIdentity(lo.LANE_CAPACITY_MIN, granted, 0, 0, 1, 1, 1))
        lane = DrainedLane(LaneReceiver(region, name, 1), None)
        yield lane
        lane.receiver.detach()
    finally:
        shm.unlink(name)


@pytest.mark.parametrize(
    ("epoch", "flags", "error"),
    [
        (0, 0, None),
        (4, 0, None),
        (3, lo.FRAME_IN_EPOCH, None),
        (2, lo.FRAME_IN_EPOCH, ErrorCode.NOT_LEADER),
        (4, lo.FRAME_IN_EPOCH | lo.FRAME_SYNC, ErrorCode.NOT_LEADER),
        (0, lo.FRAME_IN_EPOCH, ErrorCode.NOT_LEADER),
    ],
)
def test_what_is_for_one_leader_epoch_is_refused_in_another(epoch, flags, error):
    """What went before it in that epoch may have been cut off: it would leave a hole, and be
    refused for good."""
    with lane_of(PRODUCER) as lane:
        refusal = lane.refusal(Frame(7, 0, epoch, data(PRODUCER), 64, flags), 3)
        assert (None if refusal is None else refusal.error) == error
