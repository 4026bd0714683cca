"""Groups when the node dies, hangs or is restarted, and when a member forks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from functools import partial

import pytest
from group_fixture import Members, fill, poll_until
from power_cuts import cut_power
from seeds import seed_of

from penstock.core import errors as er
from penstock.testing.waiting import wait_until


@pytest.fixture
def broker(penstock_broker):
    return penstock_broker


@pytest.fixture
def members():
    found = Members()
    yield found
    found.close()


def test_members_come_back_to_a_node_that_was_killed_and_keep_what_is_theirs(broker, members):
    topic = broker.create_topic(partitions=4)
    with broker.connect() as client:
        for _ in range(2):
            members.add(client.consumer(topic, group="comes-back", commit_interval=0.05))
        members.until_balanced([(topic, number) for number in range(4)])
        had = [set(one.assignment()) for one in members.all]
        ids = [one.member_id for one in members.all]
        for turn in range(3):
            fill(broker, topic, turn * 100, 100)
            members.until_seen((turn + 1) * 100)
            # Records come by shared memory before a member looks whether the node is another one.
            members.until(partial(are_back, members, turn), f"both are back {turn} times")
            if turn < 2:
                broker.restart(kill=True)
        assert [set(one.assignment()) for one in members.all] == had
        assert [one.member_id for one in members.all] == ids
        assert all(one.metrics()["lost"] == 0 for one in members.all)
        members.until(
            lambda: all(
                one.committed()[name] == end
                for one in members.all
                for name, end in ends(one).items()
            ),
            "all is committed",
        )


def are_back(members, times):
    return all(one.metrics()["reconnects"] == times for one in members.all)


def ends(consumer):
    return {name: consumer.position(*name) for name in consumer.assignment()}


@pytest.mark.rule(18)
def test_rule_18_nothing_comes_twice_when_the_node_is_killed(broker, members):
    topic = broker.create_topic(partitions=2)
    with broker.connect() as client:
        for _ in range(2):
            members.add(client.consumer(topic, group="amo-node", guarantee="at-most-once"))
        members.until_balanced([(topic, 0), (topic, 1)])
        for turn in range(3):
            fill(broker, topic, turn * 200, 200)
            members.until_more_than(turn * 200)
            broker.restart(kill=True)
        members.until_seen(600)
        assert set(members.seen.values()) == {1}
        assert sum(one.metrics()["skipped"] for one in members.all) == 0


@pytest.mark.rule(18)
def test_rule_18_a_claim_without_an_answer_is_dropped_and_counted(broker):
    """A node that hangs: within the node timeout the same claim is asked, then it is given up."""
    topic = broker.create_topic()
    options = {"group": "hangs", "guarantee": "at-most-once", "node_timeout": 2.0}
    with broker.connect() as client, client.consumer(topic, **options) as consumer:
        assert consumer.assignment() == [(topic, 0)]
        fill(broker, topic, 0, 10)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(er.PenstockTimeout):
                consumer.poll(5, timeout=5)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert consumer.metrics()["skipped"] == 5
        assert poll_until(consumer, 9) == list(range(5, 10))
        fill(broker, topic, 10, 1)
        assert consumer.poll(timeout=25).offsets.tolist() == [10]
        assert client.admin().describe_group("hangs").skipped == 5


def test_no_commit_is_lost_to_a_node_that_is_away_for_a_while(broker):
    topic = broker.create_topic()
    fill(broker, topic, 0, 10)
    with broker.connect() as client:
        with client.consumer(topic, group="away", commit_interval=0.01) as consumer:
            assert len(consumer.poll(timeout=25)) == 10
            broker.kill()
            wait_until(
                lambda: (consumer.poll(), consumer.metrics()["commit_failures"])[1],
                what="a commit that failed",
            )
            broker.start()
            wait_until(
                lambda: (consumer.poll(), consumer.committed()[topic, 0] == 10)[1],
                what="the commit",
            )
        with client.consumer(topic, group="away", follow=False) as consumer:
            assert not list(consumer)


@pytest.mark.setting("group.node_timeout")
def test_invariant_10_a_poll_without_a_node_ends_with_an_error_after_node_timeout(broker):
    topic = broker.create_topic()
    with (
        broker.connect() as client,
        client.consumer(topic, group="no-node", node_timeout=2.0) as consumer,
    ):
        assert consumer.assignment()
        broker.kill()
        begun = time.monotonic()
        with pytest.raises(er.NotConnectedError, match="no node"):
            consumer.poll(timeout=None)
        assert time.monotonic() - begun < 15


@pytest.mark.setting("group.session_timeout")
def test_a_member_that_the_group_forgot_joins_anew(broker):
    topic = broker.create_topic()
    fill(broker, topic, 0, 10)
    lost: list[tuple[str, int]] = []
    with broker.connect() as client:
        consumer = client.consumer(
            topic, group="forgot", session_timeout=0.1, node_timeout=30, on_lost=lost.extend
        )
        with consumer:
            assert len(consumer.poll(timeout=25)) == 10
            first = consumer.member_id
            broker.restart(kill=True)
            admin = client.admin()
            wait_until(lambda: admin.describe_group("forgot").members == [], what="it is forgotten")
            assert poll_until(consumer, 9) == list(range(10))
            assert lost == [(topic, 0)]
            assert consumer.member_id != first
            assert consumer.metrics()["lost"] == 1


@pytest.mark.rule(7)
def test_rule_7_a_forked_child_is_told_and_its_parent_goes_on(broker):
    topic = broker.create_topic()
    fill(broker, topic, 0, 10)
    with broker.connect() as client, client.consumer(topic, group="forked") as consumer:
        assert len(consumer.poll(5, timeout=25)) == 5
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.close()
                consumer.poll()
            except er.ForkedClientError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(consumer.poll(timeout=25)) == 5
        consumer.commit()
        assert len(client.admin().describe_group("forked").members) == 1


def test_ctrl_c_anywhere_loses_nothing_and_commits_nothing_that_was_not_handed_out(broker):
    """A timer of processor time throws KeyboardInterrupt into a loop, wherever it stands."""
    seed = seed_of("Ctrl-C of a member")
    moments = random.Random(seed)
    topic = broker.create_topic(partitions=3)
    fill(broker, topic, 0, 30_000)
    seen: set[tuple[int, int]] = set()

    def read(consumer):
        if moments.random() < 0.2:
            for record in consumer:
                seen.add((record.partition, record.offset))
        for batch in consumer.batches(20):  # most of the time goes into polls
            for chunk in batch.chunks:
                first = chunk.row_offset(chunk.start)
                seen.update((chunk.partition, first + row) for row in range(len(chunk)))

    def interrupt(number, frame):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        with broker.connect() as client:
            for _ in range(500):
                consumer = client.consumer(
                    topic, group="ctrl-c", follow=False, commit_interval=0.01
                )
                with consumer, contextlib.suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_VIRTUAL, moments.uniform(0.0003, 0.004))
                        read(consumer)
                    finally:
                        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            with client.consumer(topic, group="ctrl-c", follow=False) as consumer:
                read(consumer)
    finally:
        signal.signal(signal.SIGVTALRM, old)
    assert len(seen) == 30_000, f"seed {seed}"


@pytest.mark.rule(15)
@pytest.mark.parametrize("count", [1, 15], ids=["below its place", "past its place"])
def test_rule_15_a_group_behind_a_power_cut_is_told_where_the_logs_parted(broker, count):
    topic = broker.create_topic()
    fill(broker, topic, 0, 10)
    fill(broker, topic, 10, 10)
    with broker.connect() as client, client.consumer(topic, group="cut", follow=False) as consumer:
        assert len(list(consumer)) == 20
    cut_power(broker, keep=1)
    broker.start()
    fill(broker, topic, 100, count)  # offsets from 10 on are given a second time
    with broker.connect() as client, client.consumer(topic, group="cut") as consumer:
        with pytest.raises(er.LogTruncatedError) as caught:
            consumer.poll(timeout=25)
        assert caught.value.divergence == 10
        assert consumer.metrics()["truncated"] == 1
        consumer.seek(topic, 0, 10)
        assert consumer.poll(timeout=25).values.to_list() == [
            b"%d" % number for number in range(100, 100 + count)
        ]
        consumer.commit()
    with broker.connect() as client, client.consumer(topic, group="cut", follow=False) as consumer:
        assert not list(consumer)
