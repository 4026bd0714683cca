"""Leaders that come back by themselves: when, which ones, how many at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.cluster.test_controller import Quorum, T

from penstock.cluster.controller import ControllerConfig
from penstock.cluster.controller.balance import MOVES_MAX, PAUSE, SETTLED

EVERY = 300.0


class Cluster(Quorum):
    """Three brokers whose topic is led as `create_topic` placed it, and time that goes on."""

    def __init__(self, partitions: int = 6, every: float = EVERY) -> None:
        super().__init__(3, ControllerConfig(balance_interval=every))
        self.create(partitions=partitions, factor=3)
        self.silent: set[int] = set()

    def wait(self, seconds: float) -> int:
        """In steps of a second: how many leaders came back."""
        moved = 0
        for _ in range(round(seconds)):
            self.now += 1.0
            for broker in {1, 2, 3} - self.silent:
                self.beat(broker)
            self.do(self.controller.tick(self.now))
            moved += self.do(self.controller.balance(self.now))
        return moved

    def bounce(self, broker: int) -> None:
        """It dies, comes back, and catches up."""
        self.silent.add(broker)
        self.wait(4)
        assert self.led()[broker] == 0
        self.silent.clear()
        self.start(broker)
        self.catch_up()

    def catch_up(self) -> None:
        image = self.controller.image
        for number in range(image.topics[T].partitions):
            it = image.partitions[T, number]
            assert self.ask(*it.replicas, number=number).refused is None

    def led(self) -> Counter[int | None]:
        return Counter(it.leader for it in self.controller.image.partitions.values())


def test_leaders_come_back_once_in_an_interval():
    at = Cluster()
    first = {place: it.leader for place, it in at.controller.image.partitions.items()}
    assert at.wait(10) == 0
    at.bounce(2)
    assert at.led()[2] == 0
    assert at.wait(EVERY - 20) == 0
    assert at.wait(20) == 2
    assert {place: it.leader for place, it in at.controller.image.partitions.items()} == first
    assert at.wait(3 * EVERY) == 0
    counts = at.controller.counts
    assert (counts["balance_rounds"], counts["balanced"]) == (1, 2)


def test_a_move_is_an_election_in_a_new_epoch_and_changes_no_isr():
    at = Cluster(every=40.0)
    at.bounce(1)
    before = dict(at.controller.image.partitions)
    at.wait(80)
    moved = [place for place, it in at.controller.image.partitions.items() if it != before[place]]
    assert len(moved) == 2
    for place in moved:
        was, it = before[place], at.controller.image.partitions[place]
        assert (it.leader, it.isr, it.replicas) == (1, was.isr, was.replicas)
        assert it.leader_epoch == was.leader_epoch + 1
        assert it.partition_epoch == was.partition_epoch + 1


def test_never_where_the_interval_is_0():
    at = Cluster(every=0.0)
    at.bounce(1)
    assert at.wait(1000) == 0
    assert at.led()[1] == 0


def test_who_came_back_just_now_gets_nothing_yet():
    at = Cluster(every=100.0)
    at.wait(60)
    at.bounce(2)
    at.wait(20)  # up to second 84 of 100
    at.bounce(3)
    assert at.wait(20) > 0
    assert at.led()[2] >= 2
    assert at.led()[3] == 0
    assert at.wait(100) >= 2
    assert at.led() == {1: 2, 2: 2, 3: 2}


def test_a_life_that_began_anew_has_to_settle_again():
    at = Cluster(every=50.0)
    at.bounce(1)
    at.wait(40)
    at.start(1)  # at once, so that nobody missed it
    at.catch_up()
    assert at.wait(20) == 0
    assert at.wait(50) == 2


def test_not_to_who_is_out_of_sync_or_leaves_or_is_fenced():
    at = Cluster(every=40.0)
    at.bounce(1)
    places = [place for place, it in at.controller.image.partitions.items() if it.replicas[0] == 1]
    at.ask(2, 3, number=places[0][1])
    assert at.wait(60) == 1
    at.bounce(2)
    at.beat(2, leaving=True)
    assert at.wait(100) == 1  # broker 1 has caught up there, too
    assert at.led()[2] == 0


def test_what_is_being_reassigned_is_left_alone():
    at = Cluster(every=40.0)
    at.start(4)
    at.bounce(1)
    mine = [place for place, it in at.controller.image.partitions.items() if it.replicas[0] == 1]
    at.do(at.controller.reassign(mine[:1], (1, 2, 4)))
    assert at.wait(60) == 1
    assert at.controller.image.partitions[mine[0]].leader != 1


def test_a_round_is_bounded_and_the_rest_follows_soon():
    at = Cluster(partitions=3 * (MOVES_MAX + 10), every=60.0)
    at.bounce(3)
    rounds: list[int] = []
    while sum(rounds) < MOVES_MAX + 10:
        rounds.append(at.wait(1))
        assert at.now < 200
    first, *between, last = [index for index, moved in enumerate(rounds) if moved]
    assert not between
    assert (rounds[first], rounds[last], last - first) == (MOVES_MAX, 10, PAUSE)


def test_a_controller_that_was_held_up_lets_all_settle_again():
    at = Cluster(every=EVERY)
    at.bounce(1)
    at.wait(EVERY - 10)
    at.controller.lead(at.now)
    assert at.wait(12) == 0
    assert at.wait(EVERY - SETTLED) == 0
    assert at.wait(SETTLED) == 2


@pytest.mark.parametrize("every", [1.0, 40.0])
@given(st.lists(st.tuples(st.sampled_from(["bounce", "wait", "stop"]), st.integers(1, 3))))
def test_whatever_happens_leaders_are_in_the_isr_and_come_back_in_the_end(every, events):
    at = Cluster(every=every)
    for what, broker in events[:12]:
        if what == "bounce":
            at.bounce(broker)
        elif what == "wait":
            at.wait(10 * broker)
        else:
            at.silent.add(broker)
            at.wait(4)
            at.silent.clear()
        for it in at.controller.image.partitions.values():
            assert it.leader is None or it.leader in it.isr
    at.wait(2)
    at.catch_up()
    at.wait(2 * every + SETTLED)
    assert at.led() == {1: 2, 2: 2, 3: 2}
