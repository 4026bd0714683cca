"""What one writes by habit: commits of a record, slices of batches, objects looked at."""

from __future__ import annotations

import asyncio

import pytest
from group_fixture import fill

import penstock
from penstock import aio
from penstock.client.producer.producer import PlainProducer
from penstock.client.public_view import PUBLIC_NAMES
from penstock.core import errors as er

pytestmark = pytest.mark.over_tcp


def offsets(records):
    return [record.offset for record in records]


def what_is_left(client, topic, group):
    with client.consumer(topic, group=group, guarantee="manual", follow=False) as consumer:
        return offsets(consumer)


@pytest.fixture(scope="module")
def topic(node):
    """Ten records in one partition."""
    name = node.create_topic()
    fill(node, name, 0, 10)
    return name


# --- commit ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("part", "left"),
    [
        (lambda batch: batch[3], 4),
        (lambda batch: batch[:4], 4),
        (lambda batch: {(batch[0].topic, 0): 4}, 4),
        (lambda _: {}, 0),
    ],
    ids=["record", "slice", "offsets", "none"],
)
def test_part_of_a_batch_is_committed(node, topic, request, part, left):
    group = f"part-{request.node.callspec.id}"
    with node.connect() as client:
        with client.consumer(topic, group=group, guarantee="manual") as consumer:
            batch = consumer.poll(8, timeout=25)
            consumer.commit(part(batch))
            assert consumer.committed()[topic, 0] == (left or None)
        assert what_is_left(client, topic, group) == list(range(left, 10))


def test_at_least_once_what_is_committed_of_a_batch_is_what_it_goes_back_to(node, topic):
    with node.connect() as client:
        with client.consumer(topic, group="back") as consumer:
            batch = consumer.poll(8, timeout=25)
            consumer.commit(batch[3])
            consumer.rewind()
            again = consumer.poll(2, timeout=25)
            assert offsets(again) == [4, 5]
            consumer.commit(again[0])
        assert what_is_left(client, topic, "back") == [5, 6, 7, 8, 9]


def test_at_least_once_a_batch_right_above_what_is_committed_comes_again(node, topic):
    with node.connect() as client, client.consumer(topic, group="above") as consumer:
        consumer.poll(4, timeout=25)
        consumer.commit()
        assert offsets(consumer.poll(4, timeout=25)) == [4, 5, 6, 7]
        assert consumer.committed()[topic, 0] == 4
        consumer.rewind()
        assert offsets(consumer.poll(4, timeout=25)) == [4, 5, 6, 7]


def test_a_loop_commits_the_record_in_hand(node, topic):
    with node.connect() as client:
        with client.consumer(topic, group="in-hand") as consumer:
            for record in consumer:
                if record.offset == 6:
                    consumer.commit(record)
                    break
        assert what_is_left(client, topic, "in-hand") == [7, 8, 9]


def test_a_loop_over_tcp_or_not_commits_alike_with_asyncio(node, topic):
    async def half() -> None:
        async with (
            aio.connect(node.url) as client,
            client.consumer(topic, group="aio", guarantee="manual") as consumer,
        ):
            batch = await consumer.poll(8, timeout=25)
            await consumer.commit(batch[2])
            await consumer.commit({(topic, 0): 5})

    asyncio.run(half())
    with node.connect() as client:
        assert what_is_left(client, topic, "aio") == [5, 6, 7, 8, 9]


def test_exactly_once_takes_a_slice(node, topic):
    out = node.create_topic()
    with node.connect() as client:
        with (
            client.producer(transactional_id="slice") as producer,
            client.consumer(topic, group="slice", guarantee="exactly-once") as consumer,
        ):
            batch = consumer.poll(8, timeout=25)
            with producer.transaction(consumed=batch[:3]):
                producer.send(out, batch[2].value)
            with pytest.raises(er.ConfigError, match="it commits with a transaction"):
                consumer.commit(batch[4])
        with client.consumer(topic, group="slice", guarantee="exactly-once", follow=False) as again:
            assert again.poll(1, timeout=25)[0].offset == 3


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        (lambda topic: {(topic, 0): 9}, er.ConfigError, "beyond 8.*seek"),
        (lambda topic: {(topic, 0): -1}, er.ConfigError, "negative"),
        (lambda topic: {(topic, 7): 1}, er.StaleGenerationError, "-7"),
        (lambda topic: {topic: 1}, TypeError, "named by"),
        (lambda topic: {(topic, 0): "1"}, TypeError, "is a number"),
        (lambda _: 4, TypeError, "a batch .*, a record of it, or"),
    ],
    ids=["beyond", "negative", "of-others", "by-topic", "text", "number"],
)
def test_what_cannot_be_committed(node, topic, what, error, says):
    with (
        node.connect() as client,
        client.consumer(topic, group="refused", guarantee="manual") as consumer,
    ):
        consumer.poll(8, timeout=25)
        with pytest.raises(error, match=says):
            consumer.commit(what(topic))
        assert consumer.committed()[topic, 0] is None


