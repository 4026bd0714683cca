"""Corners of a real cluster that trials meet too rarely."""

from __future__ import annotations

import json
import shutil
import threading
from typing import Any

import pytest
from cluster_under_test import QUICK, ClusterUnderTest

from penstock.core.errors import UnknownTopicError
from penstock.ipc.shm import unlink_all
from penstock.server.node.data_folder import is_partition_folder
from penstock.testing import Cluster, drain, produce, wait_until

SAFE: dict[str, Any] = {"replication_factor": 3, "min_insync_replicas": 2}

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def ground():
    with ClusterUnderTest() as found:
        yield found


def test_the_first_group_of_a_cluster_waits_for_a_broker_that_is_away(ground):
    """The coordinator's log gets as many replicas as the cluster is meant to have, or none yet:
    they would be too few for good. The first test of this cluster."""
    topic = ground.cluster.create_topic(replication_factor=2, min_insync_replicas=1)
    produce(ground.cluster, topic, [b"1"])
    with ground.connect() as client, client.admin() as admin, pytest.raises(UnknownTopicError):
        admin.describe_partitions("__coordinator")
    away = ground.cluster.broker(3)
    ground.leaves(away, clean=True)
    came: list[bytes | None] = []

    def read():
        with ground.connect() as client, client.consumer(topic, group="g") as consumer:
            while not came:
                came.extend(record.value for record in consumer.poll(timeout=0.1))

    reader = threading.Thread(target=ground.insist, args=(read,))
    reader.start()
    reader.join(1.0)
    assert reader.is_alive()
    ground.returns(away)
    wait_until(lambda: came == [b"1"], 60, ground.tail)
    reader.join(45)
    ground.await_in_sync()
    places = ground.cluster.look("__coordinator").partitions
    assert [len(placed.replicas) for placed in places.values()] == [3]


@pytest.mark.slow
def test_all_brokers_stop_and_start_again(ground):
    """Side by side: the last ones have nobody to ask for leave, and go all the same."""
    cluster = ground.cluster
    topic = cluster.create_topic(partitions=3, **SAFE)
    produce(cluster, topic, [b"%d" % number for number in range(100)])
    for each in cluster.brokers:
        each.node.terminate()
    assert [each.stop() for each in cluster.brokers] == [0, 0, 0]
    ground.returns(*cluster.brokers)
    ground.await_in_sync()
    produce(cluster, topic, [b"100"])
    assert sorted(int(record.value or -1) for record in drain(cluster, topic)) == list(range(101))


@pytest.mark.slow
def test_a_broker_with_an_empty_folder_is_filled_by_the_others(ground):
    """Its disk was lost, and its vote with it: it is taken out of the quorum, and comes back with
    its number and nothing else."""
    cluster = ground.cluster
    topic = cluster.create_topic(partitions=3, **SAFE)
    produce(cluster, topic, [b"%d" % number for number in range(300)])
    broker = ground.leader(topic)
    ground.leaves(broker, clean=False)
    uuid = json.loads((broker.data / "node.json").read_bytes())["uuid"]
    unlink_all(uuid)
    shutil.rmtree(broker.data)
    with ground.connect() as client, client.admin() as admin:
        admin.remove_broker(broker.number)
    ground.returns(broker)
    ground.await_in_sync()
    for each in cluster.brokers:  # it has to be able to lead alone
        if each is not broker:
            ground.leaves(each, clean=True)
            ground.returns(each)
            ground.await_in_sync()
    assert sorted(int(record.value or -1) for record in drain(cluster, topic)) == list(range(300))


def test_an_older_copy_of_a_folder_gives_no_producer_id_that_was_given_before(ground):
    """The broker lived once more after the copy was made, and gave ids beyond all that the copy
    knows to be reserved. A producer that got one of them again would have its records taken for
    repetitions: acknowledged, and lost. What it voted is not in the copy: it keeps that."""
    cluster = ground.cluster
    topic = cluster.create_topic(**SAFE)
    broker = next(each for each in cluster.brokers if each is not ground.leader(topic))
    copy = broker.data.with_name("older-copy")
    left_out = {"attach.sock", "raft"}
    shutil.copytree(broker.data, copy, ignore=lambda _, names: left_out & set(names))

    def block() -> int:
        return int(json.loads((broker.data / "node.json").read_bytes())["id_block"])

    def send(values: range) -> None:
        for value in values:  # each by a producer of its own, whose home is that broker
            with broker.connect() as client, client.producer(acks="all") as producer:
                producer.send(topic, b"%d" % value).result(30)

    ground.leaves(broker, clean=False)
    ground.returns(broker)
    ground.await_in_sync()
    before = block()
    send(range(5))
    ground.leaves(broker, clean=False)
    unlink_all(json.loads((copy / "node.json").read_bytes())["uuid"])  # as at another host
    (broker.data / "raft").rename(copy / "raft")
    shutil.rmtree(broker.data)
    copy.rename(broker.data)
    ground.returns(broker)
    ground.await_in_sync()
    assert block() > before
    send(range(5, 10))
    assert sorted(int(record.value or -1) for record in drain(cluster, topic)) == list(range(10))


