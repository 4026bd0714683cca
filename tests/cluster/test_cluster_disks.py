"""Disks of brokers: one that is full, and a power cut of one of them.

Each broker has a file system of its own (`brokers_power`). Needs root and loop devices.
"""

from __future__ import annotations

import os
import shutil

import pytest
from brokers_power import Sender, cut_power, file_systems
from cluster_under_test import ClusterUnderTest
from crash import block_device

from penstock.testing import drain, produce, wait_until

SAFE = {"replication_factor": 3, "min_insync_replicas": 2}
LEAST = 20

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(180),
    pytest.mark.skipif(block_device.why_not() is not None, reason=str(block_device.why_not())),
]


@pytest.fixture
def disks(tmp_path):
    with file_systems(tmp_path, 3) as found:
        yield found


@pytest.fixture
def ground(disks):
    with ClusterUnderTest(parents=[each.mounted_at for each in disks]) as found:
        yield found


def await_some(sender, ground):
    """Until so many of its records are acknowledged."""
    wait_until(lambda: len(sender.acknowledged) >= LEAST, 30, ground.tail)


@pytest.mark.slow
def test_one_broker_without_power_loses_nothing_that_was_committed(ground, disks):
    """Of a topic that syncs nothing: the two others have it, and the one comes back as a
    follower."""
    topic = ground.cluster.create_topic(durability="os", **SAFE)
    leader = ground.leader(topic)
    sender = Sender(ground, topic, 0)
    sender.start()
    await_some(sender, ground)
    [broker] = cut_power(ground, disks, 0, [leader.number])
    acknowledged = sender.end()
    heir = ground.leader(topic)
    assert heir.number != leader.number
    ground.returns(broker)
    ground.await_in_sync()
    produce(ground.cluster, topic, [b"after"])
    values = [record.value for record in drain(ground.cluster, topic)]
    assert set(acknowledged) <= set(values)
    assert len(set(values)) == len(values)


def test_a_follower_whose_disk_is_full_holds_nobody_up(ground, disks):
    """It leaves the ISR, the others go on; with room again it comes back into sync."""
    topic = ground.cluster.create_topic(segment_bytes=1 << 20, **SAFE)
    leader = ground.leader(topic)
    follower = next(each for each in ground.cluster.brokers if each.number != leader.number)
    disk = disks[follower.number - 1].mounted_at
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
    record = bytes(100_000)
    with ground.connect() as client, client.producer(acks="all", delivery_timeout=60) as producer:
        for _ in range(200):
            producer.send(topic, record).result(30)
        isr = ground.cluster.look(topic).partitions[topic, 0].isr
        assert isr == {each.number for each in ground.cluster.brokers} - {follower.number}
        filler.unlink()
        wait_until(
            lambda: follower.number in ground.cluster.look(topic).partitions[topic, 0].isr,
            60,
            lambda: f"broker {follower.number} comes into sync\n{ground.tail()}",
        )
    ground.await_in_sync()
    assert len(drain(ground.cluster, topic, count=200)) == 200
