"""How many batches leave without an answer, by the times that answers take."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sender_fixture import World

from penstock.client.backoff import Retries
from penstock.client.producer import sender
from penstock.client.producer.pace import BEST_FOR, EAGER_MAX, EAGER_MIN, Pace
from penstock.client.remote.address import Place, RemoteAddress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def answer(paced: Pace, clock: Clock, seconds: float, times: int = 1) -> None:
    """Answers batches one after the other, each after so long."""
    for _ in range(times):
        clock.now += seconds
        paced.answered(seconds, clock.now)


@pytest.mark.parametrize("seconds", [0.0001, 0.001, 0.2])
def test_a_way_that_is_free_has_the_largest_bound_also_where_it_is_long(
    clock: Clock, seconds: float
) -> None:
    paced = Pace()
    answer(paced, clock, seconds, 50)
    assert paced.eager_max == EAGER_MAX


def test_answers_that_take_longer_than_the_best_make_records_gather_sooner(clock: Clock) -> None:
    paced = Pace()
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.002, 50)
    assert EAGER_MIN < paced.eager_max < EAGER_MAX
    answer(paced, clock, 0.050, 50)
    assert paced.eager_max == EAGER_MIN


def test_the_bound_grows_again_when_answers_are_quick_again(clock: Clock) -> None:
    paced = Pace()
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.050, 50)
    assert paced.eager_max == EAGER_MIN
    answer(paced, clock, 0.001, 50)
    assert paced.eager_max == EAGER_MAX


def test_a_best_time_of_another_way_is_forgotten(clock: Clock) -> None:
    paced = Pace()
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.1, 40)
    assert paced.eager_max == EAGER_MIN
    clock.now += 2 * BEST_FOR
    answer(paced, clock, 0.1, 40)
    clock.now += 2 * BEST_FOR
    answer(paced, clock, 0.1, 40)
    assert paced.eager_max == EAGER_MAX


def bound_after(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, socket: Place, *, lose: bool
) -> int:
    """The bound of a sender whose first answer took 1 ms, and the others 50. `lose`: it gave up a
    batch before them."""
    monkeypatch.setattr(sender, "time", clock)
    world = World(random.Random(1), folder, Retries(1.0, 1.0), socket=socket)
    if lose:
        world.post(1)
        world.sender.lose_all(TimeoutError())
        world.drain()
    for seconds in [0.001] + [0.050] * 50:
        world.post(2)
        clock.now += seconds
        world.drain()
        world.sender.reap()
    world.close()
    return world.sender.pace.eager_max


HOST = RemoteAddress((("127.0.0.1", 9),))


def test_a_sender_tells_how_long_the_answers_of_another_host_take(tmp_path, clock, monkeypatch):
    assert bound_after(tmp_path, clock, monkeypatch, HOST, lose=False) == EAGER_MIN


def test_a_batch_that_gets_no_answer_is_timed_no_more(tmp_path, clock, monkeypatch):
    assert bound_after(tmp_path, clock, monkeypatch, HOST, lose=True) == EAGER_MIN


def test_on_the_own_host_the_bound_is_always_the_largest(tmp_path, clock, monkeypatch):
    here = Path("/nowhere")
    assert bound_after(tmp_path, clock, monkeypatch, here, lose=False) == EAGER_MAX
