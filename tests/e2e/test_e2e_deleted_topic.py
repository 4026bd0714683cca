"""A consumer learns that its topic is gone, wherever it stands and whoever has its page by now."""

from __future__ import annotations

import threading

import pytest

from penstock import DeliveryError, TopicConfig, UnknownTopicError
from penstock.testing import wait_until

pytestmark = [pytest.mark.penstock(writers=1), pytest.mark.over_tcp]


def read_on(consumer):
    """What was fetched already may still come."""
    while consumer.poll(timeout=25):
        pass


@pytest.mark.parametrize("read", [5, 3], ids=["at the end", "behind"])
@pytest.mark.parametrize("successors", [0, 3], ids=["page free", "page given away"])
def test_a_deleted_topic_is_told_to_its_consumer(node, read, successors):
    with node.connect() as client, client.producer() as producer:
        admin = client.admin()
        admin.create_topic("old", TopicConfig(partitions=1))
        producer.send_batch("old", [b"x"] * 5).result(45)
        with client.consumer("old", start="earliest") as consumer:
            assert len(consumer.poll(read, timeout=45)) == read
            admin.delete_topic("old")
            names = [f"new-{number}" for number in range(successors)]
            for name in names:
                admin.create_topic(name, TopicConfig(partitions=1))
                producer.send_batch(name, [b"y"] * 20).result(45)
            with pytest.raises(UnknownTopicError, match="'old' was deleted"):
                read_on(consumer)
        for name in names:
            admin.delete_topic(name)


def test_a_consumer_that_waits_is_woken_by_the_deletion(node):
    with node.connect() as client, node.connect() as other:
        client.admin().create_topic("waited-for", TopicConfig(partitions=1))
        with client.consumer("waited-for") as consumer:
            delete = threading.Thread(target=other.admin().delete_topic, args=("waited-for",))
            delete.start()
            with pytest.raises(UnknownTopicError):
                consumer.poll(timeout=20)
            delete.join(10)


def test_records_that_were_never_sent_count_as_failed(node):
    """Their topic is known to be gone when their box is sealed."""
    with node.connect() as client:
        client.admin().create_topic("lingering", TopicConfig(partitions=1))
        producer = client.producer(linger=60)
        producer.send("lingering", b"sent too late")
        client.admin().delete_topic("lingering")
        producer.send("lingering", b"in a box of its own", timestamp=5)  # so the first is sealed
        wait_until(lambda: "lingering" not in producer._pipeline.sender.topics, timeout=45)
        with pytest.raises(DeliveryError, match="2 records were not delivered"):
            producer.flush(45)
        assert producer.metrics()["failed"] == 2
        producer.close()
