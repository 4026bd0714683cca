"""`topic describe` and `node describe`: sizes, times, rates, bounds, as they are on disk and in
the node."""

from __future__ import annotations

import os
import threading

import pytest
from cli_runner import call_cli
from node_helpers import eventually

import penstock
from penstock import TopicConfig
from penstock.testing.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node():
    with EmbeddedNode(writers=1) as running:
        yield running


@pytest.fixture
def client(node):
    with node.connect() as connected:
        yield connected


def describe(node, *arguments):
    ran = call_cli("topic", "describe", "--format", "json", *arguments, url=node.url)
    assert ran.code == 0, ran.err
    return ran.objects[0]


def test_sizes_segments_and_times_are_those_of_the_files(node, client):
    client.admin().create_topic("files", TopicConfig(partitions=2, segment_bytes=4096))
    with client.producer() as producer:
        for i in range(20):
            producer.send(
                "files", b"v" * 1000, partition=0, timestamp=1_372_939_200_000_000 + i * 1_000_000
            )
            producer.flush(20)
    found = describe(node, "files")
    filled, empty = found["partitions"]
    folder = node.data / f"{found['topic_id']}-0"
    names = os.listdir(folder)
    assert filled["segments"] == sum(name.endswith(".log") for name in names) > 1
    assert filled["disk_bytes"] == sum(os.stat(folder / name).st_blocks * 512 for name in names)
    assert filled["earliest"] == 1_372_939_200_000_000
    assert filled["latest"] == 1_372_939_219_000_000
    assert (empty["segments"], empty["earliest"], empty["latest"]) == (1, None, None)
    assert (found["offsets"], found["disk_bytes"]) == (
        20,
        filled["disk_bytes"] + empty["disk_bytes"],
    )
    shown = call_cli("topic", "describe", "files", url=node.url).lines
    assert "20 offsets" in shown[0]
    assert "2013-07-04T12:00:00Z  2013-07-04T12:00:19Z" in shown[3]
    assert shown[4].endswith("-")


def test_a_sample_counts_rates(node, client):
    client.admin().create_topic("busy")
    stop = threading.Event()
    with client.producer() as producer:

        def work():
            while not stop.is_set():
                producer.send_and_wait("busy", b"v" * 100, timeout=20)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            [part] = describe(node, "busy", "--sample", "0.3")["partitions"]
        finally:
            stop.set()
            thread.join()
    assert part["records_per_second"] > 0
    assert part["bytes_per_second"] > 100 * part["records_per_second"]
    assert part["batches_per_second"] == pytest.approx(part["records_per_second"])
    assert "records_per_second" not in describe(node, "busy")["partitions"][0]
    wide = call_cli(
        "topic", "describe", "busy", "--sample", "0.01", "--format", "wide", url=node.url
    )
    assert "RECORDS/S" in wide.lines[2]
    assert "THROTTLES" in wide.lines[2]


def test_a_node_with_its_versions_processes_room_and_bounds(node, client):
    client.admin().create_topic("some", TopicConfig(partitions=3))
    producer, consumer = client.producer(), client.consumer("some")
    producer.send_and_wait("some", b"v", timeout=20)
    ran = call_cli("node", "describe", "--format", "json", url=node.url)
    assert ran.code == 0, ran.err
    [found] = ran.objects
    assert (found["pid"], found["data_folder"]) == (node.pid, str(node.data))
    assert found["versions"]["penstock"] == penstock.__version__
    assert 0 < found["uptime"] < 3600
    assert 0 < found["disk_free"] <= found["disk_size"]
    assert found["shm_used"] > 4 << 20
    limits = found["limits"]
    admin = client.admin()
    assert limits["topics"] == {"used": len(admin.list_topics()), "most": 1000}
    assert limits["partitions"]["used"] >= 3
    assert limits["lanes"]["used"] >= 1
    assert limits["clients"]["most"] == 512
    [writer] = found["writers"]
    assert (writer["writer"], writer["restarts"]) == (0, 0)
    assert writer["rss"] > 1 << 20
    assert os.getpid() in [row["pid"] for row in found["producers"]]
    assert os.getpid() in [row["pid"] for row in found["consumers"]]
    assert found["settings"]["drain_timeout"] == 10.0
    text = call_cli("node", "describe", url=node.url).out.decode()
    assert f"node {node.pid}" in text
    assert "SETTING" not in text
    wide = call_cli("node", "describe", "--format", "wide", url=node.url).out.decode()
    assert "drain_timeout" in wide
    producer.close()
    consumer.close()


def test_the_cleaner_is_shown_once_a_topic_needs_it(node, client):
    client.admin().create_topic("kept", TopicConfig(retention=3600))

    def cleaner():
        [found] = call_cli("node", "describe", "--format", "json", url=node.url).objects
        [seen] = call_cli("top", "--once", "-i", "0.1", "--format", "json", url=node.url).objects
        return found["cleaner"] and seen["cleaner"] and (found["cleaner"], seen["cleaner"])

    found, seen = eventually(cleaner, "a cleaner")
    assert found["pid"] == seen["pid"]
    assert found["errors"] == 0
    assert seen["rss"] > 1 << 20
    assert "CLEANER" in call_cli("node", "describe", url=node.url).out.decode()
    assert "CLEANER" in call_cli("top", "--once", "-i", "0.1", url=node.url).out.decode()


def test_a_topic_that_is_not_there_has_no_description(node):
    assert call_cli("topic", "describe", "nobody", "--sample", "1", url=node.url).code == 1
    assert call_cli("topic", "describe", "nobody", "--sample", "-1", url=node.url).code == 2
