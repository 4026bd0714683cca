"""A producer that its partition has forgotten: what is certain not to be in the log goes again."""

from __future__ import annotations

import random

import pytest
from sender_fixture import World

from penstock.client.backoff import Retries
from penstock.core import errors as er
from penstock.ipc.lane import SENT_BEFORE, Ack


@pytest.fixture
def world(tmp_path):
    made = World(random.Random("forgotten"), tmp_path, Retries(0.0, 0.0))
    yield made
    made.close()


def refused(world):
    return [batch.error.code for batch in world.sent if batch.error is not None]


def in_the_log(world):
    return [number for _, number in world.numbers()]


def test_what_is_sent_for_the_first_time_goes_in_a_new_epoch(world):
    world.post(3)
    world.heal()
    world.log.producers.forget(1)
    world.post(4)
    world.heal()
    assert not refused(world)
    assert in_the_log(world) == list(range(7))


def test_what_was_sent_before_fails_and_what_follows_it_goes_on(world):
    """The log may have it, or not: whoever sent it is told, and nothing is doubled."""
    world.post(2)
    world.heal()
    world.post(3)
    world.drain(answers=False)  # they are in the log, and nobody hears of it
    world.log.producers.forget(1)
    world.lane_is_lost()
    world.post(2)
    world.heal()
    assert refused(world) == [er.ErrorCode.UNKNOWN_PRODUCER] * 3
    assert "was sent before" in str(world.sent[2].error)
    assert in_the_log(world) == list(range(7))


def test_a_carrier_says_that_it_has_sent_it_before(world):
    world.post(1)
    world.heal()
    world.post(2)
    world.drain(answers=False)
    frames = world.receiver.frames(8, 1 << 30)
    code = int(er.ErrorCode.UNKNOWN_PRODUCER)
    world.receiver.finish(
        frames, [Ack(frame.sequence, SENT_BEFORE, 0, code, 1) for frame in frames]
    )
    world.sender.reap()
    assert refused(world) == [er.ErrorCode.UNKNOWN_PRODUCER] * 2
    assert in_the_log(world) == [0, 1, 2]
