"""Compaction with real processes: the newest record of each key stays, whoever dies meanwhile."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path

import pytest
from node_helpers import NodeProcess, eventually

import penstock
from penstock import Admin, Client, TopicConfig
from penstock.logcheck import check_partition, find_partitions

SEGMENT = 16 << 10
COMPACT = TopicConfig(segment_bytes=SEGMENT, cleanup="compact", min_dirty_ratio=0.0)

Table = dict[bytes, bytes]


@pytest.fixture
def node(tmp_path):
    with NodeProcess(tmp_path / "data", "--writers", "1", "--cleaner-interval", "0.05") as node:
        yield node.start()


@pytest.fixture
def client(node):
    with penstock.connect(f"shm://{node.folder}") as client:
        yield client


def churn(client: Client, topic: str, seed: int, count: int, table: Table) -> None:
    """Records of few keys, some of them tombstones, and what a reader must find in the end."""
    rng = random.Random(seed)
    with client.producer() as producer:
        for number in range(0, count, 20):
            keys = [b"k%d" % rng.randrange(50) for _ in range(20)]
            values = [None if rng.random() < 0.1 else b"%d-%d " % (seed, number) * 20 for _ in keys]
            producer.send_batch(topic, values, keys=keys).result(45)
            for key, value in zip(keys, values, strict=True):
                table.pop(key, None)
                if value is not None:
                    table[key] = value


def read_table(client: Client, topic: str) -> tuple[Table, list[int]]:
    """What stands in a topic: the newest of each key, and all offsets."""
    table: Table = {}
    offsets: list[int] = []
    with client.consumer(topic, start="earliest", follow=False) as consumer:
        for record in consumer:
            offsets.append(record.offset)
            assert record.key is not None
            table.pop(record.key, None)
            if record.value is not None:
                table[record.key] = record.value
    return table, offsets


def cleaning(admin: Admin, topic: str) -> dict[str, int]:
    return admin.describe_topic(topic).partitions[0].cleaning


def compacted(admin: Admin, topic: str, more_than: int) -> bool:
    return cleaning(admin, topic)["records_compacted"] > more_than


def files(node: NodeProcess, admin: Admin, topic: str) -> list[Path]:
    topic_id = admin.describe_topic(topic).topic_id
    return sorted((node.folder / f"{topic_id}-0").iterdir())


@pytest.mark.setting("topic.cleanup")
def test_the_newest_of_each_key_stays_at_its_offset(node, client):
    admin = client.admin()
    admin.create_topic("t", COMPACT)
    table: Table = {}
    churn(client, "t", 1, 4000, table)
    eventually(partial(compacted, admin, "t", 3000), "most is compacted away")
    found, offsets = read_table(client, "t")
    assert found == table
    assert len(offsets) < 1000
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 3999
    counted = cleaning(admin, "t")
    assert counted["bytes_deleted"] > 1_000_000
    assert counted["cleaning_errors"] == 0
    node.wait_log(r"t-0: compacted below offset \d+: \d+ of \d+ records stay")
    churn(client, "t", 2, 400, table)
    assert read_table(client, "t")[0] == table


@pytest.mark.setting("topic.delete_retention")
def test_tombstones_go_when_their_time_is_over(node, client):
    admin = client.admin()
    admin.create_topic(
        "t",
        TopicConfig(
            segment_bytes=SEGMENT, cleanup="compact", min_dirty_ratio=0.0, delete_retention=0.2
        ),
    )
    with client.producer() as producer:
        producer.send_batch("t", [b"x"], keys=[b"gone"]).result(45)
        producer.send_batch("t", [None], keys=[b"gone"]).result(45)

        def has_gone() -> bool:
            """More comes, since compaction looks only at what is new."""
            producer.send_batch("t", [b"y" * 2000] * 10, keys=[b"key"] * 10).result(45)
            with client.consumer("t", start="earliest", follow=False) as consumer:
                return b"gone" not in {record.key for record in consumer}

        eventually(has_gone, "the tombstone has gone")


def test_a_consumer_that_follows_sees_every_key_in_its_newest_state(node, client):
    admin = client.admin()
    admin.create_topic("t", COMPACT)
    table: Table = {}
    writing = threading.Thread(target=churn, args=(client, "t", 3, 20_000, table))
    seen: Table = {}
    last = -1
    with client.consumer("t", start="earliest") as consumer:
        writing.start()
        while last < 19_999:
            for record in consumer.poll(timeout=20):
                assert record.offset > last
                last = record.offset
                seen.pop(record.key, None)
                if record.value is not None:
                    seen[record.key] = record.value
            writing.join(0.02)  # fall behind, so that what is read is compacted
    writing.join()
    assert seen == table


def test_compact_and_delete_do_both(node, client):
    admin = client.admin()
    both = TopicConfig(
        segment_bytes=SEGMENT, cleanup="compact,delete", min_dirty_ratio=0.0,
        retention_bytes=2 * SEGMENT,
    )  # fmt: skip
    admin.create_topic("t", both)
    with client.producer() as producer:
        for number in range(200):  # no key twice: only retention makes room
            keys = [b"%d-%d" % (number, each) for each in range(20)]
            producer.send_batch("t", [b"v" * 100] * 20, keys=keys).result(45)
    eventually(lambda: admin.describe_topic("t").partitions[0].log_start > 2000)
    eventually(lambda: len(files(node, admin, "t")) < 30)


@pytest.mark.rule(21)
def test_rule_21_compaction_survives_kills_of_the_node(node, client):
    """Cleaner and writer are killed at each step in `tests/crash/test_crash_cleaning.py`."""
    admin = client.admin()
    admin.create_topic("t", COMPACT)
    table: Table = {}
    for round_ in range(4):
        done = cleaning(admin, "t")["records_compacted"]
        churn(client, "t", round_, 2000, table)
        node.kill()
        node.start()
        eventually(partial(compacted, admin, "t", done), "it goes on")
        assert read_table(client, "t")[0] == table
    assert cleaning(admin, "t")["cleaning_errors"] == 0
    assert node.stop() == 0
    node.start()
    assert not [path for path in files(node, admin, "t") if "cleaned." in path.name]
    assert read_table(client, "t")[0] == table
    assert node.stop() == 0
    partitions = find_partitions(str(node.folder))
    assert partitions
    for partition in partitions:
        assert not check_partition(partition).findings
