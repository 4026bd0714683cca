"""The guard of the disk: levels with hysteresis, what it says, and how often it looks."""

from __future__ import annotations

import logging
import os

import pytest
from store_crash import memory

from penstock.ipc import layout as lo
from penstock.ipc.hostslots import DiskRoom, DiskSlot
from penstock.server.config import NodeConfig
from penstock.server.node.disk_guard import LOOK_MAX, LOOK_MIN, DiskGuard, space_of

TOTAL = 1 << 40


class Room:
    """A disk whose room the test sets."""

    def __init__(self, disk_warn: float = 0.1, disk_stop: float = 0.01) -> None:
        _fd, region = memory(4096)
        self.slot = DiskSlot(region)
        self.free = TOTAL
        self.error: OSError | None = None
        config = NodeConfig("/data", disk_warn=disk_warn, disk_stop=disk_stop)
        self.guard = DiskGuard(config, self.slot, self._space)

    def _space(self, folder: str) -> tuple[int, int]:
        assert folder == "/data"
        if self.error is not None:
            raise self.error
        return self.free, TOTAL

    def level(self, free: float) -> int:
        self.free = int(free)
        self.guard.look()
        return self.slot.read().level


@pytest.mark.parametrize(
    "settings",
    [{"disk_warn": 0.1, "disk_stop": 0.01}, {"disk_warn": TOTAL / 10, "disk_stop": TOTAL / 100}],
    ids=["shares", "bytes"],
)
def test_levels_fall_again_only_well_above_their_bound(settings):
    room = Room(**settings)
    steps = [(0.2, 0), (0.099, 1), (0.105, 1), (0.12, 0), (0.05, 1), (0.009, 2), (0.0105, 2),
             (0.012, 1), (0.105, 1), (0.009, 2), (0.5, 0)]  # fmt: skip
    assert [room.level(share * TOTAL) for share, _ in steps] == [level for _, level in steps]
    assert room.slot.read() == DiskRoom(0, TOTAL // 2, TOTAL, int(TOTAL / 10), int(TOTAL / 100))


@pytest.mark.setting("node.disk_warn", "node.disk_stop")
def test_without_bounds_a_full_disk_is_ok():
    assert Room(disk_warn=0, disk_stop=0).level(0) == lo.DISK_OK


def test_each_change_is_logged_once_with_what_to_do(caplog):
    caplog.set_level(logging.INFO, "penstock.node")
    room = Room()
    for share in (0.5, 0.05, 0.04, 0.001, 0.002, 0.05, 0.5):
        room.level(share * TOTAL)
    said = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "ERROR",
        "WARNING",
        "INFO",
    ]
    assert "below disk_warn" in said[0]
    assert "below disk_stop" in said[1]
    assert all("Delete or trim topics" in line for line in said[:2])
    assert "writing goes on" in said[2]
    assert "there is room again" in said[3]


def test_it_looks_the_more_often_the_less_room_there_is():
    room = Room()
    waits = []
    for free in (TOTAL, 0.011 * TOTAL, 0.0101 * TOTAL, 0.001 * TOTAL):
        room.free = int(free)
        waits.append(room.guard.look())
    assert waits[0] == LOOK_MAX
    assert waits[-1] == LOOK_MIN
    assert waits == sorted(waits, reverse=True)


def test_a_disk_that_cannot_be_asked_keeps_its_level(caplog):
    room = Room()
    assert room.level(0) == lo.DISK_STOP
    room.error = OSError(5, "Input/output error")
    assert room.level(TOTAL) == lo.DISK_STOP
    assert "is unknown" in caplog.text


def test_room_is_counted_as_df_does(tmp_path):
    free, total = space_of(str(tmp_path))
    found = os.statvfs(tmp_path)
    assert 0 < free < total <= found.f_blocks * found.f_frsize
