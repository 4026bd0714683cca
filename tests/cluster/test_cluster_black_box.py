"""A cluster as somebody else's checker sees it: Kafka's VerifiableProducer and VerifiableConsumer (
`penstock verify`), while the leaders of the topic are killed with -9 one after the other.

What is held is Kafka's own: acknowledged minus consumed is empty, and nothing is consumed twice.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from cli_runner import cli_process, run_cli
from cluster_under_test import ClusterUnderTest, bounce

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

MESSAGES = 1500
RATE = 400


def named(lines, name):
    return [event for event in map(json.loads, lines) if event.get("name") == name]


@pytest.mark.slow
def test_acknowledged_minus_consumed_is_empty():
    with ClusterUnderTest() as ground:
        topic = ground.cluster.create_topic(
            partitions=3, replication_factor=3, min_insync_replicas=2
        )
        producing = ("verify", "producer", "--topic", topic, "--acks", "all")
        paced = ("--max-messages", str(MESSAGES), "--throughput", str(RATE))
        with cli_process(*producing, *paced, url=ground.url) as producer:
            for partition in range(3):
                bounce(ground, ground.leader(topic, partition), clean=False)
            out = producer.stdout.read().splitlines()
            assert producer.wait(60) == 0, producer.stderr.read().decode()
        good = named(out, "producer_send_success")
        assert len(good) == MESSAGES
        ground.await_in_sync()
        seen = run_cli(
            *("verify", "consumer", "--topic", topic, "--group", "checker", "-v"),
            *("--max-messages", str(MESSAGES)),
            url=ground.url,
        )
        assert seen.code == 0, seen.err
        places = Counter((e["partition"], e["offset"]) for e in named(seen.lines, "record_data"))
        values = Counter(event["value"] for event in named(seen.lines, "record_data"))
        assert {(each["partition"], each["offset"]) for each in good} == set(places)
        assert values == Counter(str(number) for number in range(MESSAGES))
