"""Which producers have lanes, by the names of what is in shared memory."""

from __future__ import annotations

import os
import uuid

from penstock.ipc import shm
from penstock.ipc.drained import producers_with_lanes
from penstock.ipc.lane import LANE_KIND


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
