"""Nodes and writers that go and come back, clients that live on: exactly once, within bounds."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash import steps
from crash.node_under_test import NodeUnderTest, descriptors, environment, is_running
from crash.steps import StepPlan

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client, connect
from penstock.client.consumer.consumer import Consumer
from penstock.client.session import Session
from penstock.core.errors import (
    DeliveryTimeout,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
)
from penstock.ipc import layout as lo
from penstock.ipc.messages import TopicInfo
from penstock.ipc.shm import Region, open_existing
from penstock.ipc.waits import Waits
from penstock.testing import wait_until
from penstock.testing.embedded import EmbeddedNode

WITHIN = 45.0
SLACK = 10.0
"""Seconds by which a bound may be overrun on a machine that is busy."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(tmp_path, writers_max=1) as node:
        yield node


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        client.admin().create_topic("t", TopicConfig(partitions=2))
        yield client


def lanes(node: NodeUnderTest) -> list[str]:
    return [name for name in node.shared_memory() if "-lane-" in name]


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """So many values; each poll brings something in time."""
    found: list[bytes | None] = []
    while len(found) < count:
        batch = consumer.poll(timeout=WITHIN)
        assert batch, f"{len(found)} of {count} came"
        found += [record.value for record in batch]
    return found


def values(client: Client, topic: str = "t") -> list[bytes | None]:
    with client.consumer(topic, follow=False) as consumer:
        return [record.value for record in consumer]


def took(work: Callable[[], Any]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


# --- the node goes away and comes back -----------------------------------------------------------
@pytest.mark.rule(10)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_rule_10_producer_and_consumer_outlive_their_node(
    node: NodeUnderTest, client: Client, end: str
) -> None:
    """Three nodes, one producer and one consumer: every record once, in order."""
    with client.producer(linger=0.0) as producer, client.consumer() as consumer:
        consumer.assign([("t", 0)])
        sent = []
        found: list[bytes | None] = []
        for round_ in range(3):
            sent += [b"%d before %d" % (round_, n) for n in range(50)]
            deliveries = [producer.send("t", value, partition=0) for value in sent[-50:]]
            getattr(node, end)()
            during = [b"%d during %d" % (round_, n) for n in range(50)]
            deliveries += [producer.send("t", value, partition=0) for value in during]
            sent += during
            node.start()
            offsets = [delivery.result(WITHIN).offset for delivery in deliveries]
            assert offsets == list(range(len(sent) - 100, len(sent)))
            found += read(consumer, len(sent) - len(found))
            assert len(lanes(node)) == 1, "it goes on in the lane that it had (rule 5)"
        assert found == sent
    wait_until(lambda: not lanes(node), WITHIN, "its lane is gone with it")


@pytest.mark.rule(10)
def test_rule_10_readers_and_writers_need_no_node_to_go_on(
    node: NodeUnderTest, client: Client
) -> None:
    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        node.signal(signal.SIGSTOP)
        try:
            for number in range(1, 20):
                producer.send_and_wait("t", b"%d" % number, timeout=WITHIN)
            assert sorted(read(consumer, 20), key=str) == sorted(
                (b"%d" % number for number in range(20)), key=str
            )
        finally:
            node.signal(signal.SIGCONT)


@pytest.mark.rule(10)
def test_rule_10_a_sleeping_consumer_is_woken_after_the_node_was_replaced(
    node: NodeUnderTest, client: Client
) -> None:
    """By its bell and not by the bound of its wait, which is longer than this takes."""
    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        read(consumer, 1)
        node.kill()
        node.start()
        producer.send_and_wait("t", b"1", timeout=WITHIN)
        read(consumer, 1)
        wait_until(
            lambda: consumer.poll(timeout=0.01) or consumer.metrics()["reconnects"],
            WITHIN,
            "the consumer finds the new node",
        )
        waits = []
        for number in range(5):
            box: list[float] = []

            def wait(box: list[float] = box) -> None:
                read(consumer, 1)
                box.append(time.monotonic())

            reader = threading.Thread(target=wait)
            reader.start()
            time.sleep(1.0)  # until its waits have grown to half a second
            sent_at = time.monotonic()
            producer.send("t", b"wake %d" % number)
            reader.join(WITHIN)
            waits.append(box[0] - sent_at)
            if waits[-1] < 0.05:
                break
        assert min(waits) < 0.05, waits


def test_a_consumer_may_be_assigned_although_its_node_was_replaced(
    node: NodeUnderTest, client: Client
) -> None:
    with client.producer() as producer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
    with client.consumer() as consumer:
        node.kill()
        node.start()
        consumer.assign([("t", 0), ("t", 1)])
        assert read(consumer, 1) == [b"0"]


def test_a_late_answer_is_not_taken_for_the_next_one(node: NodeUnderTest, client: Client) -> None:
    admin = client.admin()
    topic_id = admin.describe_topic("t").topic_id
    hasty = client.admin(timeout=1.0)
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)
    try:
        with pytest.raises(PenstockTimeout):
            hasty.create_topic("late")
    finally:
        os.kill(writer, signal.SIGCONT)
    wait_until(lambda: "late" in admin.list_topics(), WITHIN, "the topic is made all the same")
    assert hasty.describe_topic("t").topic_id == topic_id
    assert hasty.list_topics() == ["late", "t"]