def test_a_record_above_where_its_partition_was_sought_is_not_committed(node, topic):
    with (
        node.connect() as client,
        client.consumer(topic, group="sought", guarantee="manual") as consumer,
    ):
        record = consumer.poll(8, timeout=25)[7]
        consumer.seek(topic, 0, 2)
        with pytest.raises(er.StaleGenerationError, match="was sought"):
            consumer.commit(record)


# --- words ----------------------------------------------------------------------------------------
def test_words_of_options_are_spelt_with_a_dash_or_an_underline(node, topic):
    with node.connect() as client:
        for word in ("drop-oldest", "drop_oldest"):
            with client.producer(on_full=word) as producer:
                assert producer.config.on_full == "drop-oldest"
        for word in ("at_least_once", "at-least-once"):
            with client.consumer(topic, group="words", guarantee=word) as member:
                assert member.guarantee == "at-least-once"
        for word in ("read_committed", "read-committed"):
            with client.consumer(topic, isolation=word, follow=False) as consumer:
                assert len(list(consumer)) == 10
        with pytest.raises(er.ConfigError, match="one of 'read-uncommitted', 'read-committed'"):
            client.consumer(topic, isolation="committed")


# --- batches --------------------------------------------------------------------------------------
def test_a_batch_is_a_sequence(node):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 5)
    fill(node, topic, 1, 4)
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        batches = list(consumer.batches())
    records = [record for batch in batches for record in batch]
    batch = penstock.RecordBatch([chunk for batch in batches for chunk in batch.chunks])
    assert len(batch.chunks) > 1
    assert [batch[at] for at in range(9)] == records
    assert [batch[at] for at in range(-9, 0)] == records
    for start in range(-10, 11):
        for stop in (None, *range(-10, 11)):
            part = batch[start:stop]
            assert list(part) == records[start:stop]
            assert list(part.offsets) == offsets(records[start:stop])
    assert batch[1:3].chunks[0].columns is batch.chunks[0].columns  # in place
    for at in (9, -10):
        with pytest.raises(IndexError, match=f"record {at} of a batch of 9"):
            batch[at]
    with pytest.raises(ValueError, match="steps of 1, not of 2"):
        batch[::2]


# --- repr and dir ---------------------------------------------------------------------------------
def test_objects_say_what_they_are(node, topic):
    with node.connect() as client:
        producer = client.producer(client_id="till")
        producer.send_and_wait(node.create_topic(), b"1")
        consumer = client.consumer(topic)
        member = client.consumer(topic, group="shown", guarantee="manual")
        batch = member.poll(8, timeout=25)
        member.commit(batch[:3])
        admin = client.admin()
        transactional = client.producer(transactional_id="shown-0")
        made = [client, producer, consumer, member, admin, transactional]
        said = [repr(each) for each in made]
        assert said[0].endswith(f"by {client.transport}, 5 made>")
        assert said[1].startswith("<Producer 'till', open: 1 records in batches, ")
        assert said[1].endswith(", 1 acknowledged, 0 failed>")
        assert said[2] == f"<Consumer {topic}-0 at 0>"
        assert said[3] == f"<GroupConsumer of group 'shown' (manual): {topic}-0 at 8 (committed 3)>"
        assert said[4].endswith(", open>")
        assert said[5].startswith("<TransactionalProducer 'shown-0', open: ")
        assert repr(batch) == f"<GroupBatch of 8 records: {topic}-0 0 to 7>"
    assert ["closed" in repr(each) for each in made] == [True] * len(made)


def test_an_object_that_is_half_made_says_so():
    for kind in (PlainProducer, penstock.Consumer, penstock.GroupConsumer, penstock.Client):
        assert "being made or changed" in repr(kind.__new__(kind))


def test_dir_shows_public_names(node, topic):
    with node.connect() as client:
        made = [
            client, client.admin(), client.producer(), client.consumer(topic),
            client.consumer(topic, group="dir"), client.producer(transactional_id="dir"),
            client.stage("dir-stages", 1),
        ]  # fmt: skip
        for each in made:
            only_asyncio = {"drain"}
            name = type(each).__name__.removeprefix("Plain")
            assert set(dir(each)) == PUBLIC_NAMES[name] - only_asyncio


INSIDE = {"make", "make_stage", "make_transactional", "blocking", "after_fork_in_child"}


@pytest.mark.parametrize("name", ["Client", "Producer", "TransactionalProducer", "Stage",
                                  "Consumer", "GroupConsumer", "Admin"])  # fmt: skip
def test_the_verbs_of_asyncio_are_public_names(name):
    kind = getattr(aio, name)
    verbs = {verb for verb in dir(kind) if not verb.startswith("_")} - INSIDE
    assert verbs <= PUBLIC_NAMES[name]
