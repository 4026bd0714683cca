"""Which producers have lanes, by the names of what is in shared memory; what may come by a lane."""

from __future__ import annotations

import os
import uuid

import pytest

from penstock.core.control import ControlType, encode_control
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.core.plain import encode_records
from penstock.ipc import layout as lo
from penstock.ipc import shm
from penstock.ipc.drained import DrainedLane, producers_with_lanes
from penstock.ipc.lane import LANE_KIND, LaneIdentity, LaneReceiver, format_lane
from penstock.ipc.shm import Region


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
            [(b"k", b"v")], base_timestamp=0, topic_id=bytes(16), partition=0,
            producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=attributes,
        )
    )  # fmt: skip


def control(producer_id: int) -> memoryview:
    return memoryview(
        encode_control(
            ControlType.COMMIT, producer_id=producer_id, producer_epoch=1, coordinator_epoch=1,
            timestamp=0, topic_id=bytes(16), partition=0,
        )
    )  # fmt: skip


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
    name = shm.object_name(uuid.uuid4().hex, LANE_KIND, granted, 0, 1)
    region = Region.of_fd(shm.create(name, lo.lane_bytes(lo.LANE_CAPACITY_MIN)))
    try:
        format_lane(region, LaneIdentity(lo.LANE_CAPACITY_MIN, granted, 0, 0, 1, 1, 1))
        lane = DrainedLane(LaneReceiver(region, name, 1), None)
        assert lane.owns(batch) is may
        lane.receiver.detach()
    finally:
        shm.unlink(name)
