"""Wrong types and names are refused where they are handed in, in words that say what is wanted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock import ConfigError, NotConnectedError, UnknownTopicError, aio


@pytest.fixture(scope="module")
def topic(node):
    return node.create_topic()


@pytest.fixture
def client(node):
    with node.connect() as client:
        yield client


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": 1}, "a group's name is str, not int"),
        ({"group": None}, "a group's name is str, not NoneType"),
        ({"group": "g", "instance_id": 5}, "instance_id=5 must be str"),
        ({"group": "g", "pattern": 5}, "pattern=5 must be str"),
        ({"group": "g", "on_assigned": "x"}, "on_assigned='x' must be a function"),
        ({"group": "g", "on_lost": 5}, "on_lost=5 must be a function"),
        ({"group": "g", "commit_interval": "1s"}, "commit_interval='1s' must be a number from"),
        ({"group": "g", "processing_timeout": "1m"}, "processing_timeout='1m' must be a number"),
        ({"group": "g", "follow": "no"}, "follow='no' must be True or False"),
        ({"follow": "no"}, "follow='no' must be True or False"),
        ({"prefetch_bytes": "1MiB"}, "prefetch_bytes='1MiB' must be a number"),
        ({"guarantee": "manual"}, "takes guarantee= only beside group="),
        ({"pattern": "a.*"}, "takes pattern= only beside group="),
        ({"group_id": "g"}, "no option 'group_id'; what Kafka calls so is group="),
        ({"auto_offset_reset": "earliest"}, "no option 'auto_offset_reset'"),
    ],
)
def test_a_consumer_of_wrong_options(client, topic, options, says):
    with pytest.raises(TypeError, match=says):
        client.consumer(topic, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger": "5ms"}, "linger='5ms' must be a number from 0.0 to 60.0, not str"),
        ({"batch_bytes": "1MB"}, "batch_bytes='1MB' must be a number"),
        ({"linger": True}, "linger=True must be a number"),
        ({"idempotent": "yes"}, "idempotent='yes' must be True or False"),
        ({"client_id": 5}, "client_id=5 must be str"),
        ({"transactional_id": 5}, "transactional_id=5 must be str"),
        ({"transactional_id": None}, "transactional_id=None must be str"),
        ({"transaction_timeout": 5}, "takes transaction_timeout= only beside transactional_id="),
        ({"lingers": 1}, "no option 'lingers'; did you mean linger"),
    ],
)
def test_a_producer_of_wrong_options(client, options, says):
    with pytest.raises(TypeError, match=says):
        client.producer(**options)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x", "1", []), "epoch='1' must be int"),
        ((5, 1, []), "transactional_id=5 must be str"),
        (("x", 1, "abc"), "stages='abc' must be a list of names"),
        (("x", 1, [5]), "the name of a stage=5 must be str"),
    ],
)
def test_stages_of_wrong_arguments(client, arguments, says):
    with pytest.raises(TypeError, match=says):
        client.commit_transaction(*arguments)


def test_a_stage_of_wrong_arguments(client):
    with pytest.raises(TypeError, match="epoch='1' must be int"):
        client.stage("x", epoch="1")
    with pytest.raises(TypeError, match="transactional_id=5 must be str"):
        client.stage(5, epoch=1)


def test_partitions_are_pairs(client, topic):
    with client.consumer(topic) as consumer:
        for wrong in (topic, (topic, "0"), 5, (topic,)):
            for verb in (consumer.pause, consumer.resume, lambda wrong: consumer.assign([wrong])):
                with pytest.raises(TypeError, match=r"named by \(topic, number\)"):
                    verb(wrong)
        assert consumer.assignment() == [(topic, 0)]
        consumer.assign([[topic, 0]])  # as JSON has it
        consumer.pause((topic, 0))


def test_seconds_are_no_number_of_records(client, topic):
    with client.consumer(topic) as consumer:
        with pytest.raises(TypeError, match="seconds are timeout="):
            consumer.poll(1.0)
        with pytest.raises(ValueError, match="max_records=0 must be at least 1"):
            consumer.poll(0)


@pytest.mark.parametrize("wrong", [5, "orders", [("orders", 0)]])
def test_what_is_committed_is_a_batch(client, topic, wrong):
    with client.consumer(topic, group="wrong-batches", guarantee="manual") as consumer:
        for verb in (consumer.commit, consumer.rewind):
            with pytest.raises(TypeError, match="a batch that a group's consumer brought"):
                verb(wrong)


def test_verbs_of_other_clients_name_what_is_meant(client, topic):
    with (
        client.producer() as producer,
        client.producer(transactional_id="elsewhere") as transactional,
        client.consumer(topic) as plain,
        client.consumer(topic, group="elsewhere") as member,
    ):
        for made, verb, says in (
            (producer, "transaction", "transactional_id="),
            (producer, "init_transactions", "transactional_id="),
            (transactional, "init_transactions", "when it was made"),
            (transactional, "send_offsets_to_transaction", r"transaction\(consumed=batch\)"),
            (plain, "commit", "group="),
            (member, "assign", "its group gives it its partitions"),
            (member, "subscribe", "topics are named when it is made"),
        ):
            with pytest.raises(AttributeError, match=f"no attribute '{verb}': .*{says}"):
                getattr(made, verb)
        assert not hasattr(producer, "nothing_like_it")


def test_a_loop_is_told_the_same(node, topic):
    async def tried():
        async with aio.connect(node.url) as made:
            client: Any = made
            with pytest.raises(TypeError, match="only beside group="):
                client.consumer(topic, guarantee="manual")
            with pytest.raises(TypeError, match="no option 'lingers'"):
                client.producer(lingers=1)
            with pytest.raises(TypeError, match="transactional_id=5 must be str"):
                await client.producer(transactional_id=5)
            with pytest.raises(TypeError, match="stages='abc' must be a list of names"):
                await client.commit_transaction("x", 1, "abc")
            async with client.producer(transactional_id="x") as producer:
                with pytest.raises(penstock.ConfigError, match="consumed='orders'"):
                    await producer.commit_transaction(consumed="orders")

    asyncio.run(tried())


def test_what_was_neither_awaited_nor_entered_says_so(node):
    async def tried():
        async with aio.connect(node.url) as made:
            client: Any = made
            for opening in (client.admin(), client.producer(), client.consumer("t")):
                with pytest.raises(AttributeError, match=r"`await` this first, or .* `async with`"):
                    opening.close()
                assert not hasattr(opening, "create_topic")

    asyncio.run(tried())


def test_connect_without_a_url_reads_the_environment(node, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", node.url)
    with penstock.connect() as client:
        assert client.url == node.url

    async def in_a_loop():
        async with aio.connect() as client:
            return client.url

    assert asyncio.run(in_a_loop()) == node.url
    with pytest.raises(TypeError, match="url=5 must be str"):
        penstock.connect(5)  # type: ignore[arg-type]


TCP = r"is the URL of connect\(\) and App\(\): connect\('tcp://HOST:PORT'\)"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: penstock.connect(bootstrap_servers="a:9092"), TCP),  # type: ignore[call-arg]
        (lambda: aio.connect(bootstrap_servers="a:9092"), TCP),  # type: ignore[call-arg]
        (lambda: penstock.App(bootstrap_servers="a:9092"), TCP),  # type: ignore[call-arg]
        (lambda: penstock.connect(timeouts=1), "did you mean timeout"),  # type: ignore[call-arg]
        (lambda: penstock.TopicConfig(num_partitions=3), "is partitions= here"),  # type: ignore[call-arg]
        (lambda: penstock.App().consumer("o", group="g", max_retries=3), "did you mean retries"),  # type: ignore[call-arg]
        (lambda: penstock.App().consumer("o", group="g", zzz=3), "group, concurrency, on_error, r"),  # type: ignore[call-arg]
    ],
)
def test_words_of_others_at_the_first_calls(made, says):
    with pytest.raises(TypeError, match=says):
        made()


def test_what_is_not_there_is_told_without_what_was_looked_up(client, tmp_path):
    with client.producer() as producer, pytest.raises(UnknownTopicError) as caught:
        producer.send("orders2", b"x")
    assert caught.value.__context__ is None
    with pytest.raises(NotConnectedError) as lost:
        penstock.connect(f"shm://{tmp_path}", timeout=0.05)
    assert lost.value.__suppress_context__


def test_a_commit_for_a_topic_that_is_not_read(client, topic):
    with client.consumer(topic, group=topic) as consumer:
        consumer.assignment()
        with pytest.raises(ConfigError, match=f"does not read 'clicks', but {topic}"):
            consumer.commit({("clicks", 0): 1})
