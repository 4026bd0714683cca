"""Rule 7 with real forks: a child attaches by itself or is told, and its parent notices nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from crash.node_under_test import NodeUnderTest, environment, is_running

from penstock.client.client import Client
from penstock.core.errors import ClosedError, ForkedClientError, PenstockError
from penstock.testing import wait_until

CHILD_TIMEOUT = 45.0


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(writers_max=2) as node:
        yield node


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).partition("[")[0]
    client.admin().create_topic(name)
    return name


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in a forked child, within a bound."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            try:
                answer = (True, work())
            except PenstockError as error:
                answer = (False, error)
            os.write(writer, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], CHILD_TIMEOUT)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        data = os.read(reader, 1 << 16)
        os.waitpid(pid, 0)
        assert data, "the child hung or died"
        good, answer = pickle.loads(data)
        if not good:
            raise answer
        return answer
    finally:
        os.close(reader)


def values(client: Client, topic: str) -> list[bytes | None]:
    with client.consumer(topic, follow=False) as consumer:
        return [record.value for record in consumer]


@pytest.mark.rule(7)
def test_rule_7_a_forked_child_attaches_anew_and_its_parent_goes_on(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        before = producer.send_and_wait(topic, b"parent 0", timeout=45)
        parent_id = producer.producer_id

        def work() -> tuple[int, int | None]:
            receipt = producer.send_and_wait(topic, b"child", timeout=45)
            producer.close()
            return producer.producer_id or -1, receipt.offset

        _, offset = in_child(work)
        assert (before.offset, offset) == (0, 1)
        assert producer.send_and_wait(topic, b"parent 1", timeout=45).offset == 2
        assert producer.producer_id == parent_id
    assert values(client, topic) == [b"parent 0", b"child", b"parent 1"]


@pytest.mark.rule(7)
def test_rule_7_a_child_sends_under_a_producer_id_of_its_own(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_and_wait(topic, b"parent", timeout=45)

        def work() -> int:
            producer.send_and_wait(topic, b"child", timeout=45)
            return producer.producer_id

        assert in_child(work) not in (0, producer.producer_id)


@pytest.mark.rule(7)
def test_rule_7_what_was_sent_before_the_fork_is_the_parents(client: Client, topic: str) -> None:
    with client.producer(linger=60.0) as producer:
        delivery = producer.send(topic, b"lingers in the parent")
        with pytest.raises(ForkedClientError, match="fork"):
            in_child(lambda: delivery.result(5.0))

        def leave() -> None:
            producer.flush(10.0)  # there is nothing of the child's to flush
            producer.close()

        in_child(leave)
        producer.flush(10.0)
        assert delivery.result(45).offset == 0
    assert values(client, topic) == [b"lingers in the parent"]


@pytest.mark.rule(7)
def test_rule_7_a_consumer_is_refused_in_the_child_and_goes_on_in_the_parent(
    client: Client, topic: str
) -> None:
    with client.producer() as producer, client.consumer(topic) as consumer:
        producer.send_and_wait(topic, b"0", timeout=45)
        assert [record.value for record in consumer.poll(timeout=45)] == [b"0"]
        with pytest.raises(ForkedClientError, match="make a new one in the child"):
            in_child(lambda: consumer.poll(timeout=1.0))
        in_child(consumer.close)
        producer.send_and_wait(topic, b"1", timeout=45)
        assert [record.value for record in consumer.poll(timeout=45)] == [b"1"]


@pytest.mark.rule(7)
def test_rule_7_a_child_may_make_its_own_consumer_from_the_inherited_client(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_and_wait(topic, b"0", timeout=45)

        def work() -> list[bytes | None]:
            with client.consumer(topic) as consumer:
                return [record.value for record in consumer.poll(timeout=45)]

        assert in_child(work) == [b"0"]


@pytest.mark.rule(7)
def test_rule_7_an_admin_is_refused_in_the_child(client: Client) -> None:
    admin = client.admin()
    with pytest.raises((ForkedClientError, ClosedError)):
        in_child(admin.list_topics)
    admin.list_topics()


def own_descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


@pytest.mark.rule(7)
def test_rule_7_the_child_closes_its_copies_and_none_of_the_parents(
    client: Client, topic: str
) -> None:
    plain = own_descriptors()
    with client.producer() as producer, client.consumer(topic) as consumer:
        producer.send_and_wait(topic, b"0", timeout=45)
        consumer.poll(timeout=45)
        held = own_descriptors()
        inherited = in_child(own_descriptors)
        sockets = {what for what in held.values() if what.startswith("socket")}
        sockets -= {what for what in plain.values() if what.startswith("socket")}
        assert sockets
        assert not sockets & set(inherited.values())
        assert sockets <= set(own_descriptors().values())
        producer.send_and_wait(topic, b"1", timeout=45)


@pytest.mark.rule(7)
def test_rule_7_a_child_does_not_keep_its_dead_parent_attached(node: NodeUnderTest) -> None:
    """Even one that was forked behind Python's back and holds the socket: the pidfd decides."""
    script = (
        "import ctypes, os, sys, time\n"
        "from penstock.client.client import connect\n"
        f"client = connect({node.url!r})\n"
        "producer = client.producer(client_id='dies')\n"
        "consumer = client.consumer()\n"
        "pid = ctypes.PyDLL(None).fork()\n"
        "if not pid:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "print(pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with node.connect() as client:
        admin = client.admin()
        before = admin.describe_node().clients
        parent = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()
        )
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert admin.describe_node().clients == before + 2
            parent.kill()
            parent.wait(45)
            parent.stdout.close()
            wait_until(
                lambda: admin.describe_node().clients == before,
                CHILD_TIMEOUT,  # a child keeps its parent's end of a connection, which falls silent
                lambda: f"the dead parent leaves the node: {admin.describe_node()}",
            )
            assert is_running(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.rule(7)
def test_rule_7_forks_beside_sending_threads_neither_hang_nor_lose(
    client: Client, topic: str
) -> None:
    """The fork meets the producer's lock in any state: its child must not inherit that."""
    stop = threading.Event()
    sent = [0, 0]
    with client.producer() as producer:

        def send_on(number: int) -> None:
            while not stop.is_set():
                producer.send(topic, b"thread %d %d" % (number, sent[number]))
                sent[number] += 1
                if sent[number] % 100 == 0:
                    time.sleep(0.001)

        threads = [threading.Thread(target=send_on, args=[number]) for number in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                value = b"child %d" % number
                in_child(partial(producer.send_and_wait, topic, value, timeout=10.0))
        finally:
            stop.set()
            for thread in threads:
                thread.join(45)
        producer.flush(20.0)
    found = Counter(values(client, topic))
    expected = [b"thread %d %d" % (t, n) for t in (0, 1) for n in range(sent[t])]
    expected += [b"child %d" % number for number in range(10)]
    assert found == Counter(expected)


_inherited: Any = None


def send_fifty(topic: str, worker: int) -> None:
    deliveries = [_inherited.send(topic, b"%d %d" % (worker, n)) for n in range(50)]
    for delivery in deliveries:
        delivery.result(45)
    _inherited.close()


@pytest.mark.rule(7)
def test_rule_7_multiprocessing_by_fork_shares_no_producer(client: Client, topic: str) -> None:
    global _inherited
    context = multiprocessing.get_context("fork")
    with client.producer() as producer:
        producer.send_and_wait(topic, b"parent", timeout=45)
        _inherited = producer
        workers = [context.Process(target=send_fifty, args=(topic, n)) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(CHILD_TIMEOUT)
            assert worker.exitcode == 0
        _inherited = None
        producer.send_and_wait(topic, b"parent", timeout=45)
    found = values(client, topic)
    assert Counter(found) == Counter(
        [b"parent"] * 2 + [b"%d %d" % (worker, n) for worker in range(3) for n in range(50)]
    )
    for number in range(3):
        mine = [value for value in found if value and value.startswith(b"%d " % number)]
        assert mine == [b"%d %d" % (number, n) for n in range(50)]


@pytest.mark.rule(7)
def test_rule_7_a_child_that_leaves_by_exit_disturbs_nobody(client: Client, topic: str) -> None:
    """An ordinary interpreter exit runs destructors of everything inherited."""
    with client.producer() as producer:
        producer.send_and_wait(topic, b"0", timeout=45)
        delivery = producer.send(topic, b"1")
        pid = os.fork()
        if not pid:
            try:
                sys.exit(0)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=time.sleep, args=(0,))
        worker.start()
        worker.join(CHILD_TIMEOUT)
        assert worker.exitcode == 0
        assert delivery.result(45).offset == 1
        assert producer.send_and_wait(topic, b"2", timeout=45).offset == 2
