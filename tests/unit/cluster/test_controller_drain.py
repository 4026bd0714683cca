"""Brokers that are drained: who leads instead, and what stays where it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.cluster.test_controller import T
from unit.cluster.test_controller_balance import Cluster

from penstock.cluster.controller import records as rec
from penstock.cluster.controller.balance import MOVES_MAX
from penstock.core.errors import ConfigError


def isr(at: Cluster, number: int, *members: int) -> None:
    assert at.ask(*members, number=number).refused is None


def epochs(at: Cluster) -> dict[tuple[bytes, int], tuple[int | None, int]]:
    return {
        place: (it.leader, it.leader_epoch) for place, it in at.controller.image.partitions.items()
    }


def test_others_lead_what_a_drained_broker_led():
    at = Cluster()
    before = epochs(at)
    at.do(at.controller.drain(2))
    assert at.led()[2] == 0
    for place, (leader, epoch) in epochs(at).items():
        it = at.controller.image.partitions[place]
        assert it.leader in it.isr
        assert set(it.isr) == {1, 2, 3}  # it is in sync all the while
        was, was_epoch = before[place]
        assert epoch == was_epoch + (was == 2)
        assert leader == was or was == 2
    after = epochs(at)
    at.do(at.controller.drain(2))
    at.wait(700)
    assert epochs(at) == after, "what is done is done once, and not balanced back"


def test_leaders_come_back_when_it_is_undone():
    at = Cluster()
    at.do(at.controller.drain(2))
    at.do(at.controller.drain(2, undo=True))
    assert not at.controller.image.is_drained(2)
    at.wait(700)
    assert at.led()[2] == 2


def test_it_leads_what_nobody_else_could_until_somebody_can():
    at = Cluster(partitions=3)
    [number] = [n for (_, n), it in at.controller.image.partitions.items() if it.leader == 2]
    isr(at, number, 2)
    at.do(at.controller.drain(2))
    assert at.controller.image.partitions[T, number].leader == 2
    isr(at, number, 2, 3)
    it = at.controller.image.partitions[T, number]
    assert (it.leader, set(it.isr)) == (3, {2, 3})


def test_the_last_one_in_sync_leads_though_it_is_drained():
    at = Cluster(partitions=3)
    at.do(at.controller.drain(2))
    at.silent.update({1, 3})
    at.wait(4)
    assert at.led()[2] == 3, "a drain takes no partition its leader"
    at.silent.clear()
    at.start(1)
    at.start(3)
    at.catch_up()
    assert at.led()[2] == 0


def test_it_is_given_nothing_while_it_is_drained():
    at = Cluster(partitions=3)
    at.do(at.controller.drain(2))
    places = list(at.controller.image.partitions)
    assert at.do(at.controller.elect(places)) == 0
    at.do(at.controller.create_topic("new", b"n" * 16, 6, 3, 2, b""))
    assert at.led()[2] == 0
    at.silent.add(1)
    at.wait(4)
    assert at.led()[2] == 0


def test_some_at_a_time():
    at = Cluster(partitions=6 * MOVES_MAX)
    whole = at.led()[2]
    assert whole == 2 * MOVES_MAX
    at.do(at.controller.drain(2))
    assert at.led()[2] == whole - MOVES_MAX
    at.wait(1)
    assert at.led()[2] == 0


def test_a_restart_keeps_it_drained_and_removing_forgets():
    at = Cluster(partitions=3)
    at.do(at.controller.drain(2))
    at.bounce(2)
    assert at.controller.image.is_drained(2)  # until the broker itself says that it is back
    assert at.led()[2] == 0
    at.silent.add(2)
    at.wait(4)
    at.do(at.controller.reassign(list(at.controller.image.partitions), (1, 3)))
    at.do(at.controller.forget(2))
    assert not at.controller.image.is_drained(2)


def test_a_broker_that_has_joined_ends_the_drains_of_its_earlier_lives_alone():
    at = Cluster(partitions=3)
    image = at.controller.image
    at.do(at.controller.drain(2))
    at.bounce(2)
    joined = image.brokers[2].epoch
    at.do(at.controller.drain(2))  # before it has joined: asked again, for this life
    at.do(at.controller.drain(2, undo=True, before=joined))
    assert image.is_drained(2)
    at.bounce(2)
    at.do(at.controller.drain(2, undo=True, before=image.brokers[2].epoch))
    assert not image.is_drained(2)


def test_a_drain_of_an_earlier_release_ends_with_the_next_join():
    at = Cluster(partitions=3)
    at.do(at.controller.set(rec.DRAINED, "2", b""))
    assert at.controller.image.is_drained(2)
    at.do(at.controller.drain(2, undo=True, before=1))
    assert not at.controller.image.is_drained(2)


def test_somebody_has_to_be_left():
    at = Cluster(partitions=3)
    with pytest.raises(ConfigError, match="there is no broker 9"):
        at.controller.drain(9)
    at.do(at.controller.drain(2))
    at.do(at.controller.drain(1))
    with pytest.raises(ConfigError, match="no other broker is up and not drained"):
        at.controller.drain(3)
    assert at.led() == {3: 3}


@given(st.data())
def test_a_drain_elects_only_in_sync_replicas_and_leaves_nobody_without_a_leader(data):
    at = Cluster(partitions=6)
    for _ in range(data.draw(st.integers(1, 12))):
        before = epochs(at)
        broker = data.draw(st.sampled_from([1, 2, 3]))
        match data.draw(st.sampled_from(["drain", "undo", "isr", "bounce", "elect"])):
            case "drain":
                others = {1, 2, 3} - {broker}
                if not all(at.controller.image.is_drained(other) for other in others):
                    at.do(at.controller.drain(broker))
            case "undo":
                at.do(at.controller.drain(broker, undo=True))
            case "isr":
                number = data.draw(st.integers(0, 5))
                leader = at.controller.image.partitions[T, number].leader
                isr(at, number, *sorted({leader, broker}))
            case "bounce":
                at.silent.add(broker)
                at.wait(4)
                at.silent.clear()
                at.start(broker)
            case "elect":
                at.do(at.controller.elect(list(at.controller.image.partitions)))
        at.do(at.controller.tick(at.now))
        image = at.controller.image
        for place, it in image.partitions.items():
            assert it.leader in it.isr
            assert it.leader_epoch >= before[place][1]
            assert it.leader == before[place][0] or it.leader_epoch > before[place][1]
            fit = [b for b in it.isr if image.may_lead(b) and not image.is_drained(b)]
            assert not fit or not image.is_drained(it.leader)
