"""Power cuts on a real file system: what was `fsynced` is there, and of the rest a prefix (rules 15
and 16, invariants 3 and 4)."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash import block_device
from crash.block_device import Device
from crash.node_under_test import NodeUnderTest
from seeds import seed_of

from penstock.client.admin.admin import TopicConfig
from penstock.client.consumer.consumer import Consumer
from penstock.client.producer.producer import Producer
from penstock.core.errors import OffsetOutOfRangeError, PenstockError
from penstock.logcheck import check_partition, find_partitions

CUTS = max(2, int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0")) // 100)
SEED = seed_of("power cuts")
TOPICS = {
    "fsync": (TopicConfig(durability="fsync", segment_bytes=64 << 10), {}),
    "asked": (TopicConfig(segment_bytes=64 << 10), {"durability": "fsynced"}),
    "interval": (TopicConfig(durability="interval", flush_interval=0.05), {}),
    "os": (TopicConfig(segment_bytes=64 << 10), {}),
}
Sent = dict[int, tuple[bytes, str]]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(60 + 20 * CUTS),
    pytest.mark.skipif(block_device.why_not() is not None, reason=str(block_device.why_not())),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Device]:
    with Device(tmp_path) as disk:
        yield disk


class Sender(threading.Thread):
    """Sends until the disk is gone. `sent`: by offset, value and durability of each receipt."""

    def __init__(self, producer: Producer, topic: str, start: int, sent: Sent) -> None:
        super().__init__()
        self._producer = producer
        self._topic = topic
        self._next = start
        self.sent = sent
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            values = [b"%s %d" % (self._topic.encode(), self._next + n) for n in range(5)]
            self._next += len(values)
            deliveries = [self._producer.send(self._topic, value) for value in values]
            for value, delivery in zip(values, deliveries, strict=True):
                try:
                    receipt = delivery.result(1.0)
                except PenstockError:
                    return
                assert receipt.offset is not None
                self.sent[receipt.offset] = value, receipt.durability


@pytest.mark.rule(15)
def test_rule_15_after_a_power_cut_what_was_fsynced_is_there_and_the_rest_is_a_prefix(
    disk: Device, tmp_path: Path
):
    rng = random.Random(SEED)
    print(f"power cuts: seed {SEED}")
    sent: dict[str, Sent] = {topic: {} for topic in TOPICS}
    epochs = dict.fromkeys(TOPICS, 0)
    settings: dict[str, Any] = {"writers_max": 2, "lane_capacity": 64 << 10}
    node = NodeUnderTest(tmp_path, **settings)
    node.data = disk.mounted_at / "data"
    gone = 0
    try:
        for cut in range(CUTS):
            node.config = {**settings, "boot_id": f"{cut:08x}-0000-4000-8000-000000000000"}
            node.start()
            if not cut:
                with node.connect() as client:
                    for topic, (config, _) in TOPICS.items():
                        client.admin().create_topic(topic, config)
            run_and_cut(node, disk, sent, cut, rng.uniform(0.3, 1.2))
            disk.unmount()
            disk.mount()
            node.config["boot_id"] = f"{cut:08x}-0000-4000-9000-000000000000"
            node.start()
            gone += check(node, sent, epochs)
            assert node.stop() == 0, node.tail()
            node.check_gone()
            check_files(node)
        assert gone, "no cut took anything: they were none"
        assert min(len(sent[topic]) for topic in ("fsync", "asked")) >= CUTS
    finally:
        node.clear()


def run_and_cut(
    node: NodeUnderTest, disk: Device, sent: dict[str, Sent], cut: int, after: float
) -> None:
    """Send to all topics, cut the power `after` seconds, and end all that lived on the host."""
    client = node.connect()
    senders = []
    for topic, (_, options) in TOPICS.items():
        producer = client.producer(linger=0.001, delivery_timeout=1.0, **options)  # type: ignore[call-overload]
        senders.append(Sender(producer, topic, cut * 1_000_000, sent[topic]))
    for sender in senders:
        sender.start()
    time.sleep(after)
    disk.cut()
    node.clear()
    for sender in senders:
        sender.stop.set()
        sender.join(45)
        sender._producer._leave()  # its host is gone: nothing to flush, nobody to say goodbye to
    client.close()


def check(node: NodeUnderTest, sent: dict[str, Sent], epochs: dict[str, int]) -> int:
    """Hold every log against its receipts; how many records of them are gone."""
    gone = 0
    with node.connect() as client:
        for topic, receipts in sent.items():
            with client.consumer(topic, follow=False) as consumer:
                values = [record.value for record in consumer]
                check_seek(consumer, topic, len(values))
            lost = [
                (offset, value)
                for offset, (value, durability) in receipts.items()
                if durability == "fsynced" and (offset >= len(values) or values[offset] != value)
            ]
            assert not lost, f"{topic}: acknowledged as fsynced, and not there: {lost[:5]}"
            wrong = [
                (offset, value, values[offset])
                for offset, (value, _) in receipts.items()
                if offset < len(values) and values[offset] != value
            ]
            assert not wrong, f"{topic}: another record at a receipt's offset: {wrong[:5]}"
            assert len(set(values)) == len(values), f"{topic}: doubled"
            (partition,) = client.admin().describe_topic(topic).partitions
            assert partition.leader_epoch > epochs[topic], f"{topic}: the epoch stood still"
            epochs[topic] = partition.leader_epoch
            for offset in [offset for offset in receipts if offset >= len(values)]:
                del receipts[offset]  # given again to others from here on, in a newer epoch
                gone += 1
        for topic in ("fsync", "asked"):
            assert any(durability == "fsynced" for _, durability in sent[topic].values())
    return gone


def check_seek(consumer: Consumer, topic: str, end: int) -> None:
    """An offset that was stored before the cut, and is not there any more, is refused."""
    with pytest.raises(OffsetOutOfRangeError):
        consumer.seek(topic, 0, end + 1)


def check_files(node: NodeUnderTest) -> None:
    for partition in find_partitions(str(node.data)):
        errors = [each for each in check_partition(partition).findings if not each.is_note]
        assert not errors, errors