def test_a_client_waits_for_a_node_that_is_starting(tmp_path: Path) -> None:
    node = NodeUnderTest(tmp_path)
    node.data.mkdir()
    try:
        reader = node.launch()
        os.close(reader)
        with connect(node.url, timeout=WITHIN) as client:
            client.admin().create_topic("t")
            with client.producer() as producer:
                assert producer.send_and_wait("t", b"0", timeout=WITHIN).offset == 0
    finally:
        node.clear()


# --- the node is gone for good -------------------------------------------------------------------
@pytest.mark.setting("consumer.node_timeout")
def test_without_a_node_every_call_fails_clearly_within_its_bound(
    node: NodeUnderTest, client: Client
) -> None:
    url = node.url
    producer = client.producer(linger=0.0, delivery_timeout=2.0, timeout=1.0)
    consumer = client.consumer("t", node_timeout=1.0)
    admin = client.admin(timeout=1.0)
    producer.send_and_wait("t", b"0", timeout=WITHIN)
    read(consumer, 1)
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)  # so that nobody drains the lane either
    node.kill()
    os.kill(writer, signal.SIGKILL)

    def fails(kind: type[PenstockError], match: str, work: Callable[[], Any], bound: float) -> None:
        def call() -> None:
            with pytest.raises(kind, match=match):
                work()

        assert took(call) < bound + SLACK

    socket = str(node.data / "attach.sock")
    delivery = producer.send("t", b"1")
    fails(DeliveryTimeout, socket, lambda: delivery.result(WITHIN), 2.0)
    fails(NotConnectedError, socket, lambda: producer.send("unknown yet", b"2"), 1.0)
    fails(NotConnectedError, socket, admin.list_topics, 1.0)
    fails(NotConnectedError, socket, lambda: connect(url, timeout=0.5), 0.5)
    fails(NotConnectedError, socket, lambda: client.consumer("t", timeout=0.5), 0.5)

    def poll_on() -> None:
        while True:
            consumer.poll(timeout=0.2)

    fails(NotConnectedError, socket, poll_on, 1.0)
    last = producer.send("t", b"3")
    fails(PenstockTimeout, socket, lambda: producer.close(timeout=0.5), 0.5)
    assert isinstance(last.exception(0.0), PenstockError)
    assert took(consumer.close) < SLACK


def test_a_producer_closed_without_a_node_leaves_no_lane_to_the_next(
    node: NodeUnderTest, client: Client
) -> None:
    producer = client.producer(linger=0.0)
    producer.send_and_wait("t", b"0", timeout=WITHIN)
    node.kill()
    producer.close()
    node.start()
    wait_until(lambda: not lanes(node), WITHIN, lambda: f"lanes are left: {lanes(node)}")
    assert values(client) == [b"0"]


@pytest.fixture
def moved(tmp_path: Path, node: NodeUnderTest) -> Iterator[Callable[[], None]]:
    """Puts a new data folder with a node in the place of the old one, whose node is dead."""
    uuid = node.uuid

    def move() -> None:
        (writer,) = node.writer_pids()
        node.kill()
        with contextlib.suppress(ProcessLookupError):  # it ends with its node
            os.kill(writer, signal.SIGKILL)
        wait_until(lambda: not is_running(writer), WITHIN, "the writer is gone")
        shutil.move(node.data, tmp_path / "elsewhere")
        node.start()
        assert node.uuid != uuid

    yield move
    for name in os.listdir("/dev/shm"):
        if uuid in name:
            os.unlink(f"/dev/shm/{name}")


def test_a_consumer_is_told_of_another_data_folder_at_its_address(
    client: Client, moved: Callable[[], None]
) -> None:
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
    with client.consumer("t") as consumer:
        read(consumer, 1)
        moved()
        with pytest.raises(NotConnectedError, match="another data folder"):
            read(consumer, 1)


def test_a_producer_is_told_of_another_data_folder_at_its_address(
    node: NodeUnderTest, client: Client, moved: Callable[[], None]
) -> None:
    producer = client.producer(linger=0.0)
    producer.send_and_wait("t", b"0", timeout=WITHIN)
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)
    delivery = producer.send("t", b"1")
    moved()
    try:
        with pytest.raises(NotConnectedError, match="another data folder"):
            delivery.result(WITHIN)
        with node.connect() as other:
            assert other.admin().list_topics() == []
    finally:
        producer.close(timeout=1.0)  # the failure was looked at


