"""Partitions of one writer share a lane: whoever has waited longest for room goes first."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from lane_bytes import ack
from sender_fixture import TOPIC, World

from penstock.client.backoff import Retries
from penstock.client.producer.routes import Batch, PartitionRoute, TopicRoutes
from penstock.core.encode import encode_batch
from penstock.core.errors import ErrorCode
from penstock.core.header import BatchIdentity

TURNS_MAX = 60


class Shared(World):
    """A world of three partitions, whose lane has room for about ten small batches."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), None, Retries(1e-9, 1e-9))
        self.routes = [PartitionRoute("t", TOPIC, at, at, 0, self.page) for at in range(3)]
        info: Any = None
        self.sender.topics["t"] = TopicRoutes(info, self.routes, 1 << 20)

    def send(self, partition: int, size: int = 100) -> Batch:
        route = self.routes[partition]
        encoded = encode_batch(
            [b"x" * size],
            BatchIdentity(TOPIC, partition, 1, base_sequence=route.next_sequence),
            base_timestamp=0,
        )
        box: Any = SimpleNamespace(deadline=time.monotonic() + 1e6)
        batch = Batch(box, route, encoded, 1, route.next_sequence)
        route.next_sequence += 1
        self.sender.post([batch])
        return batch

    def answer_one(self) -> None:
        assert self.receiver is not None
        [frame] = self.receiver.frames(1, 1 << 20)
        self.receiver.finish([frame], [ack(frame)])
        self.sender.reap()

    def send_back_one(self) -> None:
        assert self.receiver is not None
        [frame] = self.receiver.frames(1, 1 << 20)
        answer = ack(frame)._replace(error=int(ErrorCode.NOT_LEADER))
        self.receiver.finish([frame], [answer])
        self.sender.reap()

    def go_on_until(self, batch: Batch, *greedy: int) -> None:
        """For each answer another batch, of these partitions in turn."""
        for turn in range(TURNS_MAX):
            if batch.done:
                return
            self.send(greedy[turn % len(greedy)])
            self.answer_one()
        raise AssertionError(f"{batch.route} waits, and {len(batch.route.pending)} with it")


@pytest.fixture
def world() -> Any:
    made = Shared()
    yield made
    for doorbell in made.doorbells:
        doorbell.close()


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_a_partition_of_which_there_is_always_more_keeps_no_other_waiting(
    world: Shared, waits: int
) -> None:
    greedy = (waits + 1) % 3
    for _ in range(20):
        world.send(greedy)
    batch = world.send(waits)
    assert not batch.flew
    world.go_on_until(batch, greedy)
    later = world.send(waits)
    assert not later.flew, "those that were sent before go before"


def test_small_batches_do_not_take_the_room_that_a_large_one_waits_for(world: Shared) -> None:
    for _ in range(20):
        world.send(0)
    large = world.send(1, 800)
    world.go_on_until(large, 0, 2)


def test_what_waits_for_a_leader_does_not_wait_for_room(world: Shared) -> None:
    """Whoever sends much at once, as `send_arrow` does, waits only for the other."""
    topic = world.sender.topics["t"]
    world.send(1)
    world.send_back_one()
    assert world.routes[1].pending
    assert not topic.has_pending
    for _ in range(20):
        world.send(0)
    assert topic.has_pending
