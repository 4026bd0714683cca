"""Members come, go and die under load: one owner a partition, and nothing is missed."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any

import pytest
from group_fixture import Members, fill, member

from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.core import errors as er
from penstock.testing.broker import Broker
from penstock.testing.waiting import wait_until


@pytest.fixture
def members():
    found = Members()
    yield found
    found.close()


def parts(topic, count):
    return [(topic, number) for number in range(count)]


def test_members_come_and_go_under_load_and_every_record_comes(node, members):
    topic = node.create_topic(partitions=7)
    sent = 0
    with node.connect() as client:
        for _ in range(4):
            members.add(client.consumer(topic, group="come-and-go", commit_interval=0.05))
            fill(node, topic, sent, 300)
            sent += 300
            members.until_balanced(parts(topic, 7))
        while len(members.all) > 1:
            members.leave(members.all[0])
            fill(node, topic, sent, 300)
            sent += 300
            members.until_balanced(parts(topic, 7))
        members.until_seen(sent)
        assert set(members.seen) == {b"%d" % number for number in range(sent)}
        assert members.all[0].metrics()["lost"] == 0


def test_what_a_member_let_go_of_was_done_and_comes_to_nobody_else(node, members):
    """Revoked partitions go with their offsets: without a failure nothing comes twice."""
    topic = node.create_topic(partitions=4)
    fill(node, topic, 0, 2000)
    with node.connect() as client:
        members.add(client.consumer(topic, group="let-go", commit_interval=60.0))
        members.until_seen(500)
        members.add(client.consumer(topic, group="let-go", commit_interval=60.0))
        members.until_balanced(parts(topic, 4))
        members.until_seen(2000)
        assert set(members.seen.values()) == {1}
        assert members.all[0].metrics()["revoked"] == 2


@pytest.mark.setting("group.on_assigned", "group.on_revoked")
def test_listeners_run_in_the_callers_thread_and_see_what_is_theirs(node, members):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 100)
    told: list[Any] = []
    with node.connect() as client:
        first: GroupConsumer = members.add(
            client.consumer(
                topic,
                group="listeners",
                on_assigned=lambda names: told.append(("assigned", names)),
                on_revoked=lambda names: told.append(("revoked", names, first.committed())),
            )
        )
        members.until_seen(100)
        assert told == [("assigned", parts(topic, 2))]
        members.add(client.consumer(topic, group="listeners"))
        members.until_balanced(parts(topic, 2))
        kind, names, committed = told[1]
        assert (kind, len(names)) == ("revoked", 1)
        assert set(committed) == set(parts(topic, 2))  # still its own when it is told
        members.leave(first)
        assert told[2][:2] == ("revoked", first_left(told[0][1], names))


def first_left(all_of_them, gone):
    return [name for name in all_of_them if name not in gone]


def test_a_loop_notices_a_revocation_between_two_records_of_a_slow_handler(node):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 400)
    with node.connect() as client, client.consumer(topic, group="slow") as slow:
        came = 0
        for _ in slow:
            came += 1
            if came == 1:
                other = client.consumer(topic, group="slow")
            if other.poll(1, timeout=0.02):
                break  # the first one let go while its batch was in its hands
        assert came < 150
        assert len(slow.assignment()) == 1
        other.close()


def test_a_member_without_partitions_waits_warm(node, members):
    topic = node.create_topic(partitions=1)
    fill(node, topic, 0, 10)
    with node.connect() as client:
        first = members.add(client.consumer(topic, group="warm"))
        members.until_seen(10)
        waiting = members.add(client.consumer(topic, group="warm"))
        assert not waiting.poll(timeout=0.05)
        assert waiting.assignment() == []
        members.poll()  # what came is done
        members.leave(first)
        fill(node, topic, 10, 10)
        members.until_seen(20)
        assert set(members.seen.values()) == {1}


@pytest.mark.rule(7)
def test_rule_7_a_killed_members_partitions_move_at_once(node):
    """Death is the pidfd: nobody waits for a session timeout, here of an hour."""
    topic = node.create_topic(partitions=4)
    fill(node, topic, 0, 200)
    with ExitStack() as stack:
        options = ("--session-timeout", "3600")
        first = stack.enter_context(member(node, topic, "killed", *options))
        second = stack.enter_context(member(node, topic, "killed", *options))
        for one in (first, second):
            one.until_named("partitions_assigned")
        first.until(lambda: len(set(first.values() + second.values())) == 200, "all records")
        first.end(signal.SIGKILL)
        fill(node, topic, 200, 200)
        second.until(lambda: set(range(200, 400)) <= set(second.values()), "the rest")
        second.end(signal.SIGTERM)


@pytest.mark.rule(8)
def test_rule_8_a_stopped_member_is_evicted_and_commits_nothing_when_it_continues():
    with ExitStack() as stack:
        node = stack.enter_context(Broker(options={"stall_timeout": 0.3}))
        topic = node.create_topic(partitions=2)
        first = stack.enter_context(member(node, topic, "stopped"))
        first.until_named("partitions_assigned")
        fill(node, topic, 0, 100)
        first.until(lambda: len(first.values()) == 100, "100 records")
        first.signal(signal.SIGSTOP)
        second = stack.enter_context(member(node, topic, "stopped"))
        fill(node, topic, 100, 100)
        second.until(lambda: set(range(100, 200)) <= set(second.values()), "the rest")
        first.signal(signal.SIGCONT)
        first.until_named("partitions_revoked")
        assert first.end(signal.SIGTERM) == 0
        second.end(signal.SIGTERM)


@pytest.mark.setting("group.instance_id")
def test_a_static_member_takes_over_from_its_predecessor(node, members):
    topic = node.create_topic(partitions=4)
    fill(node, topic, 0, 100)
    with node.connect() as client:
        old = members.add(client.consumer(topic, group="static", instance_id="one"))
        members.add(client.consumer(topic, group="static", instance_id="two"))
        members.until_balanced(parts(topic, 4))
        members.until_seen(100)
        had = set(old.assignment())
        new = client.consumer(topic, group="static", instance_id="one")
        assert set(new.assignment()) == had
        with pytest.raises(er.GroupError, match="taken over"):
            old.poll()
        assert old.metrics()["lost"] == len(had)
        members.leave(old)
        members.add(new)
        members.until_balanced(parts(topic, 4))


def test_new_partitions_are_picked_up(node, members):
    topic = node.create_topic(partitions=1)
    with node.connect() as client, client.admin() as admin:
        members.add(client.consumer(topic, group="grows"))
        members.until_balanced(parts(topic, 1))
        admin.add_partitions(topic, 3)
        members.until_balanced(parts(topic, 3))
        fill(node, topic, 0, 90)
        members.until_seen(90)


@pytest.mark.setting("group.pattern")
def test_a_pattern_takes_topics_as_they_come_and_go(node, members):
    with node.connect() as client, client.admin() as admin:
        first = node.create_topic("pattern-a")
        node.create_topic("other-a")
        members.add(client.consumer(group="patterns", pattern=r"pattern-\w+"))
        members.until_balanced(parts(first, 1))
        second = node.create_topic("pattern-b", partitions=2)
        members.until_balanced(parts(first, 1) + parts(second, 2))
        admin.delete_topic(first)
        members.until_balanced(parts(second, 2))


def test_several_topics_of_one_group(node, members):
    one, two = node.create_topic(partitions=3), node.create_topic(partitions=2)
    with node.connect() as client:
        members.add(client.consumer(one, two, group="several"))
        members.add(client.consumer(one, two, group="several"))
        members.until_balanced(parts(one, 3) + parts(two, 2))
        fill(node, one, 0, 50)
        fill(node, two, 50, 50)
        members.until_seen(100)


def test_a_topic_that_is_not_there_is_refused_at_once(node):
    with node.connect() as client, pytest.raises(er.UnknownTopicError, match="nowhere"):
        client.consumer("nowhere", group="unknown")


@pytest.mark.setting("group.guarantee")
def test_members_share_one_guarantee(node):
    topic = node.create_topic()
    with (
        node.connect() as client,
        client.consumer(topic, group="one-guarantee"),
        pytest.raises(er.GroupError, match="at-least-once"),
    ):
        client.consumer(topic, group="one-guarantee", guarantee="exactly-once")


def test_invariant_10_an_unassigned_poll_keeps_its_bound(node):
    topic = node.create_topic()
    with (
        node.connect() as client,
        client.consumer(topic, group="bound"),
        client.consumer(topic, group="bound") as waiting,
    ):
        assert not waiting.poll(timeout=0.1)
        assert not waiting.poll()


@pytest.mark.setting("group.processing_timeout", "group.on_lost")
def test_processing_timeout_is_for_those_who_ask_for_it(node, members):
    """Without one a member that works for long keeps its partitions; with one it loses them."""
    topic = node.create_topic(partitions=2)
    with node.connect() as client:
        lost: list[tuple[str, int]] = []
        slow = client.consumer(topic, group="timed", processing_timeout=0.3, on_lost=lost.extend)
        assert len(slow.assignment()) == 2
        members.add(client.consumer(topic, group="timed"))
        members.until_balanced(parts(topic, 2))
        wait_until(lambda: (slow.poll(), lost)[1], what="it learns that it was too slow")
        assert sorted(lost) == parts(topic, 2)
        slow.close()