def test_partitions_without_a_leader_hold_up_no_others(ground):
    """The only replicas of some are away. What one producer sends to others meanwhile comes through
    at once, and what waits comes when their broker does, in order."""
    cluster, batches = ground.cluster, 30
    alone = cluster.create_topic(partitions=3, replication_factor=1)
    kept = cluster.create_topic(partitions=3, **SAFE)
    away = ground.leader(alone)
    dark = [at for at in range(3) if cluster.leader_of(alone, at) == away.number]
    options: dict[str, Any] = {"acks": "all", "linger": 0, "delivery_timeout": 120.0}
    with ground.connect() as client, client.producer(**options) as producer:
        for partition in range(3):
            producer.send_and_wait(kept, b"0", partition=partition)
            producer.send_and_wait(alone, b"0", partition=partition)
        ground.leaves(away, clean=False)
        waiting, others = [], []
        for number in range(1, batches):
            value = b"%d" % number
            waiting += [producer.send(alone, value, partition=partition) for partition in dark]
            others += [producer.send(kept, value, partition=at) for at in range(3)]
        assert all(delivery.result(60) for delivery in others)
        assert not any(delivery.done() for delivery in waiting)
        ground.returns(away)
        assert all(delivery.result(60) for delivery in waiting)
    for topic, partitions in ((kept, range(3)), (alone, dark)):
        found = drain(cluster, topic)
        for partition in partitions:
            values = [int(each.value or -1) for each in found if each.partition == partition]
            assert values == list(range(batches)), (topic, partition)
    with ground.connect() as client, client.admin() as admin:
        admin.delete_topic(alone)  # a broker of other tests comes back without what it had


def test_topics_that_change_while_a_broker_is_away(ground):
    """It learns of all of it when it comes back: what is new, what has more partitions, what is
    gone, and what was made again under its name."""
    cluster = ground.cluster
    pair = {"replication_factor": 2, "min_insync_replicas": 1}
    gone, again = (cluster.create_topic(**SAFE) for _ in range(2))
    kept = cluster.create_topic(partitions=3, **pair)
    for topic in (kept, gone, again):
        produce(cluster, topic, [b"before"])
    broker = cluster.broker(2)
    ground.leaves(broker, clean=False)
    with ground.connect() as client, client.admin() as admin:
        admin.delete_topic(gone)
        admin.delete_topic(again)
        admin.add_partitions(kept, 5)
        cluster.create_topic(again, **pair)
        new = cluster.create_topic(partitions=3, **pair)
    produce(cluster, again, [b"after"])
    produce(cluster, new, [b"new"], partition=1)
    produce(cluster, kept, [b"grown"], partition=4)
    ground.returns(broker)
    ground.await_in_sync()
    with ground.connect() as client, client.admin() as admin:
        assert len(admin.describe_partitions(kept)) == 5
        assert gone not in admin.list_topics()
    assert [record.value for record in drain(cluster, again)] == [b"after"]
    assert {record.value for record in drain(cluster, kept)} == {b"before", b"grown"}

    def left() -> set[str]:
        known = json.loads((broker.data / "topics.json").read_bytes())["topics"]
        mine = {topic["topic_id"] for topic in known}
        partitions = {path.name for path in broker.data.iterdir() if is_partition_folder(path.name)}
        return {name for name in partitions if name.split("-")[0] not in mine}

    wait_until(lambda: not left(), 20, lambda: f"folders of topics that are gone: {left()}")


@pytest.mark.slow
def test_a_fourth_broker_takes_over_from_another_one():
    """It is no voter; it takes the partitions of a broker that leaves for good."""
    with Cluster(4, writers=1, options=QUICK) as cluster:
        topic = cluster.create_topic(partitions=3, **SAFE)
        produce(cluster, topic, [b"%d" % number for number in range(200)])
        with cluster.connect() as client, client.admin() as admin:
            for place in admin.describe_partitions(topic):
                admin.reassign_partition(topic, place.partition, [4, 2, 3])
            wait_until(
                lambda: all(
                    1 not in place.replicas and 4 in place.isr and not place.target
                    for place in admin.describe_partitions(topic)
                ),
                30,
                lambda: f"{admin.describe_partitions(topic)}\n{cluster.log_tail()}",
            )
        cluster.broker(1).stop()
        with cluster.connect() as client, client.admin() as admin:
            admin.elect_leaders(topic)
            assert sorted(int(record.value or -1) for record in drain(client, topic)) == list(
                range(200)
            )
            produce(client, topic, [b"200"])
