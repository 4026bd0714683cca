"""Settings of a topic, given when it is made: what its log and its readers have of each."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from node_helpers import eventually

from penstock import Admin, Client
from penstock.testing import Broker

pytestmark = pytest.mark.local("topics are a node's, whichever way its clients come")
WITHIN = 45.0
ROUNDS = 4
"""Of the cleaner, after which it has looked at everything that was there before."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    options = {"cleaner_interval": 0.05, "metrics": "127.0.0.1:0"}
    with Broker(writers=1, options=options) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.connect() as made:
        yield made


def segments(broker: Broker, admin: Admin, topic: str) -> int:
    folder = broker.data / f"{admin.describe_topic(topic).topic_id}-0"
    return len(list(folder.glob("*.log")))


def rounds(client: Client) -> int:
    """How often the cleaner has been round."""
    url = f"http://{client.admin().describe_node().metrics}/metrics"
    with urlopen(url, timeout=WITHIN) as answer:
        told = re.search(r"^penstock_cleaner_runs_total (\d+)", answer.read().decode(), re.M)
    return int(told[1]) if told else 0


def after_rounds(client: Client) -> None:
    begun = rounds(client)
    eventually(lambda: rounds(client) >= begun + ROUNDS, "rounds of the cleaner")


def compacted(client: Client, topic: str) -> int:
    [partition] = client.admin().describe_topic(topic).partitions
    return partition.cleaning["records_compacted"]


def overwrite(client: Client, topic: str, batches: int) -> None:
    """The same few keys again and again, 4 KiB a batch."""
    with client.producer() as producer:
        for number in range(batches):
            values = [b"%d " % number * 250] * 4
            producer.send_batch(topic, values, keys=[b"k%d" % key for key in range(4)]).result(
                WITHIN
            )


@pytest.mark.setting("topic.partitions")
def test_a_topic_has_as_many_partitions_as_were_asked_for(broker: Broker, client: Client) -> None:
    topic = broker.create_topic(partitions=3)
    with client.producer() as producer:
        assert producer.send_and_wait(topic, b"", partition=2, timeout=WITHIN).partition == 2


@pytest.mark.setting("topic.segment_age")
def test_a_segment_is_closed_when_it_is_of_that_age(broker: Broker, client: Client) -> None:
    topic = broker.create_topic(segment_age=1.0)
    admin = client.admin()
    with client.producer() as producer:
        producer.send_and_wait(topic, b"first", timeout=WITHIN)
        begun = time.monotonic()
        eventually(lambda: time.monotonic() - begun > 1.5, "its age")
        producer.send_and_wait(topic, b"second", timeout=WITHIN)
    assert segments(broker, admin, topic) == 2


@pytest.mark.setting("topic.durability")
def test_what_a_fsync_topic_acknowledges_is_durable(broker: Broker, client: Client) -> None:
    topic = broker.create_topic(durability="fsync")
    with client.producer() as producer:
        for number in range(5):
            producer.send_and_wait(topic, b"%d" % number, timeout=WITHIN)
            [partition] = client.admin().describe_topic(topic).partitions
            assert partition.durable == number + 1


@pytest.mark.setting("topic.flush_interval")
def test_an_interval_topic_is_fsynced_once_an_interval(broker: Broker, client: Client) -> None:
    """One of an hour is not over here, where the default's three seconds would be."""
    topic = broker.create_topic(durability="interval", flush_interval=3600.0)
    admin = client.admin()
    with client.producer() as producer:
        producer.send_and_wait(topic, b"", timeout=WITHIN)
        eventually(lambda: admin.describe_topic(topic).partitions[0].durable == 1, "the first sync")
        producer.send_and_wait(topic, b"", timeout=WITHIN)
        begun = time.monotonic()
        eventually(lambda: time.monotonic() - begun > 3.0, "three seconds")
        [partition] = admin.describe_topic(topic).partitions
        assert (partition.log_end, partition.durable) == (2, 1)
        admin.alter_topic(topic, flush_interval=0.01)
        producer.send_and_wait(topic, b"", timeout=WITHIN)
        eventually(lambda: admin.describe_topic(topic).partitions[0].durable == 3, "it is synced")


@pytest.mark.setting("topic.timestamp_type")
def test_records_of_an_append_topic_have_the_time_of_their_append(
    broker: Broker, client: Client
) -> None:
    topic = broker.create_topic(timestamp_type="append")
    with client.producer() as producer, client.consumer(topic) as consumer:
        producer.send(topic, b"", timestamp=1)
        [record] = consumer.poll(timeout=WITHIN)
    assert record.timestamp > 1_000_000


@pytest.mark.setting("topic.min_compaction_lag")
def test_what_is_younger_than_the_compaction_lag_is_left_alone(
    broker: Broker, client: Client
) -> None:
    topic = broker.create_topic(
        segment_bytes=16 << 10, cleanup="compact", min_dirty_ratio=0.0, min_compaction_lag=3600.0
    )
    overwrite(client, topic, 20)
    after_rounds(client)
    assert compacted(client, topic) == 0
    client.admin().alter_topic(topic, min_compaction_lag=0.0)
    eventually(lambda: compacted(client, topic) > 0, "compacted")


@pytest.mark.setting("topic.min_dirty_ratio")
def test_a_partition_is_compacted_once_so_much_of_it_is_new(broker: Broker, client: Client) -> None:
    """Never where all of it would have to be new, and more than there is never is."""
    topic = broker.create_topic(segment_bytes=16 << 10, cleanup="compact", min_dirty_ratio=1.0)
    overwrite(client, topic, 20)
    eventually(lambda: compacted(client, topic) > 0, "compacted for the first time")
    after_rounds(client)
    first = compacted(client, topic)
    overwrite(client, topic, 40)
    after_rounds(client)
    assert compacted(client, topic) == first
    client.admin().alter_topic(topic, min_dirty_ratio=0.0)
    eventually(lambda: compacted(client, topic) > first, "compacted again")
