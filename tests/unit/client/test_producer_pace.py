"""How many batches leave without an answer, by the times that answers take."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.producer import pace
from penstock.client.producer.pace import BEST_FOR, EAGER_MAX, EAGER_MIN, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Flying:
    """A batch, as far as its pace looks at it."""

    flight: object = "in a lane"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def answer(paced: Pace, clock: Clock, seconds: float, times: int = 1) -> None:
    """Sends batches one after the other, each of which is answered after so long."""
    for _ in range(times):
        sent: Any = Flying()
        paced.sent(sent)
        assert paced.timed is sent
        clock.now += seconds
        paced.answered(clock.now)


@pytest.mark.parametrize("seconds", [0.0001, 0.001, 0.2])
def test_a_way_that_is_free_has_the_largest_bound_also_where_it_is_long(
    clock: Clock, seconds: float
) -> None:
    paced = Pace(is_far=True)
    answer(paced, clock, seconds, 50)
    assert paced.eager_max == EAGER_MAX


def test_answers_that_take_longer_than_the_best_make_records_gather_sooner(clock: Clock) -> None:
    paced = Pace(is_far=True)
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.002, 50)
    assert EAGER_MIN < paced.eager_max < EAGER_MAX
    answer(paced, clock, 0.050, 50)
    assert paced.eager_max == EAGER_MIN


def test_the_bound_grows_again_when_answers_are_quick_again(clock: Clock) -> None:
    paced = Pace(is_far=True)
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.050, 50)
    assert paced.eager_max == EAGER_MIN
    answer(paced, clock, 0.001, 50)
    assert paced.eager_max == EAGER_MAX


def test_a_best_time_of_another_way_is_forgotten(clock: Clock) -> None:
    paced = Pace(is_far=True)
    answer(paced, clock, 0.001)
    answer(paced, clock, 0.1, 40)
    assert paced.eager_max == EAGER_MIN
    clock.now += 2 * BEST_FOR
    answer(paced, clock, 0.1, 40)
    clock.now += 2 * BEST_FOR
    answer(paced, clock, 0.1, 40)
    assert paced.eager_max == EAGER_MAX


def test_a_batch_that_gets_no_answer_is_timed_no_more(clock: Clock) -> None:
    paced = Pace(is_far=True)
    lost: Any = Flying()
    other: Any = Flying()
    for batch in (lost, other):
        paced.sent(batch)
    assert [paced.timed] == [lost]  # one at a time
    lost.flight = None
    paced.sent(other)
    assert [paced.timed] == [other]


def test_on_the_own_host_the_bound_is_always_the_largest() -> None:
    paced = Pace(is_far=False)
    batch: Any = Flying()
    paced.sent(batch)
    assert paced.timed is None
    assert paced.eager_max == EAGER_MAX
