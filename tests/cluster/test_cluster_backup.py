"""A backup of a node is restored into three brokers, which hold it when a leader dies."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_under_test import QUICK
from group_fixture import fill

from penstock import Offset
from penstock.client.backup.create import create
from penstock.client.backup.restore import restore
from penstock.testing import Broker, Cluster, drain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PARTITIONS = 3
RECORDS = 3000


def rows(source: Broker | Cluster, topic: str) -> Counter[tuple[object, ...]]:
    """All records, with how often each is there."""
    return Counter(
        (one.partition, one.offset, one.timestamp, one.key, one.value)
        for one in drain(source, topic)
    )


def test_records_places_and_offsets_of_groups_are_those_of_the_node(tmp_path):
    with Broker(partitions=PARTITIONS) as node:
        topic = node.create_topic()
        fill(node, topic, 0, RECORDS)
        with node.connect() as client:
            client.admin().reset_offsets("reads", topic, to=Offset.latest())
            known = client.admin().describe_group("reads").partitions
            fill(node, topic, RECORDS, 500)
            run = create(client, str(tmp_path), [topic])
        assert run.records == RECORDS + 500
        sent = rows(node, topic)
    with Cluster(3, writers=1, options=QUICK) as cluster:
        with cluster.connect() as client:
            [told] = restore(client, str(tmp_path))
            assert (told.topic, told.records, told.gaps) == (topic, RECORDS + 500, 0)
            places = cluster.look(topic).partitions
            assert {len(places[topic, number].isr) for number in range(PARTITIONS)} == {3}
            found = client.admin().describe_group("reads").partitions
        assert sorted((one.partition, one.committed) for one in found) == sorted(
            (one.partition, one.committed) for one in known
        )
        assert rows(cluster, topic) == sent
        cluster.broker(cluster.leader_of(topic)).kill()
        assert rows(cluster, topic) == sent
