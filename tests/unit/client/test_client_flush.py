"""What a flush waits for: what was sent before it, and nothing that is sent meanwhile."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from lane_bytes import MANY
from sender_fixture import World

from penstock.client.backoff import Retries
from penstock.client.producer.callbacks import Callbacks, Flushed
from penstock.client.producer.delivery import Box
from penstock.ipc.lane import Ack

WITHIN = 20.0


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(random.Random(3), tmp_path / "log", Retries(0.001, 0.01))
    yield made
    made.close()


def answer_one(world: World) -> None:
    assert world.receiver is not None
    [frame] = world.receiver.frames(1, MANY)
    result = world.log.append([frame.batch], 5)[0]
    answer = Ack(frame.sequence, result.base_offset, 5, result.error, world.log.leader_epoch)
    world.receiver.finish([frame], [answer])
    world.sender.reap()


def due(callbacks: Callbacks, *calls: Any) -> None:
    box: Any = Box.__new__(Box)
    box.callbacks = [(box, call) for call in calls]
    callbacks.take(box)


def test_others_that_go_on_sending_hold_up_no_flush(world: World) -> None:
    world.post(2)
    flushed = Flushed(world.sender, Callbacks())
    for _ in range(2):
        assert not flushed()
        world.post(1)
        answer_one(world)
    assert flushed()
    assert world.sender.buffered, "what was sent later has no answer yet"


def test_a_flush_waits_for_callbacks_also_while_they_run(world: World) -> None:
    callbacks = Callbacks()
    flushed = Flushed(world.sender, callbacks)
    is_in, may_end = threading.Event(), threading.Event()

    def call(_: Any) -> None:
        is_in.set()
        assert may_end.wait(WITHIN)

    due(callbacks, call)
    assert not flushed()
    runner = threading.Thread(target=callbacks.run)
    runner.start()
    assert is_in.wait(WITHIN)
    assert not callbacks
    assert not flushed()
    due(callbacks, call)  # of what was sent later
    assert not flushed()
    callbacks._due.clear()
    may_end.set()
    runner.join(WITHIN)
    assert flushed()


def test_a_flush_in_a_callback_waits_for_no_callback(world: World) -> None:
    callbacks = Callbacks()
    found: list[bool] = []

    def flush(_: Any) -> None:
        found.append(Flushed(world.sender, callbacks)())
        assert not callbacks.run(), "the others come in their turn"

    due(callbacks, flush, flush)
    assert callbacks.run()
    assert found == [True, True]
    assert not callbacks.run()
