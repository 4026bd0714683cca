"""Processes of a node come from its fork server, and do without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from node_helpers import NodeProcess, children, eventually, words_of

from penstock import Client, TopicConfig, connect
from penstock.ipc.liveness import state
from penstock.testing.processes import processes_on

FORK_SERVER = b"penstock.server.process.fork_server"


@pytest.fixture
def node(tmp_path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", "--listen", "tcp://127.0.0.1:0").start() as node:
        yield node


@pytest.fixture
def client(node) -> Iterator[Client]:
    with connect(f"shm://{node.folder}", timeout=20) as client:
        yield client


def fork_server(node: NodeProcess) -> int:
    [pid] = [pid for pid in children(node.pid) if FORK_SERVER in words_of(pid)]
    return pid


def writer(client: Client) -> int:
    with client.admin() as admin:
        return eventually(
            lambda: next((one.pid for one in admin.describe_node().writers if one.pid), 0),
            "a writer",
        )


@pytest.mark.local("it kills processes of the node")
def test_writers_are_replaced_with_a_fork_server_and_without(node, client):
    with client.admin() as admin:
        admin.create_topic("orders", TopicConfig(partitions=1, retention=3600))
    with client.producer() as producer:
        producer.send("orders", b"0").result(45)
        first = writer(client)
        os.kill(first, signal.SIGKILL)
        producer.send("orders", b"1").result(45)
        node.wait_log(rf"writer 0 \(pid {first}, generation 1\) died: killed by SIGKILL")
        second = writer(client)

        os.kill(fork_server(node), signal.SIGKILL)
        os.kill(second, signal.SIGKILL)
        producer.send("orders", b"2").result(45)
        node.wait_log("the fork server .* is gone, so helper processes start slower")
        third = writer(client)
    assert {words_of(pid)[2] for pid in children(node.pid)} == {
        b"penstock.server.writer.main",
        b"penstock.server.cleaner.main",
        b"penstock.server.gateway.main",
    }
    assert third in children(node.pid)
    with client.consumer("orders", start="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < 3:
            found += consumer.poll(45).values
        assert found == [b"0", b"1", b"2"]


@pytest.mark.local("it kills processes of the node")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_fork_server_ends_with_its_node(node, number):
    pid = fork_server(node)
    node.signal(number)
    node.wait()
    eventually(lambda: state(pid) in (None, "Z"), "it ends")
    eventually(lambda: not processes_on(str(node.folder)), "all end")
