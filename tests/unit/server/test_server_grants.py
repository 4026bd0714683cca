"""Lanes that change hands: kept while anything is in them, and never two of a producer at once."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

import pytest
from coordinator_fixture import World, running, turns

from penstock.core.errors import PenstockTimeout
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import shm
from penstock.ipc.lane import LaneReceiver, LaneSender
from penstock.ipc.shm import Region
from penstock.server.node.attached_client import AttachedClient
from penstock.server.node.client_registry import NO_PIDFD

PRODUCER = 4711


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function on a world of its own."""
    return running(partial(World, tmp_path))


def attached() -> AttachedClient:
    made = AttachedClient(lo.KIND_PRODUCER, os.getpid(), 5, NO_PIDFD, "p")
    made.producer_id = PRODUCER
    return made


def opened(world: World, client: AttachedClient) -> tuple[str, LaneSender, Region]:
    """Its lane to writer 0, with the producer's end."""
    lane, fd = world.grants.open(client, ms.OpenLane(0), 1)
    region = Region.of_fd(fd)
    return lane.name, LaneSender(region, lane.name), region


def drain(region: Region, name: str) -> None:
    receiver = LaneReceiver(region, name, 1)
    receiver.finish(receiver.frames(9, 1 << 20), [])


def orders(world: World, kind: type[Any]) -> list[Any]:
    return [order for order in world.seats.orders if isinstance(order, kind)]


@pytest.mark.rule(5)
def test_rule_5_a_lane_that_got_one_more_frame_is_drained_again(run):
    async def scenario(world):
        client = attached()
        name, sender, region = opened(world, client)
        world.grants.drained(ms.LaneDrained(name))
        assert name in world.book.lanes, "it is not retired: that report is of another time"
        world.grants.retire(client)
        assert orders(world, ms.RetireLane) == [ms.RetireLane(name)]
        sender.try_write(0, [b"late"], 4)
        world.grants.drained(ms.LaneDrained(name))
        assert name in world.book.lanes
        assert orders(world, ms.AddLane)[-1] == ms.AddLane(name, True)
        drain(region, name)
        world.grants.drained(ms.LaneDrained(name))
        assert name not in world.book.lanes
        assert name not in shm.listing(f"/penstock-{world.uuid}")
        region.close()

    run(scenario)


@pytest.mark.rule(5)
def test_rule_5_a_producer_that_resumes_has_the_lane_that_it_had(run):
    async def scenario(world):
        before, after = attached(), attached()
        name, sender, region = opened(world, before)
        sender.try_write(0, [b"undrained"], 9)
        world.grants.retire(before)
        world.grants.take_back(after)
        assert orders(world, ms.AddLane)[-1] == ms.AddLane(name, False)
        assert opened(world, after)[0] == name, "and not a second one beside it"
        drain(region, name)
        world.grants.drained(ms.LaneDrained(name))
        assert name in world.book.lanes
        region.close()

    run(scenario)


@pytest.mark.rule(5)
def test_rule_5_a_producer_with_another_connection_waits_for_what_its_lane_holds(run):
    async def scenario(world):
        before, after = attached(), attached()
        name, sender, region = opened(world, before)
        sender.try_write(0, [b"undrained"], 9)
        world.grants.retire(before)
        with pytest.raises(PenstockTimeout, match="is not drained"):
            await world.grants.drained_before(after, 0, 0.05)
        await world.grants.drained_before(after, 1, 0.05)
        waiting = asyncio.ensure_future(world.grants.drained_before(after, 0, 20.0))
        await turns()
        assert not waiting.done()
        drain(region, name)
        world.grants.drained(ms.LaneDrained(name))
        await waiting
        assert opened(world, after)[0] != name
        region.close()

    run(scenario)


def test_a_lane_of_a_process_counts_until_it_is_gone(run):
    async def scenario(world):
        client = attached()
        name, _, region = opened(world, client)
        assert world.grants.has_lanes_of(client.owner)
        world.grants.retire(client)
        assert world.grants.has_lanes_of(client.owner)
        world.grants.drained(ms.LaneDrained(name))
        assert not world.grants.has_lanes_of(client.owner)
        region.close()

    run(scenario)
