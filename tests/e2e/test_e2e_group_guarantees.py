"""What each guarantee promises, in the face of failing handlers and killed members."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from group_fixture import fill, member

from penstock.core import errors as er
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.over_tcp


class HandlerError(Exception):
    pass


def fail_at(offset, consumer):
    with consumer:
        for record in consumer:
            if record.offset == offset:
                raise HandlerError


def offsets(records):
    return [record.offset for record in records]


# --- at-least-once --------------------------------------------------------------------------------
def test_at_least_once_commits_only_what_the_loop_body_finished(node):
    topic = node.create_topic()
    fill(node, topic, 0, 100)
    with node.connect() as client:
        with pytest.raises(HandlerError):
            fail_at(42, client.consumer(topic, group="body"))
        with client.consumer(topic, group="body", follow=False) as consumer:
            assert offsets(consumer) == list(range(42, 100))
        with client.consumer(topic, group="body", follow=False) as consumer:
            assert offsets(consumer) == []


def test_at_least_once_a_break_has_not_finished_its_record_unless_committed(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client:
        with client.consumer(topic, group="break") as consumer:
            assert offsets(itertools.islice(consumer, 3)) == [0, 1, 2]
        with client.consumer(topic, group="break") as consumer:
            assert offsets(itertools.islice(consumer, 3)) == [2, 3, 4]
            consumer.commit()
        with client.consumer(topic, group="break", follow=False) as consumer:
            assert offsets(consumer) == list(range(5, 10))


def test_at_least_once_a_polled_batch_is_done_when_more_is_asked_for(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client:
        with client.consumer(topic, group="polls") as consumer:
            assert offsets(consumer.poll(4, timeout=25)) == [0, 1, 2, 3]
            assert offsets(consumer.poll(4)) == [4, 5, 6, 7]
        with client.consumer(topic, group="polls", follow=False) as consumer:
            assert offsets(consumer.poll(timeout=25)) == [4, 5, 6, 7, 8, 9]


def test_at_least_once_commits_by_itself_within_the_interval(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with (
        node.connect() as client,
        client.consumer(topic, group="interval", commit_interval=0.02) as consumer,
    ):
        assert len(consumer.poll(timeout=25)) == 10
        admin = client.admin()

        def committed():
            consumer.poll()
            return admin.describe_group("interval").partitions[0].committed == 10

        wait_until(committed, what="the commit")
        assert consumer.committed() == {(topic, 0): 10}


def test_at_least_once_a_killed_member_loses_nothing(node):
    topic = node.create_topic(partitions=3)
    fill(node, topic, 0, 300)
    came: Counter[Any] = Counter()
    for turn in range(4):
        with member(node, topic, "killed-often") as process:
            fill(node, topic, 300 + turn * 100, 100)
            process.until_value(300 + turn * 100)
            process.end(signal.SIGKILL)
            came.update(process.values())
    with member(node, topic, "killed-often") as process:
        process.until(lambda: len({*came, *process.values()}) == 700, "all")
        process.end(signal.SIGTERM)


@pytest.mark.setting("group.start")
def test_where_latest_was_is_kept_before_anything_came(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client:
        with client.consumer(topic, group="latest", start="latest") as consumer:
            assert not consumer.poll(timeout=0.05)
            wait_until(
                lambda: (consumer.poll(), consumer.committed()[topic, 0] == 10)[1],
                what="the first commit",
            )
        fill(node, topic, 10, 5)
        with client.consumer(topic, group="latest", start="latest", follow=False) as consumer:
            assert offsets(consumer) == list(range(10, 15))


# --- at-most-once ---------------------------------------------------------------------------------
@pytest.mark.rule(18)
def test_rule_18_the_claim_is_committed_before_a_record_is_handed_out(node):
    topic = node.create_topic()
    fill(node, topic, 0, 300)
    options = {"group": "before", "guarantee": "at-most-once", "follow": False}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        admin = client.admin()
        came = []
        for record in consumer:
            came.append(record.offset)
            if record.offset % 50 == 0:
                [partition] = admin.describe_group("before").partitions
                assert partition.committed > record.offset
        assert came == list(range(300))


@pytest.mark.rule(18)
def test_rule_18_nothing_comes_twice_when_members_are_killed(node):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 500)
    came: Counter[Any] = Counter()
    options = ("--guarantee", "at-most-once")
    for turn in range(4):
        with ExitStack() as stack:
            group = [
                stack.enter_context(member(node, topic, "amo-killed", *options)) for _ in range(2)
            ]
            fill(node, topic, 500 + turn * 200, 200)
            first, second = group
            wait_until(lambda: first.values() or second.values(), what="records")  # noqa: B023
            for process in group:
                process.end(signal.SIGKILL if turn < 3 else signal.SIGTERM)
                came.update(process.places())
    assert set(came.values()) == {1}


@pytest.mark.rule(18)
def test_rule_18_what_was_granted_and_not_handed_out_is_counted_and_told(node):
    topic = node.create_topic()
    fill(node, topic, 0, 5000)
    with node.connect() as client:
        with client.consumer(topic, group="skips", guarantee="at-most-once") as consumer:
            came = offsets(itertools.islice(consumer, 2000))
            claimed = consumer.committed()[topic, 0]
        assert consumer.metrics()["skipped"] == claimed - 2000
        assert client.admin().describe_group("skips").skipped == claimed - 2000
        with client.consumer(
            topic, group="skips", guarantee="at-most-once", follow=False
        ) as consumer:
            assert offsets(consumer) == list(range(claimed, 5000))
    assert came == list(range(2000))


def test_at_most_once_a_loop_that_was_left_goes_on_where_it_was(node):
    topic = node.create_topic()
    fill(node, topic, 0, 1000)
    options = {"group": "goes-on", "guarantee": "at-most-once", "follow": False}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        came = offsets(itertools.islice(consumer, 300))
        assert consumer.position(topic, 0) == 300
        came += offsets(consumer.poll(50))
        came += offsets(consumer)
        assert came == list(range(1000))
        assert consumer.metrics()["skipped"] == 0


@pytest.mark.rule(18)
def test_rule_18_going_back_needs_an_admin_who_says_so(node):
    topic = node.create_topic()
    fill(node, topic, 0, 100)
    options = {"group": "back", "guarantee": "at-most-once", "follow": False}
    with node.connect() as client, client.admin() as admin:
        with client.consumer(topic, **options) as consumer:
            assert len(list(consumer)) == 100
            with pytest.raises(er.GroupError, match="deliver twice"):
                consumer.seek(topic, 0, 50)
            with pytest.raises(er.ConfigError, match="commits before"):
                consumer.commit()
            with pytest.raises(er.ConfigError, match="nothing comes again"):
                consumer.rewind()
        for dry_run in (True, False):
            with pytest.raises(er.GroupError, match="twice"):
                admin.reset_offsets("back", topic, to=50, dry_run=dry_run)
        [reset] = admin.reset_offsets("back", topic, to=50, allow_redelivery=True)
        assert (reset.before, reset.after, reset.redelivers) == (100, 50, 50)
        with client.consumer(topic, **options) as consumer:
            assert offsets(consumer) == list(range(50, 100))


def test_at_most_once_claims_run_on_where_retention_moved_the_log_start(node):
    topic = node.create_topic()
    fill(node, topic, 0, 100)
    options = {"group": "trimmed", "guarantee": "at-most-once", "on_out_of_range": "earliest"}
    with node.connect() as client, client.admin() as admin:
        with client.consumer(topic, **options) as consumer:
            assert len(consumer.poll(10, timeout=25)) == 10
        fill(node, topic, 100, 100)
        admin.trim(topic, before=150)
        with client.consumer(topic, **options, follow=False) as consumer:
            assert offsets(consumer)[-1] == 199
            assert consumer.metrics()["refused_claims"] == 0
            assert consumer.metrics()["out_of_range"] == 1
            assert consumer.committed() == {(topic, 0): 200}


# --- manual ---------------------------------------------------------------------------------------
def test_manual_commits_when_it_is_told(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    options = {"group": "manual", "guarantee": "manual", "follow": False}
    with node.connect() as client:
        with client.consumer(topic, **options) as consumer:
            first = consumer.poll(3, timeout=25)
            consumer.poll(3)
            consumer.commit(first)
            consumer.rewind()
            assert consumer.position(topic, 0) == 3
        with client.consumer(topic, **options) as consumer:
            assert offsets(itertools.islice(consumer, 2)) == [3, 4]
            consumer.commit()
        with client.consumer(topic, **options) as consumer:
            assert offsets(consumer) == [5, 6, 7, 8, 9]


def stale_end(batch, partition):
    return max(chunk.next_offset for chunk in batch.chunks if chunk.partition == partition)


def test_invariant_7_a_stale_members_commit_is_refused_by_name(node):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 200)
    options = {"group": "stale", "guarantee": "manual"}
    with (
        node.connect() as client,
        client.consumer(topic, **options) as consumer,
    ):
        stale = consumer.poll(timeout=25)
        while {chunk.partition for chunk in stale.chunks} != {0, 1}:  # one came first
            consumer.rewind()
            stale = consumer.poll(timeout=25)
        with client.consumer(topic, **options) as other:
            wait_until(
                lambda: (consumer.poll(), other.poll(), len(other.assignment()) == 1)[2],
                what="one partition moved",
            )
            [(_, number)] = other.assignment()
            with pytest.raises(er.StaleGenerationError, match=f"{topic}-{number} ") as caught:
                consumer.commit(stale)
            assert f"{topic}-{1 - number}" not in str(caught.value)
            assert consumer.metrics()["stale_commits"] == 1
            assert consumer.committed() == {(topic, 1 - number): stale_end(stale, 1 - number)}
            assert other.committed() == {(topic, number): None}


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
def test_where_latest_was_is_kept_before_what_came_just_then_is_handed_out(node, guarantee):
    """Of a busy topic the first poll brings something already: a crash in it must skip nothing."""
    topic, group = node.create_topic(), f"busy-{guarantee}"
    fill(node, topic, 0, 10)
    came = lambda names: fill(node, topic, 10, 5)  # noqa: E731 - right after where it begins was found
    options = {"group": group, "guarantee": guarantee, "start": "latest", "on_assigned": came}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        assert consumer.poll(1, timeout=25).offsets.tolist() == [10]
        [place] = client.admin().describe_group(group).partitions
        assert place.committed == (11 if guarantee == "at-most-once" else 10)
        if guarantee == "exactly-once":
            consumer.rewind()
            assert consumer.poll(1, timeout=25).offsets.tolist() == [10]


def test_at_least_once_rewinding_to_what_is_still_to_come_passes_nothing_over(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client, client.consumer(topic, group="twice") as consumer:
        first, second = consumer.poll(4, timeout=25), consumer.poll(4)
        consumer.rewind(first)
        consumer.rewind(second)
        assert offsets(consumer.poll(4)) == [0, 1, 2, 3]


# --- exactly-once ---------------------------------------------------------------------------------
def test_exactly_once_never_commits_by_itself(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    options = {"group": "exactly", "guarantee": "exactly-once", "follow": False}
    with node.connect() as client:
        with client.consumer(topic, **options) as consumer:
            assert len(list(consumer)) == 10
            with pytest.raises(er.ConfigError, match="transaction"):
                consumer.commit()
            [offset] = consumer.offsets_of().offsets
            assert offset.offset == 10
        with client.consumer(topic, **options) as consumer:
            batch = consumer.poll(4, timeout=25)
            consumer.poll(4)
            consumer.rewind(batch)
            assert offsets(consumer.poll(2)) == [0, 1]
            consumer.rewind()
            assert offsets(consumer) == list(range(10))


def test_exactly_once_an_aborted_batch_comes_again_and_counts_once(node):
    source, target = node.create_topic(partitions=2), node.create_topic()
    fill(node, source, 0, 100)
    options = {"group": "moves", "guarantee": "exactly-once", "follow": False}
    with node.connect() as client, client.producer(transactional_id="moves-0") as producer:
        with client.consumer(source, **options) as consumer:
            for turn, batch in enumerate(consumer.batches(max_records=15)):
                try:
                    with producer.transaction(consumed=batch):
                        for value in batch.values:
                            producer.send(target, value)
                        if turn % 3 == 1:
                            raise HandlerError
                except HandlerError:
                    assert consumer.position(*names_in(batch)[0]) == int(batch.offsets[0])
        with client.consumer(target, isolation="read_committed", follow=False) as reader:
            came = sorted(int(record.value) for record in reader)
        assert came == list(range(100))
        assert client.admin().describe_group("moves").lag == 0


def names_in(batch):
    return [(chunk.topic, chunk.partition) for chunk in batch.chunks]


def test_exactly_once_a_transaction_of_a_former_owner_is_aborted(node):
    source, target = node.create_topic(), node.create_topic()
    fill(node, source, 0, 10)
    options = {"group": "former", "guarantee": "exactly-once"}
    with (
        node.connect() as client,
        client.producer(transactional_id="former-0") as producer,
        client.consumer(source, **options) as consumer,
    ):
        batch = consumer.poll(timeout=25)
        client.admin().reset_offsets("former", source, to=5)
        with pytest.raises((er.StaleGenerationError, er.TransactionError)):
            move(producer, batch, target)
        batch = consumer.poll(timeout=25)
        assert offsets(batch) == [5, 6, 7, 8, 9]
        move(producer, batch, target)
        with client.consumer(target, isolation="read_committed", follow=False) as reader:
            assert [int(record.value) for record in reader] == [5, 6, 7, 8, 9]


def move(producer, batch, target):
    with producer.transaction(consumed=batch):
        producer.send_batch(target, batch.values.to_list())


def test_the_options_of_a_group_are_checked(node):
    topic = node.create_topic()
    with node.connect() as client:
        for options, said in (
            ({"group": ""}, "letters"),
            ({"group": "g", "guarantee": "perhaps"}, "at-most-once"),
            ({"group": "g", "commit_interval": 0.0}, "commit_interval"),
            ({"group": "g", "pattern": "("}, "regular expression"),
        ):
            with pytest.raises(er.ConfigError, match=said):
                client.consumer(topic, **options)
        with pytest.raises(er.ConfigError, match="name topics"):
            client.consumer(group="g")
