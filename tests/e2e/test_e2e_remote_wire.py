"""Remote clients over wires that are long, fall silent, or carry one way only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest
from slow_link import SlowWire

import penstock
from penstock.client.consumer.consumer import Consumer
from penstock.testing import Broker, wait_until

WITHIN = 45.0
QUICK = {"client_heartbeat": 0.25, "client_silence_max": 1.5}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=True, options=QUICK) as made:
        yield made


@pytest.fixture
def wire(broker: Broker) -> Iterator[SlowWire]:
    with SlowWire(int(broker.tcp_url.rpartition(":")[2])) as made:
        yield made


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """So many values, by polls that are shorter than the wire is long."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + WITHIN
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += [record.value for record in consumer.poll(timeout=0.1)]
    return found


@pytest.mark.parametrize("way", ["cut", "deaf"])
def test_a_connection_that_is_half_open_is_left_and_nothing_is_lost(
    broker: Broker, wire: SlowWire, way: str
) -> None:
    topic = broker.create_topic()
    with (
        penstock.connect(wire.url, transport="tcp", timeout=WITHIN) as client,
        client.producer(delivery_timeout=120.0) as producer,
        client.consumer(topic, start="earliest") as consumer,
    ):
        for number in range(10):
            producer.send(topic, b"%d" % number)
        producer.flush(timeout=WITHIN)
        assert read(consumer, 10) == [b"%d" % number for number in range(10)]
        setattr(wire, way, True)
        sent = [producer.send(topic, b"%d" % number) for number in range(10, 100)]
        wait_until(lambda: not client.metrics()["connected"], WITHIN, "the silence to be noticed")
        setattr(wire, way, False)
        assert [delivery.result(WITHIN).offset for delivery in sent] == list(range(10, 100))
        assert read(consumer, 90) == [b"%d" % number for number in range(10, 100)]
        assert client.metrics()["reconnects"] >= 1


def test_over_a_long_wire_all_come_back_after_the_gateway_died(
    broker: Broker, wire: SlowWire
) -> None:
    """Attaching takes longer than each try of a producer, and than each poll of a consumer."""
    wire.delay = 0.28
    topic = broker.create_topic()
    with (
        penstock.connect(wire.url, transport="tcp", timeout=WITHIN) as client,
        client.producer(timeout=WITHIN, delivery_timeout=60.0) as producer,
        client.consumer(topic, start="earliest", timeout=WITHIN) as consumer,
    ):
        assert producer.send_and_wait(topic, b"0", timeout=WITHIN).offset == 0
        assert read(consumer, 1) == [b"0"]
        for child in psutil.Process(broker.pid).children():
            if any(word.endswith("gateway.main") for word in child.cmdline()):
                child.kill()
        assert producer.send(topic, b"1").result(WITHIN).offset == 1
        assert read(consumer, 1) == [b"1"]
