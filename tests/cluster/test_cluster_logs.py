"""Logs of a real cluster that fail one by one: a disk under one partition that breaks, and a folder
that is gone when its broker comes back.

The log that is to break lies on an ext4 of its own in the broker's data folder, which is shut down
under it: from then on every write there, and every sync, is an I/O error.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_under_test import ClusterUnderTest
from crash import block_device
from crash.block_device import Device

from penstock.core.errors import PenstockError
from penstock.testing import drain, produce, wait_until
from penstock.testing.cluster import ClusterBroker

SAFE: dict[str, Any] = {"replication_factor": 3, "min_insync_replicas": 2}
LEAST = 30
MORE = 100

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]
needs_disks = pytest.mark.skipif(
    block_device.why_not() is not None, reason=str(block_device.why_not())
)


class Sender(threading.Thread):
    """Sends one record after the other with acks="all", and is refused none."""

    def __init__(self, ground: ClusterUnderTest, topic: str) -> None:
        super().__init__()
        self._ground, self._topic = ground, topic
        self.acknowledged: list[bytes] = []
        self.failure: PenstockError | None = None
        self._stop_it = threading.Event()

    def run(self) -> None:
        with self._ground.connect() as client:
            producer = client.producer(acks="all", linger=0.0, delivery_timeout=60.0)
            try:
                while not self._stop_it.is_set():
                    value = b"%d" % len(self.acknowledged)
                    producer.send(self._topic, value).result(60.0)
                    self.acknowledged.append(value)
                producer.close()
            except PenstockError as error:
                self.failure = error

    def await_more(self, count: int) -> None:
        until = len(self.acknowledged) + count
        wait_until(
            lambda: self.failure is not None or len(self.acknowledged) >= until,
            60,
            lambda: f"{until} records are acknowledged\n{self._ground.tail()}",
        )
        assert self.failure is None, f"{self.failure}\n{self._ground.tail()}"

    def finish(self) -> list[bytes]:
        self._stop_it.set()
        self.join(90)
        assert not self.is_alive()
        assert self.failure is None
        return self.acknowledged


@pytest.fixture(scope="module")
def started() -> Iterator[ClusterUnderTest]:
    # No election but for what befalls its logs, however busy the machine is.
    options = {"election_timeout": 2.0, "broker_session_timeout": 5.0, "replica_lag_time": 5.0}
    with ClusterUnderTest(options=options) as found:
        yield found


@pytest.fixture
def ground(started: ClusterUnderTest) -> ClusterUnderTest:
    """All brokers, up."""
    started.heal()
    return started


def folder_of(ground: ClusterUnderTest, broker: ClusterBroker, topic: str) -> Path:
    with ground.connect() as client, client.admin() as admin:
        topic_id = admin.describe_topic(topic).topic_id
    return broker.data / f"{topic_id}-0"


def place_of(ground: ClusterUnderTest, topic: str) -> Any:
    return ground.cluster.look(topic).partitions[topic, 0]


def await_isr(ground: ClusterUnderTest, topic: str, wanted: set[int]) -> None:
    wait_until(
        lambda: set(place_of(ground, topic).isr) == wanted,
        30,
        lambda: f"ISR {wanted}: {place_of(ground, topic)}\n{ground.tail()}",
    )


def all_of(ground: ClusterUnderTest, topic: str, sent: list[bytes]) -> None:
    values = [record.value for record in drain(ground.cluster, topic)]
    assert len(values) == len(set(values)), "doubled"
    assert set(sent) <= set(values), f"lost: {sorted(set(sent) - set(values))[:5]}"


@pytest.fixture
def breaking(
    ground: ClusterUnderTest, tmp_path: Path
) -> Iterator[tuple[str, ClusterBroker, Device]]:
    """A topic, its leader, and the disk under its log there."""
    topic = ground.cluster.create_topic(**SAFE)
    produce(ground.cluster, topic, [b"first"])
    leader = ground.leader(topic)
    folder = folder_of(ground, leader, topic)
    ground.leaves(leader, clean=True)
    with Device(tmp_path, at=folder) as disk:
        ground.returns(leader)
        ground.await_in_sync()
        with ground.connect() as client, client.admin() as admin:
            admin.elect_leaders(topic)
            wait_until(lambda: ground.leader(topic) is leader, 30, ground.tail)
        yield topic, leader, disk
        ground.leaves(leader, clean=False)
    with ground.connect() as client, client.admin() as admin:
        admin.delete_topic(topic)  # what lies below the disk is as old as the first record


@needs_disks
def test_a_leader_whose_disk_fails_gives_its_partition_up_and_is_back_when_it_is_mended(
    ground, breaking
):
    topic, leader, disk = breaking
    others = {each.number for each in ground.cluster.brokers} - {leader.number}
    sender = Sender(ground, topic)
    sender.start()
    sender.await_more(LEAST)
    epoch = place_of(ground, topic).epoch
    disk.cut()
    sender.await_more(MORE)
    await_isr(ground, topic, others)
    now = place_of(ground, topic)
    assert now.leader in others
    assert now.epoch == epoch + 1, "it is elected once, and not to and fro"
    assert leader.is_running, "its other partitions are well"
    sender.await_more(MORE)
    ground.leaves(leader, clean=True)
    disk.unmount()
    disk.mount()
    ground.returns(leader)
    ground.await_in_sync()
    sender.await_more(LEAST)
    all_of(ground, topic, sender.finish())
    for each in ground.cluster.brokers:  # it has to be able to lead alone
        if each is not leader:
            ground.leaves(each, clean=True)
            ground.returns(each)
            ground.await_in_sync()
    all_of(ground, topic, sender.acknowledged)


@pytest.mark.slow
@needs_disks
def test_a_follower_whose_disk_fails_leaves_the_isr_and_nobody_waits_for_it(ground, breaking):
    topic, broker, disk = breaking
    others = {each.number for each in ground.cluster.brokers} - {broker.number}
    ground.leaves(broker, clean=False)
    ground.returns(broker)
    ground.await_in_sync()
    leader = ground.leader(topic)
    assert leader is not broker
    epoch = place_of(ground, topic).epoch
    sender = Sender(ground, topic)
    sender.start()
    sender.await_more(LEAST)
    disk.cut()
    await_isr(ground, topic, others)
    sender.await_more(MORE)
    now = place_of(ground, topic)
    assert (now.leader, now.epoch) == (leader.number, epoch)
    all_of(ground, topic, sender.finish())


@pytest.mark.parametrize(
    "clean", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["killed", "stopped"]
)
def test_a_broker_whose_partition_folder_is_gone_is_not_trusted_with_it(ground, clean):
    """It would lead with nothing, were it still in the ISR. The others' other logs are kept."""
    topic = ground.cluster.create_topic(**SAFE)
    other = ground.cluster.create_topic(**SAFE)
    values = [b"%d" % number for number in range(300)]
    produce(ground.cluster, topic, values)
    produce(ground.cluster, other, values)
    victim = ground.leader(topic)
    folder = folder_of(ground, victim, topic)
    ground.leaves(victim, clean=clean)
    shutil.rmtree(folder)
    survivors = [each for each in ground.cluster.brokers if each is not victim]
    ground.returns(victim)
    leader = ground.leader(topic)
    assert leader is not victim
    ground.leaves(leader, clean=False)
    [left] = [each for each in survivors if each is not leader]
    wait_until(lambda: place_of(ground, topic).leader not in (None, leader.number), 30, ground.tail)
    ground.returns(leader)
    ground.await_in_sync()
    all_of(ground, topic, values)
    all_of(ground, other, values)
    ground.leaves(left, clean=False)
    ground.leaves(leader, clean=False)
    ground.returns(left, leader)
    ground.await_in_sync()
    all_of(ground, topic, values)
    assert folder.is_dir()


def test_the_only_replica_whose_folder_is_gone_leads_with_nothing_only_once_it_is_told_to(ground):
    """Nobody else has what was in it: it would look like a topic without records."""
    topic = ground.cluster.create_topic(replication_factor=1, min_insync_replicas=1)
    produce(ground.cluster, topic, [b"lost"])
    broker = ground.leader(topic)
    folder = folder_of(ground, broker, topic)
    ground.leaves(broker, clean=False)
    shutil.rmtree(folder)
    ground.returns(broker)
    await_isr(ground, topic, set())
    assert place_of(ground, topic).leader == -1
    with ground.connect() as client, client.admin() as admin:
        admin.elect_leaders(topic, unclean=True)
    produce(ground.cluster, topic, [b"after"])
    all_of(ground, topic, [b"after"])
