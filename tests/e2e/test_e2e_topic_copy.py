"""`penstock topic copy`: what it copies, where it goes on, and that nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call_cli, cli_process
from group_fixture import fill
from keyed_fixture import World

import penstock
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.timeout(120)
WITHIN = 45.0


def read(client: penstock.Client, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """What committed readers see of each partition, in order."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    with client.consumer(
        topic, start="earliest", follow=False, isolation="read-committed"
    ) as consumer:
        for it in consumer:
            row = (it.key, it.value, tuple(it.headers), it.timestamp, it.work)
            found.setdefault(it.partition, []).append(row)
    return found


def test_records_are_copied_with_all_they_have(node: Broker) -> None:
    topic = node.create_topic(partitions=2)
    to = f"{topic}-2"
    with node.connect() as client:
        with client.producer(transactional_id=topic) as producer:
            with producer.transaction():
                producer.send(topic, b"a", key=b"k", headers={"h": b"1"}, timestamp=1, partition=0)
                producer.send(topic, None, key=b"k", timestamp=2, partition=1)
                producer.send(topic, b"", headers=[("h", b"1"), ("h", None)], partition=1)
                producer.send(topic, b"w", delay=9, ttl=10, priority=1, dedup_id="i", partition=0)
            producer.begin_transaction()
            producer.send(topic, b"aborted", partition=0)
            producer.abort_transaction()
        ran = call_cli("topic", "copy", topic, to, "--format", "json", url=node.url)
        assert ran.code == 0, ran.err
        [told] = ran.objects
        assert (told["records"], told["is_whole"]) == (4, True)
        assert f"created topic {to} with 2 partitions, like {topic}" in ran.err
        assert read(client, to) == read(client, topic)
        again = call_cli("topic", "copy", topic, to, url=node.url)
        assert again.err.startswith(f"0 records copied from {topic} to {to} in ")
        with client.producer() as producer:
            producer.send_and_wait(topic, b"later", partition=1)
        call_cli("topic", "copy", topic, to, url=node.url)
        assert read(client, to) == read(client, topic)


def test_a_target_that_is_made_again_gets_all_again(node: Broker) -> None:
    topic = node.create_topic()
    to, other = f"{topic}-2", f"{topic}-3"
    fill(node, topic, 0, 10)
    for words in ((topic, to), (topic, other, "--name", f"{to}.copy")):
        assert call_cli("topic", "copy", *words, url=node.url).code == 0
    with node.connect() as client, client.admin() as admin:
        admin.delete_topic(to)
        assert call_cli("topic", "copy", topic, to, url=node.url).code == 0
        assert read(client, to) == read(client, other) == read(client, topic)


@pytest.mark.over_tcp
def test_a_copy_that_is_killed_goes_on_without_loss_or_double(node: Broker) -> None:
    topic = node.create_topic(partitions=3)
    to = f"{topic}-2"
    fill(node, topic, 0, 6000)
    with node.connect() as client:
        with client.admin() as admin:
            admin.create_topic(to, 3)
        command = ("topic", "copy", topic, to, "--batch", "20")
        with cli_process(*command, url=node.url) as running:
            wait_until(lambda: read(client, to), timeout=WITHIN)
            running.send_signal(9)
            running.wait()
        assert len(read(client, to)) < 6000
        assert call_cli("topic", "copy", topic, to, url=node.url).code == 0
        assert read(client, to) == read(client, topic)


def test_a_signal_ends_it_between_two_transactions(node: Broker) -> None:
    topic = node.create_topic()
    to = f"{topic}-2"
    fill(node, topic, 0, 3000)
    with node.connect() as client:
        with cli_process("topic", "copy", topic, to, "--batch", "1", url=node.url) as running:
            wait_until(lambda: is_there(client, to) and read(client, to), timeout=WITHIN)
            running.send_signal(15)
            said = running.stderr.read().decode()
            assert (running.wait(), "stopped by a signal: the same command" in said) == (4, True)
        assert call_cli("topic", "copy", topic, to, url=node.url).code == 0
        assert read(client, to) == read(client, topic)


def is_there(client: penstock.Client, topic: str) -> bool:
    with client.admin() as admin:
        return topic in admin.list_topics()


def test_partitions_are_kept_or_chosen_by_keys(node: Broker) -> None:
    topic, to = node.create_topic(partitions=2), node.create_topic(partitions=5)
    fill(node, topic, 0, 100)
    ran = call_cli("topic", "copy", topic, to, url=node.url)
    assert (ran.code, "--by-key chooses partitions by keys" in ran.err) == (2, True)
    assert call_cli("topic", "copy", topic, to, "--by-key", url=node.url).code == 0
    with node.connect() as client:
        rows = [row for rows in read(client, topic).values() for row in rows]
        found = read(client, to)
        assert sorted(row for rows in found.values() for row in rows) == sorted(rows)
        expected = node.create_topic(partitions=5)
        fill(node, expected, 0, 100)
        assert {number: {row[0] for row in rows} for number, rows in found.items()} == {
            number: {row[0] for row in rows} for number, rows in read(client, expected).items()
        }


def test_what_cannot_be_copied_is_refused(node: Broker) -> None:
    topic = node.create_topic()
    for words, said in (
        ((topic, topic), "would be copied to itself"),
        (("nowhere", topic), "nowhere"),
        ((topic, "a b"), "is not allowed"),
        ((topic, f"{topic}-2", "--name", topic), "is a topic that is copied"),
    ):
        ran = call_cli("topic", "copy", *words, url=node.url)
        assert (ran.code in (1, 2), said in ran.err) == (True, True), ran.err
    many = node.create_topic(partitions=2, cleanup="compact")
    for kept in (many, node.create_topic()):
        ran = call_cli("topic", "copy", topic, f"{topic}-2", "--name", kept, url=node.url)
        assert (ran.code, "needs one partition and cleanup=compact" in ran.err) == (2, True)
    other = node.create_topic(cleanup="compact")
    with node.connect() as client, client.producer() as producer:
        with client.admin() as admin:
            ids = (admin.describe_topic(name).topic_id for name in (topic, f"{topic}-2"))
            key = f"{'-'.join(ids)}-0".encode()
        producer.send_and_wait(other, b"hello", key=key)
    ran = call_cli("topic", "copy", topic, f"{topic}-2", "--name", other, url=node.url)
    assert (ran.code, "does not say how far a copy is" in ran.err) == (2, True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("copies")) as made:
        yield made


@pytest.mark.local("one node is enough to be another one's target")
def test_another_node_takes_it_by_a_key_of_a_namespace(
    node: Broker, world: World, tmp_path: Path
) -> None:
    topic, file = node.create_topic(partitions=2), world.key("ann", namespace="ann")
    fill(node, topic, 0, 50)
    to = ("--to", world.broker.tcp_url, "--to-key", str(file))
    env = {"PENSTOCK_TRANSPORT": "tcp"}
    ran = call_cli("topic", "copy", topic, "ann.copied", *to, url=node.url, env=env)
    assert ran.code == 0, ran.err
    again = call_cli("topic", "copy", topic, "ann.copied", *to, url=node.url, env=env)
    assert again.err.startswith("0 records copied")
    denied = call_cli("topic", "copy", topic, "bob.copied", *to, url=node.url, env=env)
    assert (denied.code, "'ann' may not" in denied.err) == (1, True)
    with node.connect() as one, world.broker.connect() as other:
        assert read(other, "ann.copied") == read(one, topic)
