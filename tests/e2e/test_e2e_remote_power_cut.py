"""The node's host loses its power, and its clients on other hosts live on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from power_cuts import cut_power

import penstock
from penstock.testing import Broker

WITHIN = 45.0
BEFORE, KEPT, SINCE = 12, 7, 6


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=True) as made:
        yield made


def of_another_boot(broker: Broker) -> None:
    """What the data folder says of the boot before."""
    record = broker.data / "node.json"
    told = json.loads(record.read_bytes())
    told["boot_id"] = "00000000-0000-4000-8000-000000000000"
    told["clean"] = False
    record.write_text(json.dumps(told))


def values(broker: Broker, topic: str) -> list[int]:
    with broker.connect() as local, local.consumer(topic, follow=False) as consumer:
        return [int(record.value or b"") for record in consumer]


def committed(broker: Broker, topic: str) -> list[int]:
    with (
        broker.connect() as local,
        local.consumer(topic, follow=False, isolation="read_committed") as consumer,
    ):
        return [int(record.value or b"") for record in consumer]


@pytest.mark.rule(15)
def test_rule_15_a_remote_producer_goes_on_behind_what_the_power_cut_left(broker: Broker) -> None:
    topic = broker.create_topic()
    with (
        penstock.connect(broker.tcp_url, transport="tcp") as client,
        client.producer(linger=0) as producer,
    ):
        for number in range(BEFORE):
            producer.send(topic, b"%d" % number).result(WITHIN)
        cut_power(broker, keep=KEPT)
        of_another_boot(broker)
        sent = [producer.send(topic, b"%d" % (BEFORE + number)) for number in range(SINCE)]
        broker.start()
        offsets = [delivery.result(WITHIN).offset for delivery in sent]
        assert offsets == list(range(KEPT, KEPT + SINCE))
    assert values(broker, topic) == [*range(KEPT), *range(BEFORE, BEFORE + SINCE)]


@pytest.mark.rule(15)
def test_rule_15_a_transaction_does_not_commit_what_a_power_cut_took(broker: Broker) -> None:
    """Its records were acknowledged as appended, and it sends nothing more before it commits. What
    has begun it, a control batch, stands first in the log."""
    topic = broker.create_topic()
    with (
        penstock.connect(broker.tcp_url, transport="tcp") as client,
        client.producer(
            transactional_id="t", transaction_durability="appended", linger=0
        ) as producer,
    ):
        producer.begin_transaction()
        for number in range(BEFORE):
            producer.send(topic, b"%d" % number).result(WITHIN)
        cut_power(broker, keep=1 + 4)
        of_another_boot(broker)
        broker.start()
        with pytest.raises(penstock.TransactionError, match="lost its power"):
            producer.commit_transaction()
        assert committed(broker, topic) == []
        with producer.transaction():
            producer.send(topic, b"99")
        assert producer.metrics()["transactions_committed"] == 1
    assert committed(broker, topic) == [99]


def test_a_transaction_that_only_lost_its_connection_is_committed(broker: Broker) -> None:
    topic = broker.create_topic()
    with (
        penstock.connect(broker.tcp_url, transport="tcp") as client,
        client.producer(
            transactional_id="t", transaction_durability="appended", linger=0
        ) as producer,
    ):
        with producer.transaction():
            for number in range(BEFORE):
                producer.send(topic, b"%d" % number).result(WITHIN)
            broker.kill()
            broker.start()
        assert producer.metrics()["transactions_committed"] == 1
    assert committed(broker, topic) == list(range(BEFORE))
