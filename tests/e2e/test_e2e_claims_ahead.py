"""Rule 18 while a loop works off one claim and has asked for the next: nothing comes before its own
claim is granted, nothing twice, and what was granted for nobody is counted."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from contextlib import ExitStack

import pytest
from event_loops import run
from group_fixture import Members, fill

from penstock import aio
from penstock.client.session import Session, place_of
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.testing.waiting import wait_until

TOTAL = 20_000


@pytest.fixture
def broker(penstock_broker):
    return penstock_broker


@pytest.fixture
def members():
    found = Members()
    yield found
    found.close()


def options(group, **more):
    return {"group": group, "guarantee": "at-most-once", **more}


def committed(client, group):
    return sum(part.committed or 0 for part in client.admin().describe_group(group).partitions)


def reads_until(records, came, condition):
    """Read on in a loop until that holds, after a record."""
    for record in records:
        came.append(record.offset)
        if condition():
            return
    raise AssertionError("the loop ended before")


def until_ahead(consumer, records, came):
    """Until the next claim is asked for, while one is worked off."""
    asked = consumer.metrics()["claims_ahead"]
    reads_until(records, came, lambda: consumer.metrics()["claims_ahead"] > asked)


@pytest.mark.rule(18)
def test_rule_18_a_loop_that_asks_ahead_brings_each_record_once(node):
    topic = node.create_topic(partitions=3)
    fill(node, topic, 0, TOTAL)
    came: Counter[bytes] = Counter()
    with (
        node.connect() as client,
        client.consumer(topic, **options("ahead", follow=False)) as consumer,
    ):
        for left in (50, 3, 700, 1, 2000):
            came.update(record.value for record in itertools.islice(consumer, left))
            came.update(consumer.poll(20).values.to_list())
        came.update(record.value for record in consumer)
        assert consumer.metrics()["claims_ahead"]
        assert consumer.metrics()["skipped"] == 0
        assert committed(client, "ahead") == TOTAL
    assert set(came.values()) == {1}
    assert len(came) == TOTAL


@pytest.mark.rule(18)
def test_rule_18_what_was_asked_ahead_is_not_handed_out_before_it_is_granted(broker):
    """The node stops when it has granted one claim ahead: nothing above that comes."""
    topic = broker.create_topic()
    fill(broker, topic, 0, TOTAL)
    came: list[int] = []
    with (
        broker.connect() as client,
        client.consumer(topic, **options("stops", node_timeout=3.0)) as consumer,
    ):
        records = iter(consumer)
        until_ahead(consumer, records, came)
        known = consumer.committed()[topic, 0]
        wait_until(lambda: committed(client, "stops") > known, what="the claim ahead")
        granted = committed(client, "stops")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(er.PenstockTimeout):
                reads_until(records, came, lambda: len(came) > TOTAL)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert came == list(range(len(came)))
        assert len(came) <= granted
        unknown = consumer.metrics()["skipped"]
        assert unknown > 0
        first = len(came) + unknown
        assert granted <= first < TOTAL  # the group has what is granted, whoever was told
        rest = [record.offset for record in itertools.islice(consumer, TOTAL - first)]
        assert rest == list(range(first, TOTAL))
        assert not consumer.poll(timeout=0.2), "what nobody knows to be granted comes at the end"
        assert committed(client, "stops") == TOTAL


@pytest.mark.rule(18)
@pytest.mark.parametrize("forward", [True, False])
def test_rule_18_a_group_that_is_moved_while_a_claim_is_pending(node, forward):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)
    came: list[int] = []
    group = f"moved-{forward}"
    to = TOTAL - 100 if forward else 0
    with node.connect() as client:
        with client.consumer(topic, **options(group, follow=False)) as consumer:
            records = iter(consumer)
            until_ahead(consumer, records, came)
            client.admin().reset_offsets(group, topic, to=to, allow_redelivery=not forward)
            before = len(came)
            for record in records:
                came.append(record.offset)
            assert consumer.metrics()["lost"] == 1
        assert committed(client, group) == TOTAL
    place = came.index(to, before)
    assert came[place:] == list(range(to, TOTAL))
    # What the loop had in its hands it went on with; nothing of what was pending came.
    assert came[:place] == list(range(place))


@pytest.mark.rule(18)
def test_rule_18_what_is_pending_or_granted_at_the_close_is_counted(node):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)
    came: list[int] = []
    with node.connect() as client:
        with client.consumer(topic, **options("closed")) as consumer:
            until_ahead(consumer, iter(consumer), came)
        at = committed(client, "closed")
        assert consumer.metrics()["skipped"] == at - len(came)
        assert client.admin().describe_group("closed").skipped == at - len(came)
        with client.consumer(topic, **options("closed", follow=False)) as consumer:
            assert next(iter(consumer)).offset == at


@pytest.mark.rule(18)
def test_rule_18_the_position_is_that_of_the_loop_and_not_of_its_claims(node):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)
    came: list[int] = []
    with node.connect() as client, client.consumer(topic, **options("position")) as consumer:
        records = iter(consumer)
        for _ in range(3):
            until_ahead(consumer, records, came)
            assert consumer.position(topic, 0) == len(came)
            assert consumer.lag() == {(topic, 0): TOTAL - len(came)}


@pytest.mark.rule(18)
def test_rule_18_seeking_past_a_pending_claim(node):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)
    came: list[int] = []
    with (
        node.connect() as client,
        client.consumer(topic, **options("seeks-ahead", follow=False)) as consumer,
    ):
        records = iter(consumer)
        until_ahead(consumer, records, came)
        with pytest.raises(er.GroupError, match="deliver twice"):
            consumer.seek(topic, 0, len(came))
        assert consumer.seek(topic, 0, TOTAL - 50) == TOTAL - 50
        came += [record.offset for record in consumer]
    count = len(came) - 50
    assert came == [*range(count), *range(TOTAL - 50, TOTAL)]


@pytest.mark.rule(18)
def test_rule_18_nothing_comes_twice_when_the_node_dies_with_a_claim_pending(broker):
    topic = broker.create_topic(partitions=2)
    fill(broker, topic, 0, TOTAL)
    came: Counter[bytes] = Counter()
    with (
        broker.connect() as client,
        client.consumer(topic, **options("dies", follow=False)) as consumer,
    ):
        kills = asked = 0
        for record in consumer:
            came[record.value] += 1
            ahead = consumer.metrics()["claims_ahead"]
            if ahead > asked and kills < 3:
                asked, kills = ahead, kills + 1
                broker.restart(kill=True)
        assert kills == 3
        assert consumer.metrics()["skipped"] == 0
    assert set(came.values()) == {1}
    assert len(came) == TOTAL


@pytest.mark.rule(18)
def test_rule_18_a_partition_goes_to_another_while_a_claim_on_it_is_pending(node, members):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, TOTAL)
    with ExitStack() as stack:
        client = stack.enter_context(node.connect())
        first = members.add(client.consumer(topic, **options("shared")))
        for record in first:
            members.seen[record.value] += 1
            if first.metrics()["claims_ahead"]:
                break
        other = stack.enter_context(node.connect())
        members.add(other.consumer(topic, **options("shared")))
        members.until_balanced([(topic, 0), (topic, 1)])
        members.until(lambda: committed(client, "shared") == TOTAL, "all is claimed")
        members.until(
            lambda: len(members.seen) + sum(m.metrics()["skipped"] for m in members.all) == TOTAL,
            "all is handed out or counted",
        )
    assert set(members.seen.values()) == {1}


@pytest.mark.rule(18)
def test_rule_18_a_loop_within_a_loop_goes_on_where_that_was(node):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)
    came: list[int] = []
    with (
        node.connect() as client,
        client.consumer(topic, **options("within", follow=False)) as consumer,
    ):
        for record in consumer:
            came.append(record.offset)
            if record.offset in (50, 700, 3000):
                came += [inner.offset for inner in itertools.islice(consumer, 30)]
        assert consumer.metrics()["claims_ahead"]
    assert came == list(range(TOTAL))


@pytest.mark.rule(18)
def test_rule_18_a_loop_in_asyncio_asks_ahead_too(node):
    topic = node.create_topic()
    fill(node, topic, 0, TOTAL)

    async def main():
        came = []
        async with (
            aio.connect(node.url) as client,
            client.consumer(topic, **options("ahead-aio", follow=False)) as consumer,
        ):
            async for record in consumer:
                came.append(record.offset)
                if record.offset == 1000:
                    break
            async for record in consumer:
                came.append(record.offset)
            assert consumer.metrics()["claims_ahead"]
            assert consumer.metrics()["skipped"] == 0
        assert came == list(range(TOTAL))

    run(main())


# --- what is posted -------------------------------------------------------------------------------
@pytest.fixture
def session(node):
    made = Session.attach(place_of(node.url), lo.KIND_CONSUMER, client_id="posts", timeout=5.0)
    yield made
    made.close()


def collected(session, ticket):
    steps = session.collecting(ticket, ms.TopicFound, 5.0)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_what_is_posted_is_answered_where_it_is_collected(node, session):
    one, other = node.create_topic(), node.create_topic()
    ticket = session.post(ms.FindTopic(one))
    assert collected(session, ticket).topic.name == one
    assert collected(session, ticket) is None, "it is handed out once"
    ticket = session.post(ms.FindTopic(one))
    assert session.find_topic(other, 5.0).name == other
    assert collected(session, ticket) is None, "it went by"


def test_a_look_for_the_nodes_farewell_keeps_what_is_posted(node, session):
    topic = node.create_topic()
    ticket = session.post(ms.FindTopic(topic))
    wait_until(lambda: session.farewell() is None and session._kept is not None, what="the answer")
    assert collected(session, ticket).topic.name == topic
    assert session.find_topic(topic, 5.0).name == topic
