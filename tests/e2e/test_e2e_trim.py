"""Trimming a topic while it is in use: by admin and command line, seen by its consumers."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
from cli_runner import call_cli, run_cli
from node_helpers import eventually

from penstock import (
    Admin,
    Client,
    ConfigError,
    Consumer,
    Offset,
    OffsetOutOfRangeError,
    TopicConfig,
    UnknownTopicError,
)
from penstock.testing import Broker

pytestmark = pytest.mark.over_tcp

SEGMENT = 4096


@pytest.fixture(scope="module")
def node(transport: str):
    with Broker(writers=1) as running:
        yield running


@pytest.fixture
def client(node):
    with node.connect() as client:
        yield client


def fill(client: Client, topic: str, batches: int, partitions: int = 1, size: int = 100) -> Admin:
    """A topic with so many batches of ten records in each partition, in many small segments."""
    admin = client.admin()
    admin.create_topic(topic, TopicConfig(partitions=partitions, segment_bytes=SEGMENT))
    with client.producer() as producer:
        for _ in range(batches):
            for number in range(partitions):
                producer.send_batch(topic, [b"x" * size] * 10, partition=number).result(45)
    return admin


def files(node: Broker, admin: Admin, topic: str, partition: int = 0) -> list[Path]:
    topic_id = admin.describe_topic(topic).topic_id
    return sorted((node.data / f"{topic_id}-{partition}").glob("*.log"))


def start_of(admin: Admin, topic: str, partition: int = 0) -> int:
    return admin.describe_topic(topic).partitions[partition].log_start


def read_on(consumer: Consumer) -> None:
    """What was fetched already may still come."""
    while consumer.poll(timeout=25):
        pass


def test_a_trim_moves_the_start_to_the_record_and_removes_what_lies_below(node, client):
    admin = fill(client, "exact", 30)
    before = files(node, admin, "exact")
    [foretold] = admin.trim("exact", 0, before=155, dry_run=True)
    assert files(node, admin, "exact") == before
    [done] = admin.trim("exact", before=155)
    assert done == foretold
    assert (done.log_start_before, done.log_start, done.records) == (0, 155, 155)
    after = files(node, admin, "exact")
    assert done.segments == len(before) - len(after) > 3
    assert set(after) < set(before)
    with client.consumer("exact", start="earliest", follow=False) as consumer:
        assert [record.offset for record in consumer] == list(range(155, 300))
    assert admin.trim("exact", before="earliest")[0].records == 0


def test_a_trim_to_the_end_gives_all_room_back_and_writing_goes_on(node, client):
    admin = fill(client, "end", 30)
    [done] = admin.trim("end", before="latest")
    assert (done.log_start, len(files(node, admin, "end"))) == (300, 1)
    with client.producer() as producer:
        assert producer.send_and_wait("end", b"next", timeout=45).offset == 300
    with client.consumer("end", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"next"]


def test_a_trim_by_time_keeps_what_is_not_older(client):
    admin = fill(client, "timed", 5)
    time.sleep(0.002)  # a moment that lies between two records
    moment = datetime.now().astimezone()
    with client.producer() as producer:
        producer.send_batch("timed", [b"later"]).result(45)
    [done] = admin.trim("timed", before=moment)
    assert done.log_start == 50


def test_only_the_partitions_that_are_named_are_trimmed(client):
    admin = fill(client, "some", 4, partitions=3)
    assert [done.partition for done in admin.trim("some", [0, 2], before=Offset.from_end(5))] == [
        0, 2,
    ]  # fmt: skip
    assert [start_of(admin, "some", number) for number in range(3)] == [35, 0, 35]
    assert [done.log_start for done in admin.trim("some", before=20)] == [35, 20, 35]
    with pytest.raises(UnknownTopicError, match="has partitions 0 to 2, not 3"):
        admin.trim("some", 3, before=1)
    with pytest.raises(OffsetOutOfRangeError, match=r"some-1: offset 41 lies outside"):
        admin.trim("some", 1, before=41)


@pytest.mark.setting("consumer.on_out_of_range")
def test_a_consumer_that_was_overtaken_is_told_and_one_with_a_policy_goes_on(client):
    admin = fill(client, "overtaken", 30, size=10_000)  # more than a consumer fetches at once
    few = 64 << 10
    with (
        client.consumer("overtaken", prefetch_bytes=few) as strict,
        client.consumer("overtaken", prefetch_bytes=few, on_out_of_range="earliest") as lenient,
    ):
        for consumer in (strict, lenient):
            assert len(consumer.poll(5, timeout=45)) == 5
        admin.trim("overtaken", before=200)
        with pytest.raises(OffsetOutOfRangeError, match="the log starts at 200; seek"):
            read_on(strict)
        offsets: list[int] = []
        while not offsets or offsets[-1] < 299:
            offsets += [record.offset for record in lenient.poll(timeout=25)]
        assert offsets[-100:] == list(range(200, 300))


@pytest.mark.over_tcp(False)
def test_a_trim_survives_the_writer_and_the_node(node, client):
    admin = fill(client, "kept", 30)
    admin.trim("kept", before=77)
    [writer] = admin.describe_node().writers
    os.kill(writer.pid, signal.SIGKILL)
    eventually(lambda: admin.describe_node().writers[0].pid not in (0, writer.pid), "a successor")
    with client.producer() as producer:
        assert producer.send_and_wait("kept", b"x", timeout=45).offset == 300
    assert start_of(admin, "kept") == 77
    node.kill()
    node.start()
    with node.connect() as again:
        assert start_of(again.admin(), "kept") == 77


def test_a_trim_whose_writer_is_killed_is_done_by_its_successor(node, client):
    admin = fill(client, "retold", 10)
    [writer] = admin.describe_node().writers
    os.kill(writer.pid, signal.SIGSTOP)  # it cannot have read the order when it dies
    os.kill(writer.pid, signal.SIGKILL)
    [done] = admin.trim("retold", before=42)
    assert done.log_start == 42 == start_of(admin, "retold")


@pytest.mark.over_tcp(False)
def test_trimming_by_command_line(node, client):
    admin = fill(client, "told", 30)
    dry = call_cli("topic", "trim", "told", "--before", "100", "--dry-run", url=node.url)
    assert dry.code == 0
    assert "partition 0 would start at 100 instead of 0: 100 records" in dry.lines[0]
    asked = run_cli("topic", "trim", "told", "--before", "end", url=node.url)
    assert asked.code == 2
    assert "Delete 300 records of told before end?" in asked.err
    assert start_of(admin, "told") == 0
    done = call_cli(
        "topic", "trim", "told", "-p", "0", "--before", "end", "--yes", "--format", "json",
        url=node.url,
    )  # fmt: skip
    assert (done.objects[0]["log_start"], done.objects[0]["records"]) == (300, 300)
    assert call_cli("topic", "trim", "told", "--before", "soon", url=node.url).code == 2
    assert call_cli("topic", "trim", "nobody", "--before", "0", "-y", url=node.url).code == 1


def test_what_no_place_is_is_refused_by_name(client):
    admin = fill(client, "named", 1)
    with pytest.raises(ConfigError, match="no place in a log"):
        admin.trim("named", before="yesterday")