def test_a_second_node_on_the_folder_is_refused_and_clients_notice_nothing(
    node: NodeUnderTest, client: Client
) -> None:
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        second = subprocess.run(
            [sys.executable, "-m", "penstock.server", "--data", str(node.data),
             "--lock-timeout", "0.3"],
            env=environment(), capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert str(node.data) in second.stderr
        assert str(node.pid) in second.stderr, second.stderr
        assert "Traceback" not in second.stderr
        producer.send_and_wait("t", b"1", timeout=WITHIN)
        assert producer.metrics()["reconnects"] == 0
    assert len(values(client)) == 2


# --- writers -------------------------------------------------------------------------------------
@pytest.mark.rule(8)
def test_rule_8_a_stopped_writer_is_replaced_only_when_it_is_dead(tmp_path: Path) -> None:
    with (
        NodeUnderTest(tmp_path, writers_max=1, writer_stall_timeout=1.0) as node,
        node.connect() as client,
    ):
        client.admin().create_topic("t", TopicConfig(partitions=2))
        with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
            producer.send_and_wait("t", b"0", timeout=WITHIN)
            (writer,) = node.writer_pids()
            os.kill(writer, signal.SIGSTOP)
            delivery = producer.send("t", b"1")
            while not delivery.done():
                others = [pid for pid in node.writer_pids() if pid != writer]
                assert not (others and is_running(writer)), "two writers live at once"
                time.sleep(0.002)
            assert not is_running(writer)
            assert sorted(map(str, read(consumer, 2))) == ["b'0'", "b'1'"]


@pytest.mark.rule(2)
def test_rule_2_what_was_acknowledged_and_is_drained_again_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = StepPlan(tmp_path / "steps")
    plan.write(["acks published"] * 5)
    monkeypatch.setenv(steps.PLAN_VARIABLE, str(tmp_path / "steps"))
    command = [sys.executable, steps.__file__]
    with NodeUnderTest(
        tmp_path, writers_max=1, writer_command=command, restart_backoff_max=0.02
    ) as node, node.connect() as client:  # fmt: skip
        client.admin().create_topic("t")
        with client.producer(linger=0.0) as producer:
            for number in range(20):
                receipt = producer.send_and_wait("t", b"%d" % number, timeout=WITHIN)
                assert receipt.offset == number
        assert len(plan.hit()) == 5
        (described,) = client.admin().describe_topic("t").partitions
        assert described.counters["duplicates"] == 5
        assert values(client) == [b"%d" % number for number in range(20)]


@pytest.mark.rule(1)
def test_rule_1_what_is_acknowledged_can_be_read_at_that_moment(
    node: NodeUnderTest, client: Client
) -> None:
    with client.producer(linger=0.0) as producer, client.consumer() as consumer:
        consumer.assign([("t", 0)])
        for number in range(300):
            receipt = producer.send_and_wait("t", b"%d" % number, partition=0, timeout=WITHIN)
            batch = consumer.poll(timeout=0.0)
            assert [(record.offset, record.value) for record in batch] == [
                (receipt.offset, b"%d" % number)
            ]


@pytest.mark.rule(5)
def test_rule_5_what_dead_producers_left_is_there_when_clients_are_admitted(
    node: NodeUnderTest, client: Client
) -> None:
    """acks=0: the ring took it, then everybody died."""
    script = (
        "import os, signal\n"
        "from penstock.client.client import connect\n"
        f"producer = connect({node.url!r}).producer(linger=0.0, acks=0)\n"
        "producer.send_and_wait('t', b'0', partition=0)\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "for number in range(1, 30):\n"
        "    producer.send_and_wait('t', b'%d' % number, partition=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment(),
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)
    child.communicate(b"go\n", timeout=WITHIN)
    assert child.returncode == -signal.SIGKILL
    node.kill()
    os.kill(writer, signal.SIGKILL)
    assert len(lanes(node)) == 1
    node.start()
    with node.connect() as again, again.consumer() as consumer:
        consumer.assign([("t", 0)])
        assert consumer.end_offsets() == {("t", 0): 30}
        assert read(consumer, 30) == [b"%d" % number for number in range(30)]
    wait_until(lambda: not lanes(node), WITHIN, "the lane is gone")


@pytest.mark.rule(5)
def test_rule_5_a_lane_of_an_unreadable_version_keeps_the_node_from_starting(
    node: NodeUnderTest, client: Client
) -> None:
    producer = client.producer(linger=0.0, acks=0)
    producer.send_and_wait("t", b"0", timeout=WITHIN)
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)
    producer.send_and_wait("t", b"1", timeout=WITHIN)
    node.kill()
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: not is_running(writer), WITHIN, "the writer is gone")
    (name,) = lanes(node)
    with Region.of_fd(open_existing(name, writable=True)) as region:
        version = region.q[lo.Q_LANE_VERSION]
        region.q[lo.Q_LANE_VERSION] = version + 41
        with pytest.raises(AssertionError, match="layout version 42"):
            node.start()
        assert lanes(node) == [name], "nothing of it is touched"
        region.q[lo.Q_LANE_VERSION] = version
    node.start()
    assert len(values(client)) == 2
    producer.close()


