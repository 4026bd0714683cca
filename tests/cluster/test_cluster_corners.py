"""Corners of a real cluster that trials meet too rarely."""

from __future__ import annotations

import threading

import pytest
from brokers_ground import ClusterUnderTest

from penstock.testing import produce, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


def test_the_first_group_of_a_cluster_waits_for_a_broker_that_is_away():
    """The coordinator's log gets as many replicas as the cluster is meant to have, or none yet:
    they would be too few for good."""
    with ClusterUnderTest() as ground:
        topic = ground.cluster.create_topic(replication_factor=2, min_insync_replicas=1)
        produce(ground.cluster, topic, [b"1"])
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
        wait_until(lambda: came == [b"1"], 30, ground.tail)
        reader.join(30)
        places = ground.cluster.look("__coordinator").partitions
        assert [len(placed.replicas) for placed in places.values()] == [3]
