"""Disks of brokers: one that is full, and power cuts of one and of all of them.

Each broker has a file system of its own (ext4 in a file, over a loop device), which stops at once
when the power is cut: what was not synced is gone. Needs root and loop devices.
"""

from __future__ import annotations

import json
import os
import shutil
import threading

import pytest
from brokers_ground import ClusterUnderTest
from crash import device
from crash.device import Device

from penstock.core.errors import PenstockError
from penstock.ipc.shm import unlink_all
from penstock.testing import drain, produce, wait_until

ROUNDS = int(os.environ.get("PENSTOCK_POWER_CUTS", "1"))
OTHER_BOOT = "{:08x}-0000-4000-8000-000000000000"
SAFE = {"replication_factor": 3, "min_insync_replicas": 2}
LEAST = 20

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(120 + 60 * ROUNDS),
    pytest.mark.skipif(device.why_not() is not None, reason=str(device.why_not())),
]


@pytest.fixture
def disks(tmp_path):
    found = []
    try:
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            found.append(Device(folder))
        yield found
    finally:
        for each in found:
            each.__exit__()


@pytest.fixture
def ground(disks):
    with ClusterUnderTest(parents=[each.mounted_at for each in disks]) as found:
        yield found


class Sender(threading.Thread):
    """Sends one record after the other with acks="all" until it is told to stop, and notes what is
    acknowledged: the rest is of leaders that moved, on a busy machine, or had no power."""

    def __init__(self, ground, topic, start):
        super().__init__()
        self._ground, self._topic, self._next = ground, topic, start
        self.acknowledged: list[bytes] = []
        self.stop = threading.Event()

    def run(self):
        with self._ground.connect() as client:
            producer = client.producer(acks="all", linger=0.0, delivery_timeout=2.0)
            while not self.stop.is_set():
                value = b"%d" % self._next
                self._next += 1
                try:
                    producer.send(self._topic, value).result(3.0)
                except PenstockError:
                    continue
                self.acknowledged.append(value)
            producer._leave()  # its cluster is gone: there is nobody to say goodbye to


def await_some(sender, ground):
    """Until so many of its records are acknowledged."""
    wait_until(lambda: len(sender.acknowledged) >= LEAST, 30, ground.tail)


def cut_power(ground, disks, turn, numbers):
    """Of these brokers, at once; then their disks are there again, as they were left."""
    brokers = [ground.cluster.broker(number) for number in numbers]
    uuids = [json.loads((each.data / "node.json").read_bytes())["uuid"] for each in brokers]
    for each in brokers:
        ground.away[each.number] = "without power"
        disks[each.number - 1].cut()
    for each, uuid in zip(brokers, uuids, strict=True):
        each.kill()
        unlink_all(uuid)
        disk = disks[each.number - 1]
        disk.unmount()
        disk.mount()
        record = json.loads((each.data / "node.json").read_bytes())
        record["boot_id"] = OTHER_BOOT.format(turn)  # its host was started again
        (each.data / "node.json").write_text(json.dumps(record))
    return brokers


def test_what_was_acknowledged_survives_a_power_cut_of_all_brokers(ground, disks):
    """With durability="fsync": votes and the raft log have to be on the disks for that, too."""
    topic = ground.cluster.create_topic(durability="fsync", **SAFE)
    acknowledged: list[bytes] = []
    terms = []
    for turn in range(ROUNDS):
        sender = Sender(ground, topic, turn * 1_000_000)
        sender.start()
        await_some(sender, ground)
        brokers = cut_power(ground, disks, turn, [1, 2, 3])
        sender.stop.set()
        sender.join(60)
        assert not sender.is_alive()
        acknowledged += sender.acknowledged
        ground.returns(*brokers)
        ground.await_in_sync()
        values = [record.value for record in drain(ground.cluster, topic)]
        lost = [value for value in acknowledged if value not in set(values)]
        assert not lost, f"acknowledged, and not there: {lost[:5]} of {len(lost)}"
        assert len(set(values)) == len(values), "doubled"
        terms.append(ground.cluster.look().term)
    assert terms == sorted(set(terms)), f"a term was given twice: {terms}"


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
    sender.stop.set()
    sender.join(60)
    assert not sender.is_alive()
    heir = ground.leader(topic)
    assert heir.number != leader.number
    ground.returns(broker)
    ground.await_in_sync()
    produce(ground.cluster, topic, [b"after"])
    values = [record.value for record in drain(ground.cluster, topic)]
    assert set(sender.acknowledged) <= set(values)
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