@pytest.mark.rule(7)
def test_rule_7_a_killed_producer_frees_its_slot_its_lane_and_its_descriptors(
    node: NodeUnderTest, client: Client
) -> None:
    admin = client.admin()
    before = len(descriptors(node.pid))
    child = subprocess.Popen(
        [sys.executable, "-c",
         "import time\n"
         "from penstock.client.client import connect\n"
         f"client = connect({node.url!r})\n"
         "client.producer().send_and_wait('t', b'0')\n"
         "consumer = client.consumer('t')\n"
         "print('ready', flush=True)\n"
         "time.sleep(60)\n"],
        stdout=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    clients = admin.describe_node().clients
    child.kill()
    child.wait(WITHIN)
    child.stdout.close()
    wait_until(lambda: admin.describe_node().clients == clients - 2, WITHIN, "both have gone")
    wait_until(lambda: not lanes(node), WITHIN, "the lane is gone")
    wait_until(lambda: len(descriptors(node.pid)) == before, WITHIN, "descriptors are given back")


@pytest.mark.rule(13)
def test_rule_13_idle_processes_hardly_wake_up_and_wake_at_once_when_rung(
    node: NodeUnderTest, client: Client
) -> None:
    def wakes(pid: int) -> int:
        text = Path(f"/proc/{pid}/status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)

    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        read(consumer, 1)
        (writer,) = node.writer_pids()
        time.sleep(1.5)  # until the waits have grown to their longest
        before = {pid: wakes(pid) for pid in (writer, node.pid)}
        time.sleep(2.0)
        for pid, count in before.items():
            assert wakes(pid) - count < 40, f"{pid} woke {wakes(pid) - count} times in 2 s"
        answers = [
            took(lambda: producer.send_and_wait("t", b"1", timeout=WITHIN)) for _ in range(5)
        ]
        assert min(answers) < 0.05, answers


# --- threads -------------------------------------------------------------------------------------
def test_two_threads_send_through_one_producer_in_their_own_order(
    node: NodeUnderTest, client: Client
) -> None:
    each = 3000
    deliveries: dict[int, list[Any]] = {0: [], 1: []}
    with client.producer(batch_bytes=4 << 10, linger=0.001) as producer:

        def send_all(thread: int) -> None:
            for number in range(each):
                key = b"%d" % (number % 7)
                value = b"%d %d" % (thread, number)
                deliveries[thread].append(producer.send("t", value, key=key))
                if number % 500 == 499:
                    producer.flush(WITHIN)

        threads = [threading.Thread(target=send_all, args=[thread]) for thread in deliveries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
            assert not thread.is_alive()
        producer.flush(WITHIN)
        receipts = {
            (receipt.partition, receipt.offset): b"%d %d" % (thread, number)
            for thread, mine in deliveries.items()
            for number, delivery in enumerate(mine)
            for receipt in [delivery.result(0.0)]
        }
    with client.consumer("t", follow=False) as consumer:
        records = list(consumer)
    assert {(record.partition, record.offset): record.value for record in records} == receipts
    for number in deliveries:
        for key in range(7):
            mine = [
                int(record.value.split()[1])
                for record in records
                if record.value is not None
                and record.key == b"%d" % key
                and record.value.startswith(b"%d " % number)
            ]
            assert mine == list(range(key, each, 7))


def test_a_node_that_is_replaced_between_two_look_ups_leaves_no_page_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
):
    with EmbeddedNode() as node, node.connect(timeout=30.0) as client:
        for topic in ("a", "b"):
            client.admin().create_topic(topic)
            with client.producer() as producer:
                producer.send(topic, topic.encode())
        find, asked = Session.finding_topic, []

        def replaced(self: Session, topic: str, timeout: float) -> Waits[TopicInfo]:
            asked.append(topic)
            if len(asked) == 2:
                node.kill()
                node.start()
            return find(self, topic, timeout)

        with client.consumer(timeout=30.0) as consumer:
            monkeypatch.setattr(Session, "finding_topic", replaced)
            consumer.assign([("a", 0), ("b", 0)])
            assert {record.value for record in consumer.poll(timeout=45)} == {b"a", b"b"}
