"""Lanes of a folder in shared memory: made, found again, refused, removed (rule 5)."""

from __future__ import annotations

import os

import pytest

from penstock.core.errors import ConfigError, ResourceLimitError, UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc import liveness, shm
from penstock.ipc.lane import LaneSender
from penstock.ipc.shm import Region
from penstock.server.config import NodeConfig
from penstock.server.node.lanes import Lane, LaneBook

BOOT = liveness.boot_id()
CONFIG = NodeConfig("/nowhere", lane_capacity=128 << 10, lanes_max=3)


@pytest.fixture
def uuid():
    """A node's uuid; what is in shared memory under it is removed."""
    value = os.urandom(16).hex()
    yield value
    for name in shm.listing(f"/penstock-{value}"):
        shm.unlink(name)


def make(book: LaneBook, writer: int = 0, capacity: int | None = None) -> Lane:
    lane, fd = book.make(writer, capacity, 77, os.getpid(), 5)
    os.close(fd)
    return lane


def names(uuid: str) -> list[str]:
    return shm.listing(f"/penstock-{uuid}")


def raw(uuid: str, size: int) -> Region:
    """Memory under the name of a lane that nobody has formatted."""
    fd = shm.create(shm.object_name(uuid, "lane", 1, 0, 9), size)
    return Region.of_fd(fd)


@pytest.mark.rule(5)
def test_rule_5_a_lane_is_found_again_with_what_it_holds(uuid):
    lane = make(LaneBook(uuid, BOOT, CONFIG), writer=3)
    sender = LaneSender(Region.of_fd(shm.open_existing(lane.name, writable=True)), lane.name)
    sender.try_write(0, [b"x" * 100], 100)
    [left] = LaneBook(uuid, BOOT, CONFIG).find_leftovers()
    assert (left.lane.name, left.lane.identity) == (lane.name, lane.identity)
    assert left.lane.writer == 3
    assert left.bytes_left == sender.tail > 0
    left.region.close()
    sender.detach()


def test_what_is_left_does_not_grow_with_what_a_living_producer_adds(uuid):
    lane = make(LaneBook(uuid, BOOT, CONFIG))
    memory = Region.of_fd(shm.open_existing(lane.name, writable=True))
    sender = LaneSender(memory, lane.name)
    sender.try_write(0, [b"x"], 1)
    [left] = LaneBook(uuid, BOOT, CONFIG).find_leftovers()
    before = left.bytes_left
    sender.try_write(0, [b"y"], 1)
    assert left.bytes_left == before
    memory.q[lo.Q_LANE_HEAD] = before
    assert left.bytes_left == 0
    left.region.close()
    sender.detach()


def test_half_made_lanes_are_removed(uuid):
    book = LaneBook(uuid, BOOT, CONFIG)
    raw(uuid, lo.lane_bytes(65536)).close()
    make(book)
    assert [left.lane.name for left in book.find_leftovers()] == list(book.lanes)
    assert names(uuid) == list(book.lanes)


@pytest.mark.parametrize("size", [0, 8, 4097])
def test_memory_whose_maker_died_at_once_is_removed(uuid, size):
    name = shm.object_name(uuid, "lane", 1, 0, 9)
    os.close(shm.create(name, 4096))
    os.truncate(f"/dev/shm{name}", size)
    assert LaneBook(uuid, BOOT, CONFIG).find_leftovers() == []
    assert names(uuid) == []


@pytest.mark.rule(5)
def test_rule_5_a_lane_of_another_version_refuses_the_start_and_is_kept(uuid):
    lane = make(LaneBook(uuid, BOOT, CONFIG))
    with Region.of_fd(shm.open_existing(lane.name, writable=True)) as region:
        region.bytes[lo.LANE_VERSION_AT] = 9
    with pytest.raises(UnsupportedVersionError, match="version 9, this build drains 1"):
        LaneBook(uuid, BOOT, CONFIG).find_leftovers()
    assert names(uuid) == [lane.name]


def test_a_lane_that_claims_more_than_its_memory_is_removed_aloud(uuid, caplog):
    lane = make(LaneBook(uuid, BOOT, CONFIG))
    with Region.of_fd(shm.open_existing(lane.name, writable=True)) as region:
        region.q[lo.Q_LANE_CAPACITY] = 1 << 40
    assert LaneBook(uuid, BOOT, CONFIG).find_leftovers() == []
    assert names(uuid) == []
    assert "nothing can be drained from it" in caplog.text


def test_a_name_of_the_run_before_is_not_taken_again(uuid):
    first = make(LaneBook(uuid, BOOT, CONFIG))
    second = make(LaneBook(uuid, BOOT, CONFIG))
    assert first.name != second.name
    assert names(uuid) == sorted([first.name, second.name])


def test_the_bound_of_lanes_is_named_and_room_comes_back(uuid):
    book = LaneBook(uuid, BOOT, CONFIG)
    lanes = [make(book) for _ in range(3)]
    with pytest.raises(ResourceLimitError, match="3 lanes, its bound lanes_max"):
        make(book)
    book.remove(lanes[0])
    make(book)
    assert len(names(uuid)) == 3


@pytest.mark.parametrize("capacity", [0, 4096, 65536 + 64, 256 << 10, -4096])
def test_a_refused_capacity_leaves_nothing(uuid, capacity):
    with pytest.raises(ConfigError, match=rf"capacity is {capacity}: allowed are multiples"):
        make(LaneBook(uuid, BOOT, CONFIG), capacity=capacity)
    assert names(uuid) == []


def test_a_producer_may_ask_for_a_smaller_lane(uuid):
    book = LaneBook(uuid, BOOT, CONFIG)
    assert make(book, capacity=65536).identity.capacity == 65536
    assert make(book).identity.capacity == 128 << 10


def test_a_lane_whose_memory_is_gone_holds_nothing(uuid):
    book = LaneBook(uuid, BOOT, CONFIG)
    lane = make(book)
    shm.unlink(lane.name)
    assert book.bytes_left(lane) == 0
    book.remove(lane)
    assert book.lanes == {}
