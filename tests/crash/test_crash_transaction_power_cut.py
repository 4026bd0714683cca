"""Power cuts on a real file system: what was decided of a transaction holds in each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from crash import block_device
from crash.block_device import Device
from crash.node_under_test import NodeUnderTest

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client
from penstock.client.transactions.producer import TransactionalProducer

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(120),
    pytest.mark.skipif(block_device.why_not() is not None, reason=str(block_device.why_not())),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Device]:
    with Device(tmp_path) as disk:
        yield disk


def boot(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def lose_power(
    disk: Device, node: NodeUnderTest, client: Client, producers: Sequence[TransactionalProducer]
) -> None:
    """Cut it under the node and its clients; the disk comes back with what it had."""
    disk.cut()
    node.clear()
    for producer in producers:
        producer._leave()  # its host is gone
    client.close()
    disk.unmount()
    disk.mount()


@pytest.mark.rule(15)
def test_rule_15_a_power_cut_that_takes_a_marker_takes_no_committed_record(
    disk: Device, tmp_path: Path
) -> None:
    """Logs are synced one by one: that a marker was written must not be known longer than it."""
    settings: dict[str, Any] = {"writers_max": 2, "lane_capacity": 64 << 10}
    node = NodeUnderTest(tmp_path, **settings)
    node.data = disk.mounted_at / "data"
    try:
        node.config = {**settings, "boot_id": boot(1)}
        node.start()
        client = node.connect()
        for topic in ("first", "second"):
            client.admin().create_topic(topic)
        producers = []
        for topic in ("first", "second"):  # the second decision brings the log of both to the disk
            producer = client.producer(transactional_id=topic)
            producers.append(producer)
            with producer.transaction():
                producer.send(topic, b"kept")
        lose_power(disk, node, client, producers)
        node.config = {**settings, "boot_id": boot(2)}
        node.start()
        with node.connect() as client:
            for topic in ("first", "second"):
                client.producer(transactional_id=topic).close()  # what was open is settled then
                with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
                    assert [record.value for record in consumer] == [b"kept"], topic
        assert node.stop() == 0, node.tail()
    finally:
        node.clear()


def test_a_power_cut_that_leaves_what_nobody_knows_to_be_open_holds_no_producer_up(
    disk: Device, tmp_path: Path
) -> None:
    """What was registered is not synced, what began in a partition is: both are aborted at once,
    although a state page tells only of the oldest one."""
    settings: dict[str, Any] = {"writers_max": 2, "lane_capacity": 64 << 10}
    node = NodeUnderTest(tmp_path, **settings)
    node.data = disk.mounted_at / "data"
    ids = ("a", "b", "c")
    try:
        node.config = {**settings, "boot_id": boot(1)}
        node.start()
        client = node.connect()
        client.admin().create_topic("both", TopicConfig(durability="fsync"))
        producers = [client.producer(transactional_id=each) for each in ids]
        for producer in producers:
            producer.begin_transaction()
            producer.send("both", b"never")
            producer.flush()
        lose_power(disk, node, client, producers)
        node.config = {**settings, "boot_id": boot(2)}
        node.start()
        with node.connect() as client:
            for each in reversed(ids):
                with client.producer(transactional_id=each) as producer, producer.transaction():
                    producer.send("both", each.encode())
            with client.consumer("both", isolation="read_committed", follow=False) as consumer:
                assert {record.value for record in consumer} == {b"a", b"b", b"c"}
        assert node.stop() == 0, node.tail()
    finally:
        node.clear()
