"""Many partitions on one node: what they take, and that each of them works (the benchmark
`penstock bench partitions` does the same with a thousand, and times it)."""

from __future__ import annotations

import os
import resource

import pytest

from penstock import LogOfflineError, TopicConfig
from penstock.testing import assert_records, drain, produce

MANY = 150
SPARE = 32
"""Descriptors of a writer that are not a partition's."""


def writers_of(broker):
    with broker.connect() as client, client.admin() as admin:
        return [writer for writer in admin.describe_node().writers if writer.pid]


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def assert_frugal(broker):
    for writer in writers_of(broker):
        assert writer.partitions <= open_files(writer.pid) <= writer.partitions + SPARE
    assert open_files(broker.pid) <= SPARE


def test_a_node_of_many_partitions_takes_one_descriptor_each_and_comes_back_whole(penstock_broker):
    topic = penstock_broker.create_topic(partitions=MANY)
    assert_frugal(penstock_broker)
    with penstock_broker.connect() as client, client.producer() as producer:
        for number in range(MANY):
            producer.send(topic, b"%d" % number, partition=number)
    for kill in (False, True):
        penstock_broker.restart(kill=kill)
        records = drain(penstock_broker, topic, count=MANY)
        assert {(record.partition, record.value) for record in records} == {
            (number, b"%d" % number) for number in range(MANY)
        }
        assert_frugal(penstock_broker)


def test_many_topics_are_made_and_deleted_while_another_is_in_use(penstock_broker):
    used = penstock_broker.create_topic(partitions=2)
    with (
        penstock_broker.connect() as client,
        client.producer() as producer,
        client.admin() as admin,
    ):
        for number in range(3):
            admin.create_topic("many", TopicConfig(partitions=MANY // 3))
            producer.send_and_wait(used, b"%d" % number, partition=0)
            admin.delete_topic("many")
    assert_records(penstock_broker, used, [b"0", b"1", b"2"])
    folders = [path.name for path in penstock_broker.data.iterdir() if path.is_dir()]
    assert len([name for name in folders if name.rpartition("-")[2].isdigit()]) == 2


@pytest.mark.rule(12)
@pytest.mark.penstock(writers=1)
def test_partitions_beyond_the_limit_of_open_files_are_refused_with_the_remedy(penstock_broker):
    kept = penstock_broker.create_topic()
    [writer] = writers_of(penstock_broker)
    few = open_files(writer.pid) + 40
    resource.prlimit(writer.pid, resource.RLIMIT_NOFILE, (few, few))
    with pytest.raises(LogOfflineError, match=r"Raise the limit of open files \(ulimit -n\)"):
        penstock_broker.create_topic("many", partitions=100)
    produce(penstock_broker, kept, [b"still here"])
    with penstock_broker.connect() as client, client.admin() as admin:
        assert admin.list_topics() == [kept]
