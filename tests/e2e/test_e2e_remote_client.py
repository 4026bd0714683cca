"""What is particular to a client of another host: its way, forks, threads, and its end."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator

import psutil
import pytest
from cli_runner import call_cli

import penstock
from penstock import aio
from penstock.client.client import Client
from penstock.core import errors as er
from penstock.testing import Broker, wait_until

WITHIN = 45.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=True) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with penstock.connect(broker.tcp_url, transport="tcp") as made:
        yield made


def carriers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "penstock-carrier"}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- which way ---
@pytest.mark.setting("producer.acks")
def test_auto_takes_shared_memory_where_the_node_is_on_this_host(broker: Broker) -> None:
    before = carriers()
    with penstock.connect(broker.tcp_url) as client:
        assert client.transport == "shm"
        assert client.metrics() == {}
        wait_until(lambda: carriers() == before, WITHIN, "the connection to end")
        with client.producer(acks=0) as producer:
            topic = broker.create_topic()
            assert producer.send_and_wait(topic, b"x", timeout=WITHIN).durability == "ring"


@pytest.mark.setting("client.transport")
def test_tcp_is_taken_where_it_is_asked_for(broker: Broker, client: Client) -> None:
    assert client.transport == "tcp"
    assert client.metrics()["connected"] == 1
    with client.producer(acks=0) as producer:
        topic = broker.create_topic()
        receipt = producer.send_and_wait(topic, b"x", timeout=WITHIN)
        assert (receipt.durability, receipt.offset) == ("appended", 0)


@pytest.mark.setting("producer.durability")
def test_fsynced_is_told_when_it_is(broker: Broker, client: Client) -> None:
    topic = broker.create_topic()
    with client.producer(durability="fsynced") as producer:
        deliveries = [producer.send(topic, b"%d" % at) for at in range(100)]
        producer.flush(timeout=WITHIN)
        assert {one.result(WITHIN).durability for one in deliveries} == {"fsynced"}


def test_the_loop_reaches_it_too(broker: Broker) -> None:
    async def main() -> list[int | None]:
        topic = broker.create_topic()
        async with aio.connect(broker.tcp_url, transport="tcp") as client:
            assert client.transport == "tcp"
            async with client.producer() as producer, client.admin() as admin:
                sent = [producer.send(topic, b"%d" % at) for at in range(10)]
                receipts = await asyncio.gather(*sent)
                assert topic in await admin.list_topics()
                assert client.metrics()["batches_acknowledged"] >= 1
                return [receipt.offset for receipt in receipts]

    before = carriers()
    assert asyncio.run(main()) == list(range(10))
    assert carriers() == before


def test_one_connection_serves_all_of_a_client_and_two_clients_have_two(
    broker: Broker, client: Client
) -> None:
    before = carriers()
    topic = broker.create_topic(partitions=2)
    with penstock.connect(broker.tcp_url, transport="tcp") as second:
        producers = [made.producer() for made in (client, second) for _ in range(3)]
        for number, producer in enumerate(producers):
            producer.send_and_wait(topic, b"%d" % number, partition=number % 2, timeout=WITHIN)
        assert len(carriers() - before) == 1
        assert client.metrics()["connects"] == second.metrics()["connects"] == 1
        for producer in producers:
            producer.close()


# --- forks ---
def test_a_fork_leaves_the_parents_connection_alone(broker: Broker, client: Client) -> None:
    topic = broker.create_topic()
    producer = client.producer()
    producer.send_and_wait(topic, b"parent", timeout=WITHIN)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with client.producer() as own:
                own.send_and_wait(topic, b"child", timeout=WITHIN)
            client.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert producer.send_and_wait(topic, b"parent", timeout=WITHIN).offset == 2
    assert client.metrics()["reconnects"] == 0
    producer.close()


def test_a_producer_goes_on_in_a_child_by_a_connection_of_its_own(
    broker: Broker, client: Client
) -> None:
    """As it does on the node's host."""
    topic = broker.create_topic()
    producer = client.producer()
    producer.send_and_wait(topic, b"parent", timeout=WITHIN)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            producer.send_and_wait(topic, b"child", timeout=WITHIN)
            producer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert producer.send_and_wait(topic, b"parent", timeout=WITHIN).offset == 2
    producer.close()


def test_a_child_does_not_keep_its_parents_connection_alive(broker: Broker, client: Client) -> None:
    """Or the broker would notice late that the parent was killed."""
    port = int(broker.tcp_url.rpartition(":")[2])
    child = os.fork()
    if child == 0:
        found = psutil.Process().net_connections("tcp")
        os._exit(sum(one.raddr != () and one.raddr.port == port for one in found))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.metrics()["connected"] == 1


# --- the end ---
def test_connections_leave_nothing(broker: Broker) -> None:
    def once() -> None:
        url = broker.tcp_url
        with penstock.connect(url, transport="tcp") as client, client.producer() as producer:
            producer.send_and_wait(topic, b"x", timeout=WITHIN)

    topic = broker.create_topic()
    once()
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    for _ in range(40):
        once()
    gc.collect()
    assert descriptors() <= before + 2
    assert threading.active_count() == threads
    with broker.connect() as local, local.admin() as admin:
        wait_until(lambda: admin.describe_node().clients <= 2, WITHIN, "the node to forget them")


def test_tools_of_the_nodes_own_host_say_so(broker: Broker) -> None:
    from penstock.observe.place import find_node

    with pytest.raises(er.ConfigError, match="its own host"):
        find_node(broker.tcp_url)


def test_commands_tell_of_a_node_elsewhere_what_it_says_itself(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic(partitions=2)
    monkeypatch.setenv("PENSTOCK_TRANSPORT", "tcp")
    for near in (True, False):
        if not near:  # as on a host that was booted another time
            monkeypatch.setattr("penstock.client.admin.admin.boot_id", lambda: "another")
        for what in (["node", "describe"], ["topic", "describe", topic]):
            told = call_cli(*what, url=broker.tcp_url)
            assert told.code == 0, told.err
            ran = call_cli(*what, "--format", "json", url=broker.tcp_url)
            [found] = ran.objects
            if what[0] == "node":
                assert found["pid"] == broker.pid
                assert ("disk_free" in found) == near
            else:
                assert (found["disk_bytes"] is not None) == near
                assert (b"SEGMENTS" in told.out) == near
