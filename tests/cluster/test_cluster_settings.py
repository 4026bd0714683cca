"""Settings of brokers and of topics that only a cluster of several can show."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.testing import Cluster, wait_until

WITHIN = 45.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, options={"broker_session_timeout": 6.0}) as made:
        yield made


@pytest.mark.setting("topic.replication_factor")
def test_a_topic_lies_on_as_many_brokers_as_it_says(cluster: Cluster) -> None:
    topic = cluster.create_topic(replication_factor=2)
    assert len(cluster.look(topic).partitions[topic, 0].replicas) == 2


@pytest.mark.setting("node.broker_session_timeout")
def test_a_broker_that_stands_still_is_fenced_when_its_session_is_over(cluster: Cluster) -> None:
    """Its last heartbeat came just before, and no sooner than half a session ago."""
    wait_until(lambda: not cluster.ailing(), WITHIN, lambda: f"{cluster.ailing()}")
    controller = cluster.controller()
    other = next(it for it in cluster.brokers if it.number != controller)
    begun = time.monotonic()
    other.pause()
    try:
        active = cluster.broker(controller)
        with active.connect() as client, client.admin() as admin:

            def is_fenced() -> bool:
                states = {it.broker: it.state for it in admin.describe_cluster().brokers}
                return states[other.number] != "up"

            wait_until(is_fenced, WITHIN, "it is fenced")
        assert time.monotonic() - begun > 3.0
    finally:
        other.resume()
