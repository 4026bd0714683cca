"""Retries: how long they wait, and that order and count survive them.

See `sender_fixture`; everything that can go wrong between a producer and its writer does, by a
seed.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sender_fixture import World

from penstock.client.backoff import SOON, Retries
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.routes import LaneLink
from penstock.core.errors import ConfigError, ErrorCode, ResourceLimitError


# --- how long --------------------------------------------------------------------------------
@given(seed=st.integers(0, 1 << 32), first=st.floats(0.001, 1.0), factor=st.floats(1.0, 100.0))
def test_each_wait_lies_below_a_bound_that_doubles(seed, first, factor):
    last = first * factor
    retries = Retries(first, last, random.Random(seed))
    bound = first
    for _ in range(80):
        assert retries.bound() == min(bound, last)
        assert 0.0 <= retries.next() <= min(bound, last)
        bound *= 2
    retries.reset()
    assert retries.bound() == first


@pytest.mark.parametrize("away", [0.5, 1.0, 3.0, 5.0])
def test_what_may_be_back_soon_is_tried_soon_after(away):
    """Late by half of the time it was away at most, however the waits are drawn; with waits that
    double, by all of it."""

    def late(growth: float) -> float:
        retries, tried = Retries(0.05, 60.0, growth=growth), 0.0
        while tried < away:
            tried += retries.bound()
            retries.next()
        return retries.bound()

    assert late(SOON) <= 0.5 * away < late(2.0)


def test_jitter_is_full():
    """Waits fill all of their range: two clients that failed together do not come back together."""
    waits = [Retries(1.0, 1.0, random.Random(seed)).next() for seed in range(1000)]
    tenths = {int(wait * 10) for wait in waits}
    assert tenths == set(range(10))


@pytest.mark.parametrize(
    "options",
    [
        {"retry_backoff": 0.0},
        {"retry_backoff": 61.0},
        {"retry_backoff": 1.0, "retry_backoff_max": 0.5},
    ],
)
def test_options_out_of_bounds_are_refused(options):
    with pytest.raises(ConfigError, match="retry_backoff"):
        ProducerConfig(**options)


def test_a_refused_lane_is_asked_for_again_after_a_jittered_wait(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    chance, asked = random.Random(5), []

    def refuse(_: int) -> LaneLink | None:
        asked.append(now)
        raise ResourceLimitError("no")

    world = World(random.Random(0), None, Retries(0.1, 10.0, chance), open_lane=refuse)
    world.post(1)
    expected, again = [now], random.Random(5)
    for bound in (0.1, 0.2, 0.4, 0.8, 1.6):
        due = now + again.uniform(0.0, bound)
        now = due - 1e-6
        world.sender.reap()
        assert asked == expected
        now = due
        world.sender.reap()
        expected.append(now)
        assert asked == expected


# --- in which order --------------------------------------------------------------------------
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32))
def test_order_is_kept_under_retry_and_gaps_are_refused(seed, memory):
    chance = random.Random(seed)
    world = World(chance, Path(tempfile.mkdtemp(dir=memory)), Retries(1e-9, 1e-9, chance))
    try:
        for _ in range(60):
            match chance.randrange(8):
                case 0 | 1 | 2:
                    world.post(chance.randint(1, 4))
                case 3 | 4:
                    world.drain()
                case 5:
                    world.writer_dies()
                case 6:
                    world.lane_is_lost()
                case 7:
                    world.post(1, spoilt=chance.random() < 0.3)
            if chance.random() < 0.5:
                world.sender.reap()
        world.heal()
        assert all(batch.done for batch in world.sent), f"seed {seed}"
        failed = {number for number, batch in enumerate(world.sent) if batch.error is not None}
        codes = {getattr(batch.error, "code", None) for batch in world.sent if batch.error}
        assert codes <= {ErrorCode.CORRUPT_BATCH}, f"seed {seed}"
        numbers = world.numbers()
        # In order, each once, and none that was refused: so no batch was taken over a gap.
        assert [n for _, n in numbers] == [n for n in range(len(world.sent)) if n not in failed], (
            f"seed {seed}"
        )
        assert all(world.sent[n].base_offset == offset for offset, n in numbers), f"seed {seed}"
    finally:
        world.close()
