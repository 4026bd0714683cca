"""What wakes a gateway whose clients wait for batches to be committed: a real node's writers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_helpers import eventually

from penstock.client.session import Session
from penstock.ipc import layout as lo
from penstock.ipc.paths import socket_in
from penstock.server.gateway.commit_wait import NOTHING, UNWATCHED_EVERY, CommitWait
from penstock.server.gateway.events import Events
from penstock.server.gateway.partition_states import Known, PageStates
from penstock.testing import Broker


class Waiting:
    """A lane, as far as `CommitWait` looks at it."""

    def __init__(self, states: PageStates) -> None:
        self.endpoint: Any = SimpleNamespace(states=states)
        self.waits_on = NOTHING


class World:
    """Commits beside a node, and what they have told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.events = Events()
        self.moved: list[list[Waiting]] = []
        socket = socket_in(broker.data)
        self.commits = CommitWait[Waiting](self.events, socket, self.moved.append)
        self.session = Session.attach(socket, lo.KIND_ADMIN, client_id="looks", timeout=5.0)
        self.states = PageStates(self.session.state, Known(str(broker.data)))

    def page_of(self, topic: str) -> int:
        return self.session.find_topic(topic, 5.0).pages[0]

    def until(self, condition: Any, what: str) -> None:
        def happened() -> bool:
            self.events.poll(0.01)
            return bool(condition())

        eventually(happened, what)

    def attached(self) -> None:
        """There is an attachment by now, and nothing is looked at without a ring."""
        self.until(lambda: self.commits._watch._slot is not None, "its attachment")
        self.until(lambda: not self.commits._watch._is_looking, "the end of looks")
        self.moved.clear()

    def close(self) -> None:
        self.commits.close()
        self.session.close()
        self.events.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def world(broker: Broker) -> Iterator[World]:
    world = World(broker)
    yield world
    world.close()


def test_one_doorbell_rings_for_all_pages_that_are_waited_for(world: World) -> None:
    topics = [world.broker.create_topic() for _ in range(3)]
    lanes = [Waiting(world.states) for _ in topics]
    for lane, topic in zip(lanes, topics, strict=True):
        world.commits.wait(lane, world.page_of(topic), 1)
    world.attached()
    with world.broker.connect() as client, client.producer() as producer:
        for lane, topic in reversed([*zip(lanes, topics, strict=True)]):
            producer.send(topic, b"x").result(45)
            world.until(lambda: world.moved, "that its page has moved")
            assert world.moved.pop(0) == [lane]
            world.commits.forget(lane)
    assert world.moved == []


def test_only_who_waits_for_no_more_than_there_is_hears_of_it(world: World) -> None:
    topic = world.broker.create_topic()
    near, far = Waiting(world.states), Waiting(world.states)
    page = world.page_of(topic)
    world.commits.wait(near, page, 1)
    world.commits.wait(far, page, 3)
    world.attached()
    with world.broker.connect() as client, client.producer() as producer:
        producer.send(topic, b"x").result(45)
        world.until(lambda: world.moved, "that its page has moved")
        assert world.moved.pop(0) == [near]
        world.commits.forget(near)
        for _ in range(2):
            producer.send(topic, b"x").result(45)
        world.until(lambda: world.moved, "that its page has moved")
        assert world.moved.pop(0) == [far]


def test_who_begins_to_wait_is_looked_at_once_more(world: World) -> None:
    """What was published between its look and its waiting rang for nobody."""
    lane = Waiting(world.states)
    page = world.page_of(world.broker.create_topic())
    world.commits.wait(lane, page, 1)
    assert world.commits.has_new
    assert world.commits.take_new() == [lane]
    world.commits.wait(lane, page, 1)
    assert not world.commits.has_new
    world.commits.wait(lane, page, 2)
    world.commits.forget(lane)
    assert world.commits.take_new() == []


def test_without_a_node_it_looks_again_and_again(tmp_path: Path, world: World) -> None:
    lone = CommitWait[Waiting](world.events, tmp_path / "no.sock", world.moved.append)
    topic = world.broker.create_topic()
    lane = Waiting(world.states)
    lone.wait(lane, world.page_of(topic), 1)
    world.until(lambda: world.moved, "a look")
    assert world.moved.pop(0) == [lane]
    world.events.poll(2 * UNWATCHED_EVERY)
    assert world.moved == [], "nothing has moved"
    with world.broker.connect() as client, client.producer() as producer:
        producer.send(topic, b"x").result(45)
    world.until(lambda: world.moved, "that its page has moved")
    lone.forget(lane)
    lone.close()
