"""Partitions that get more replicas or fewer: which brokers, what is refused, and how it ends."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.cluster.test_controller import Quorum, T

from penstock.cluster.controller import ControllerConfig
from penstock.cluster.controller.placement import resize
from penstock.core.errors import ConfigError, UnknownTopicError


class Cluster(Quorum):
    """A topic whose partitions lie on `factor` brokers each, with nobody behind."""

    def __init__(self, brokers: int, partitions: int, factor: int, min_insync: int = 1) -> None:
        super().__init__(brokers, ControllerConfig(balance_interval=0.0))
        self.do(self.controller.create_topic("t", T, partitions, factor, min_insync, b"c"))

    @property
    def places(self) -> list[tuple[bytes, int]]:
        return self.controller.image.partitions_of(T)

    @property
    def factor(self) -> int:
        return self.controller.image.replication_factor(T)

    def resize(self, factor: int) -> None:
        self.do(self.controller.reassign(self.places, replication_factor=factor))

    def catch_up(self) -> None:
        """Every replica that is there, as far as leaders are."""
        for _, number in self.places:
            it = self.partition(number)
            if it.leader is not None and set(it.isr) != set(it.replicas):
                there = filter(self.controller.image.may_lead, it.replicas)
                self.ask(*dict.fromkeys((it.leader, *there)), number=number)

    def replicas(self) -> list[tuple[int, ...]]:
        return [self.partition(number).replicas for _, number in self.places]


def test_a_topic_grows_from_one_replica_to_three_and_shrinks_to_two():
    at = Cluster(3, 6, 1)
    before = at.replicas()
    at.resize(3)
    assert at.factor == 3
    for number, (first,) in enumerate(before):
        it = at.partition(number)
        assert (it.leader, it.isr) == (first, (first,)), "only who has it leads it"
        assert it.replicas[0] == first
        assert set(it.target) == {1, 2, 3}
    at.catch_up()
    for number, (first,) in enumerate(before):
        it = at.partition(number)
        assert (it.leader, it.target) == (first, ())
        assert set(it.isr) == set(it.replicas) == {1, 2, 3}
    at.resize(2)
    assert at.factor == 2
    for number, (first,) in enumerate(before):
        it = at.partition(number)
        assert (it.leader, len(it.replicas), it.isr, it.target) == (first, 2, it.replicas, ())


def test_what_is_so_already_is_not_decided_again():
    at = Cluster(3, 3, 2)
    assert at.controller.reassign(at.places, replication_factor=2).records == ()
    at.resize(3)
    assert at.controller.reassign(at.places, replication_factor=3).records == ()
    at.catch_up()
    at.lose(1)
    assert at.controller.reassign(at.places, replication_factor=3).records == (), "1 comes back"


def test_new_replicas_go_where_least_is():
    at = Cluster(4, 8, 1)
    at.start(5)
    at.resize(3)
    at.catch_up()
    held = Counter(broker for replicas in at.replicas() for broker in replicas)
    assert max(held.values()) - min(held.values()) <= 1, held


def test_growth_goes_on_after_the_only_replica_died_and_came_back():
    at = Cluster(3, 1, 1)
    (old,) = at.partition().replicas
    at.resize(3)
    at.lose(old)
    assert (at.partition().leader, at.partition().isr) == (None, (old,))
    at.start(old)
    assert at.partition().leader == old
    at.catch_up()
    assert set(at.partition().isr) == {1, 2, 3}
    at.lose(old)
    assert at.partition().leader not in (None, old)


def test_a_growth_is_taken_back_by_the_number_that_it_began_with():
    at = Cluster(3, 2, 1)
    before = at.replicas()
    at.resize(3)
    at.resize(1)
    assert at.replicas() == before
    assert at.factor == 1


def test_the_last_of_the_isr_stays_when_a_topic_shrinks():
    at = Cluster(3, 1, 3)
    first, second, third = at.partition().replicas
    at.lose(first, second)
    assert at.partition().isr == (third,)
    at.resize(1)
    it = at.partition()
    assert (it.replicas, it.isr, it.leader) == ((third,), (third,), third)


@pytest.mark.parametrize("asked", [{"target": (1,)}, {"replication_factor": 1}])
def test_a_replica_that_is_away_is_not_left_alone_though_it_is_in_the_isr(asked):
    """All were down at once, so that all stayed in the ISR, and 1 is not back."""
    at = Cluster(3, 1, 3)
    at.do(at.controller.reassign(at.places, (1, 2, 3)))
    at.lose(1, 2, 3)
    at.start(2)
    at.do(at.controller.reassign(at.places, **asked))
    it = at.partition()
    assert (it.leader, it.isr, set(it.replicas), it.target) == (2, (1, 2, 3), {1, 2, 3}, (1,))
    at.start(1)
    at.catch_up()
    it = at.partition()
    assert (it.leader, it.isr, it.replicas, it.target) == (1, (1,), (1,), ())


def test_a_reassignment_ends_when_who_was_missed_is_heard_again():
    at = Cluster(3, 1, 3)
    at.do(at.controller.reassign(at.places, (1, 2, 3)))
    at.lose(1, 2, 3)
    at.do(at.controller.reassign(at.places, (1,)))
    assert set(at.partition().replicas) == {1, 2, 3}
    at.beat(2)
    assert (at.partition().leader, at.partition().target) == (2, (1,))
    at.beat(1)  # the same life: nobody has to ask for it in the ISR
    it = at.partition()
    assert (it.leader, it.isr, it.replicas, it.target) == (1, (1,), (1,), ())


def test_a_replica_whose_log_is_offline_is_not_left_alone():
    at = Cluster(3, 1, 3)
    at.do(at.controller.reassign(at.places, (1, 2, 3)))
    at.do(at.controller.elect(at.places))
    at.ask(1)
    at.logs(1, offline=at.places)
    at.resize(1)
    assert (at.partition().leader, set(at.partition().replicas)) == (1, {1, 2, 3})
    at.logs(1, online=at.places)
    it = at.partition()
    assert (it.leader, it.replicas, it.target) == (1, (1,), ())


def test_an_unclean_election_takes_who_is_new_only_where_nobody_else_is_there():
    at = Cluster(5, 1, 3)
    at.do(at.controller.reassign(at.places, (1, 2, 3)))
    at.catch_up()
    at.do(at.controller.elect(at.places))
    at.ask(1)
    at.lose(1)
    at.do(at.controller.reassign(at.places, (4, 5)))
    assert at.do(at.controller.elect(at.places, is_unclean=True)) == 1
    assert at.partition().leader in {2, 3}, "4 and 5 have nothing"


def test_an_unclean_election_ends_a_reassignment_to_the_one_that_it_takes():
    """The others may never be back, and there would be nothing more to end it."""
    at = Cluster(3, 1, 3)
    first, second, third = at.partition().replicas
    at.ask(first)
    at.lose(first, second)
    at.do(at.controller.reassign(at.places, (third,)))
    assert at.partition().target == (third,)
    assert at.do(at.controller.elect(at.places, is_unclean=True)) == 1
    it = at.partition()
    assert (it.replicas, it.isr, it.leader, it.target) == ((third,), (third,), third, ())


def test_named_brokers_that_are_out_of_sync_let_nobody_go_before_they_have_caught_up():
    at = Cluster(3, 1, 3)
    first, second, third = at.partition().replicas
    at.lose(first)
    at.do(at.controller.reassign(at.places, (first,)))
    it = at.partition()
    assert set(it.replicas) == {1, 2, 3}
    assert (set(it.isr), it.leader) == ({second, third}, second)
    at.start(first)
    at.catch_up()
    it = at.partition()
    assert (it.replicas, it.isr, it.leader) == ((first,), (first,), first)


def test_each_of_the_named_brokers_comes_first_in_turn():
    at = Cluster(4, 6, 1)
    at.do(at.controller.reassign(at.places, (4, 2, 3)))
    at.catch_up()
    assert at.replicas() == [(4, 2, 3), (2, 3, 4), (3, 4, 2)] * 2
    at.do(at.controller.reassign(at.places[4:5], (1, 2)))
    assert at.partition(4).target == (1, 2)


def test_the_factor_of_a_topic_is_that_of_its_smallest_partition():
    at = Cluster(3, 2, 1)
    at.do(at.controller.reassign(at.places[:1], replication_factor=3))
    assert at.factor == 1
    at.do(at.controller.reassign(at.places, replication_factor=2))
    assert at.factor == 2
    at.do(at.controller.add_partitions("t", 3))
    assert len(at.partition(2).replicas) == 2
    with pytest.raises(ConfigError, match="from 1 to its replication_factor=2"):
        at.controller.configure_topic("t", 3, b"c")
    at.do(at.controller.configure_topic("t", 2, b"c"))


@pytest.mark.parametrize("asked", [{"target": (1,)}, {"replication_factor": 1}])
def test_fewer_replicas_than_have_to_be_in_the_isr_are_refused(asked):
    at = Cluster(3, 2, 3, min_insync=2)
    with pytest.raises(ConfigError, match="1 replicas are fewer than min_insync_replicas=2 of 't'"):
        at.controller.reassign(at.places, **asked)
    at.do(at.controller.configure_topic("t", 1, b"c"))
    at.do(at.controller.reassign(at.places, **asked))
    assert at.factor == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "name the brokers"),
        ({"target": (1, 2), "replication_factor": 2}, "name the brokers"),
        ({"target": (1, 1)}, "each once"),
        ({"target": (1, 9)}, r"unknown: \[9\]"),
        ({"replication_factor": 4}, "replication_factor=4: a partition lies on"),
    ],
)
def test_reassignments_that_cannot_be(asked, message):
    at = Cluster(3, 2, 2)
    with pytest.raises(ConfigError, match=message):
        at.controller.reassign(at.places, **asked)
    with pytest.raises(UnknownTopicError):
        at.controller.reassign([(T, 2)], (1,))


def test_brokers_that_are_away_get_nothing_new_and_keep_what_they_have():
    at = Cluster(3, 1, 2)
    (left,) = {1, 2, 3} - set(at.partition().replicas)
    at.lose(left)
    with pytest.raises(ConfigError, match=r"beside those \[\] are there"):
        at.controller.reassign(at.places, replication_factor=3)
    at.start(left)
    at.lose(at.partition().replicas[1])
    at.resize(3)
    assert set(at.partition().target) == {1, 2, 3}


# --- which brokers --------------------------------------------------------------------------------
def test_growing_takes_other_racks_first_and_shrinking_keeps_them():
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    assert resize([1], [2, 3, 4], racks, 3) == (1, 3, 4)
    assert resize([1, 2, 3], [], racks, 2) == (1, 3)


@given(
    st.lists(st.integers(1, 9), unique=True, min_size=1, max_size=6),
    st.lists(st.sampled_from("abc"), min_size=9, max_size=9),
    st.integers(1, 9),
)
def test_a_resized_partition_keeps_what_it_can(held, names, factor):
    racks = dict(enumerate(names, 1))
    others = [broker for broker in racks if broker not in held]
    found = resize(held, others, racks, factor)
    assert len(set(found)) == len(found) == factor
    assert found[0] == held[0]
    if factor == len(held):
        assert set(found) == set(held)
    elif factor > len(held):
        assert found[: len(held)] == tuple(held)
    else:
        assert set(found) < set(held)
        used = {racks[broker] for broker in held}
        assert len({racks[broker] for broker in found}) == min(factor, len(used))


# --- whatever happens -----------------------------------------------------------------------------
EVENT = st.one_of(
    st.tuples(st.just("resize"), st.integers(1, 4)),
    st.tuples(st.just("name"), st.permutations([1, 2, 3, 4]).map(lambda it: tuple(it[:2]))),
    st.tuples(st.just("lose"), st.integers(1, 4)),
    st.tuples(st.just("lose all"), st.none()),
    st.tuples(st.just("start"), st.integers(1, 4)),
    st.tuples(st.just("catch up"), st.none()),
)


@given(st.lists(EVENT, max_size=20), st.integers(1, 3))
def test_however_replicas_change_somebody_has_all_that_counts(events, factor):
    at = Cluster(4, 3, factor)
    has = {number: set(at.partition(number).isr) for _, number in at.places}
    for what, value in events:
        led = {number for number in has if at.partition(number).leader is not None}
        if what == "resize":
            with contextlib.suppress(ConfigError):  # too few are there
                at.resize(value)
        elif what == "name":
            at.do(at.controller.reassign(at.places, value))
        elif what == "lose":
            at.lose(value)
        elif what == "lose all":
            at.lose(1, 2, 3, 4)
        elif what == "start":
            at.start(value)
        else:
            at.catch_up()
            has = {number: has[number] | set(at.partition(number).isr) for number in has}
        for number in has:
            it = at.partition(number)
            assert it.isr, "nobody lost anything"
            assert set(it.isr) <= set(it.replicas)
            assert set(it.isr) <= has[number], "in sync is who caught up"
            assert set(it.target) <= set(it.replicas)
            assert it.leader is None or it.leader in it.isr
            assert it.leader is not None or number not in led or what.startswith("lose")
            has[number] &= set(it.replicas)
