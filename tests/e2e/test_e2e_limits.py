"""Bad input and every bound from outside: an error that names what was hit, and life goes on."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crash.node_under_test import NodeUnderTest, descriptors, environment
from mount_namespace import run_behind

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client, connect
from penstock.client.producer.delivery import Receipt
from penstock.client.producer.producer import Producer
from penstock.core.errors import (
    AttachRefusedError,
    BufferFullError,
    ConfigError,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    RecordTooLargeError,
    ResourceLimitError,
    TopicExistsError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.channel import connect as connect_socket
from penstock.testing import wait_until

WITHIN = 45.0
LANE = 256 << 10
FRAME = LANE // lo.FRAME_SHARE


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[NodeUnderTest]:
    """One that everything below must leave in good health."""
    with NodeUnderTest(
        writers_max=1, lane_capacity=LANE, lanes_max=3, clients_max=12, topics_max=40,
        partitions_max=100, hello_timeout=0.5,
    ) as node:  # fmt: skip
        with node.connect() as client:
            client.admin().create_topic("t")
        pid, writers = node.pid, node.writer_pids()
        yield node
        assert (node.pid, node.writer_pids()) == (pid, writers)
        assert node.stop() == 0
        node.check_gone()
        assert "Traceback" not in node.tail(100_000)


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        yield client


def sent_at_last(producer: Producer) -> Receipt | None:
    """Lanes of those before may have to be drained first."""
    try:
        return producer.send_and_wait("t", b"well", timeout=WITHIN)
    except ResourceLimitError:
        return None


@pytest.fixture(autouse=True)
def in_good_health(node: NodeUnderTest) -> Iterator[None]:
    """Whatever a test did, the next producer and consumer work as ever."""
    yield
    with node.connect() as client, client.producer() as producer:
        receipt = wait_until(lambda: sent_at_last(producer), WITHIN, "room for a lane")
        assert receipt is not None
        with client.consumer("t", start=receipt.offset or 0, follow=False) as consumer:
            assert [record.value for record in consumer] == [b"well"]


# --- records -------------------------------------------------------------------------------------
def test_a_record_that_fits_no_frame_is_refused_alone(client: Client) -> None:
    with client.producer() as producer:
        for size in (FRAME, LANE, 1 << 24):
            with pytest.raises(RecordTooLargeError, match=r"bound of [0-9]+ bytes"):
                producer.send("t", bytes(size))
            with pytest.raises(RecordTooLargeError, match=r"bound of [0-9]+ bytes"):
                producer.send("t", b"", key=bytes(size))
            with pytest.raises(RecordTooLargeError):
                producer.send("t", b"", headers={"h": bytes(size)})
            with pytest.raises(RecordTooLargeError):
                producer.send_batch("t", [b"fits", bytes(size)])
        assert producer.send_and_wait("t", b"fits", timeout=WITHIN).offset is not None
        assert producer.metrics()["failed"] == 0


def test_the_largest_record_that_is_not_refused_arrives(client: Client) -> None:
    with client.producer() as producer:
        size = FRAME
        while True:
            try:
                delivery = producer.send("t", bytes(size))
                break
            except RecordTooLargeError:
                size -= 1
        receipt = delivery.result(WITHIN)
    assert FRAME - size < 2048
    with client.consumer("t", start=receipt.offset or 0, follow=False) as consumer:
        assert [len(record.value or b"") for record in consumer] == [size]


@pytest.mark.setting("topic.record_bytes_max")
def test_a_topics_own_bound_on_records_holds(client: Client) -> None:
    client.admin().create_topic("small-records", TopicConfig(record_bytes_max=1000))
    with client.producer() as producer:
        with pytest.raises(RecordTooLargeError, match="1000 bytes"):
            producer.send("small-records", bytes(1001))
        producer.send_and_wait("small-records", bytes(500), timeout=WITHIN)


def test_what_is_not_bytes_is_a_type_error(client: Client) -> None:
    wrong: Any
    with client.producer() as producer:
        for wrong in ("text", 7, 1.5, ["list"]):
            with pytest.raises(TypeError):
                producer.send("t", wrong)
            with pytest.raises(TypeError):
                producer.send("t", b"", key=wrong)
        with pytest.raises(TypeError):
            producer.send("t", b"", headers={"h": 7})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="64 headers"):
            producer.send("t", b"", headers=[("h", b"")] * 65)


# --- names ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\0b", "ä", "a b", "x" * 250, "-" * 300, "a\n"]
)
def test_a_bad_topic_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(ConfigError, match="topic name"):
        client.admin().create_topic(name)
    assert name not in client.admin().list_topics()


def test_an_unknown_topic_is_named(client: Client) -> None:
    admin = client.admin()
    with client.producer() as producer, pytest.raises(UnknownTopicError, match="nowhere"):
        producer.send("nowhere", b"")
    with pytest.raises(UnknownTopicError, match="nowhere"):
        client.consumer("nowhere")
    with pytest.raises(UnknownTopicError, match="nowhere"):
        admin.describe_topic("nowhere")
    with pytest.raises(UnknownTopicError, match="nowhere"):
        admin.delete_topic("nowhere")
    with pytest.raises(UnknownTopicError, match="partitions 0 to 0"):
        client.consumer().assign([("t", 1)])
    with client.producer() as producer, pytest.raises(UnknownTopicError, match="0 to 0"):
        producer.send("t", b"", partition=1)
    with pytest.raises(TopicExistsError, match="'t'"):
        admin.create_topic("t")


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", ConfigError),
        ("nonsense", ConfigError),
        ("http://localhost", ConfigError),
        ("tcp://localhost:port", ConfigError),
        ("tcp://localhost:1", NotConnectedError),
        ("shm://no/such/place", ConfigError),
        ("shm://bad name", ConfigError),
        ("shm:///no/such/folder", NotConnectedError),
        ("shm:///etc/passwd", NotConnectedError),
        ("shm://nobody-is-called-so", NotConnectedError),
        ("shm:///" + "long/" * 40, PenstockError),
    ],
)
def test_a_wrong_url_is_refused_with_what_was_tried(url: str, error: type[PenstockError]) -> None:
    with pytest.raises(error) as caught:
        connect(url, timeout=0.2)
    assert str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"linger": -1.0},
        {"batch_bytes": 1},
        {"compression": "zip"},
        {"acks": 2},
        {"acks": 0, "durability": "fsynced"},
        {"durability": "committed"},
        {"on_full": "explode"},
        {"delivery_timeout": 0.0},
        {"buffer_bytes_max": 1},
    ],
)
def test_options_of_a_producer_are_checked_at_once(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        client.producer(**options)


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 0},
        {"partitions": 1 << 20},
        {"segment_bytes": 1},
        {"segment_age": -1.0},
        {"durability": "maybe"},
        {"flush_interval": 0.0},
        {"timestamp_type": "guess"},
        {"record_bytes_max": 0},
    ],
)
def test_settings_of_a_topic_are_checked(client: Client, settings: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ResourceLimitError)):
        client.admin().create_topic("never", TopicConfig(**settings))
    assert "never" not in client.admin().list_topics()


# --- bounds of the node --------------------------------------------------------------------------
@pytest.mark.local("lanes of remote producers are the gateway's, which waits for one")
@pytest.mark.setting("node.lanes_max")
def test_lanes_max_is_named_and_room_is_given_back(node: NodeUnderTest, client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            producer = stack.enter_context(client.producer())
            producer.send_and_wait("t", b"", timeout=WITHIN)
        late = client.producer(delivery_timeout=3.0)
        with pytest.raises(PenstockError, match="lanes_max"):
            late.send_and_wait("t", b"", timeout=WITHIN)
        producer.close()
        wait_until(
            lambda: sum("-lane-" in name for name in node.shared_memory()) < 3, WITHIN, "room"
        )
        assert late.send_and_wait("t", b"", timeout=WITHIN).offset is not None
        late.close()


@pytest.mark.setting("node.clients_max")
def test_clients_max_is_named_and_room_is_given_back(client: Client) -> None:
    made: list[Any] = []
    with pytest.raises(ResourceLimitError, match="clients_max"):  # noqa: PT012 - at some of them
        for _ in range(20):
            made.append(client.consumer())
    assert len(made) > 5
    for consumer in made:
        consumer.close()
    client.consumer().close()


@pytest.mark.setting("node.topics_max", "node.partitions_max")
def test_topics_max_and_partitions_max_are_named(client: Client) -> None:
    admin = client.admin()
    with pytest.raises(ConfigError, match=r"1\.\.100"):
        admin.create_topic("wide", TopicConfig(partitions=101))
    with pytest.raises(ResourceLimitError, match="partitions_max"):
        admin.create_topic("wide", TopicConfig(partitions=100))
    made = []
    with pytest.raises(ResourceLimitError, match="topics_max"):  # noqa: PT012 - at some of them
        for number in range(50):
            admin.create_topic(f"many-{number}")
            made.append(f"many-{number}")
    for name in made:
        admin.delete_topic(name)
    assert not set(admin.list_topics()) & set(made)


@pytest.mark.setting("producer.buffer_bytes_max", "producer.block_timeout")
def test_buffer_bytes_max_is_named_and_waited_for(node: NodeUnderTest, client: Client) -> None:
    (writer,) = node.writer_pids()
    options: dict[str, Any] = {"batch_bytes": 1 << 10, "buffer_bytes_max": 32 << 10}
    os.kill(writer, 19)
    try:
        with client.producer(on_full="block", block_timeout=0.3, **options) as producer:
            message = r"buffer_bytes_max=32768.* for 0\.3 s"
            with pytest.raises(BufferFullError, match=message):  # noqa: PT012 - at some of them
                for _ in range(1000):
                    producer.send("t", bytes(500))
            os.kill(writer, 18)
            producer.flush(WITHIN)
    finally:
        os.kill(writer, 18)


# --- shared memory and descriptors ---------------------------------------------------------------
@pytest.mark.local("shared memory of the node's host")
def test_no_room_for_a_lane_is_told_and_room_that_comes_is_used(
    node: NodeUnderTest, client: Client
) -> None:
    """By the node's limit on file sizes, which holds in /dev/shm as well."""
    before = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        with client.producer(delivery_timeout=3.0) as producer:
            with pytest.raises(PenstockError, match="RLIMIT_FSIZE"):
                producer.send_and_wait("t", b"", timeout=WITHIN)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, before)
            assert producer.send_and_wait("t", b"", timeout=WITHIN).offset is not None
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, before)


SCRIPT = r"""
import json, os, sys
from pathlib import Path
from penstock.core.errors import PenstockError
from crash.node_under_test import NodeUnderTest
from penstock.testing import wait_until
with NodeUnderTest(Path(sys.argv[1]), lane_capacity=4 << 20) as node, node.connect() as client:
    client.admin().create_topic("t")
    first = client.producer()
    first.send_and_wait("t", b"0", timeout=45)
    second = client.producer(delivery_timeout=3.0)
    try:
        second.send_and_wait("t", b"1", timeout=45)
        print("no error")
    except PenstockError as error:
        print(error)
    first.send_and_wait("t", b"2", timeout=45)
    first.close()
    wait_until(lambda: not [n for n in node.shared_memory() if "-lane-" in n], 45.0, "room")
    second.send_and_wait("t", b"3", timeout=45)
    second.close()
    with client.consumer("t", follow=False) as consumer:
        print([record.value.decode() for record in consumer])
    client.close()
    assert node.stop() == 0
print(sorted(os.listdir("/dev/shm")))
"""


@pytest.mark.local("shared memory of the node's host")
def test_a_dev_shm_that_is_really_full_is_a_clear_error(tmp_path: Path) -> None:
    """A /dev/shm with room for the tables and one lane, in a mount namespace of its own."""
    room = lo.state_table_bytes() + lo.client_table_bytes() + 3 * lo.lane_bytes(4 << 20) // 2
    prepare = f"mount -t tmpfs -o size={room} tmpfs /dev/shm"
    said, found, left = run_behind(prepare, SCRIPT, tmp_path, timeout=60).splitlines()
    assert "/dev/shm has no room" in said
    assert json.loads(found.replace("'", '"')) == ["0", "2", "3"]
    assert left == "[]"


def test_a_node_without_descriptors_refuses_and_recovers(
    node: NodeUnderTest, client: Client
) -> None:
    with client.producer(linger=0.0) as producer, client.consumer("t", start="latest") as consumer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        assert consumer.poll(timeout=WITHIN)
        before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{node.pid}/fd")}
        lowest = min(set(range(1000)) - taken)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        try:
            with pytest.raises((NotConnectedError, ResourceLimitError, PenstockTimeout)):
                connect(node.url, timeout=0.5)
            # Who is attached goes on: the data path needs nothing of the node.
            producer.send_and_wait("t", b"1", timeout=WITHIN)
            assert [record.value for record in consumer.poll(timeout=WITHIN)] == [b"1"]
        finally:
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
        connect(node.url, timeout=WITHIN).close()


@pytest.mark.local("the call that meets the limit is another one over tcp")
def test_a_client_without_descriptors_is_told_its_limit(node: NodeUnderTest) -> None:
    script = (
        "import resource, os\n"
        "from crash.node_under_test import descriptors\n"
        "from penstock.client.client import connect\n"
        "from penstock.core.errors import ResourceLimitError\n"
        f"client = connect({node.url!r})\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "before = descriptors(os.getpid())\n"
        "taken = len(before)\n"
        "for room in range(0, 9):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (taken - 1 + room, hard))\n"
        "    for make in (client.producer, client.consumer, client.admin):\n"
        "        try:\n"
        "            make().close()\n"
        "        except ResourceLimitError as error:\n"
        "            assert 'RLIMIT_NOFILE' in str(error), error\n"
        "            print('told')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "assert descriptors(os.getpid()) == before, descriptors(os.getpid())\n"
        "client.producer().send_and_wait('t', b'0', timeout=45)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("told") >= 6


# --- the attach socket ---------------------------------------------------------------------------
def raw(node: NodeUnderTest) -> socket.socket:
    return connect_socket(node.data / "attach.sock", WITHIN)


def is_hung_up(sock: socket.socket) -> bool:
    sock.settimeout(WITHIN)
    while True:
        try:
            if not sock.recv(1 << 16):
                return True
        except ConnectionResetError:
            return True


def test_garbage_on_the_attach_socket_ends_that_connection_alone(node: NodeUnderTest) -> None:
    rng = random.Random(11)
    before = len(descriptors(node.pid))
    for number in range(150):
        with raw(node) as sock:
            if number % 5 == 4:
                said = rng.randbytes(60_000)
            elif number % 5 == 3:
                said = b"\xc1" * rng.randint(1, 100)
            elif number % 5 == 2:
                said = b"\xdf\xff\xff\xff\xff" + rng.randbytes(10)  # a map of four thousand million
            else:
                said = rng.randbytes(rng.randint(1, 200))
            sock.send(said)
            assert is_hung_up(sock)
    wait_until(lambda: len(descriptors(node.pid)) <= before, WITHIN, "descriptors are closed")


def test_who_says_nothing_is_dropped_in_time_and_keeps_nobody_out(node: NodeUnderTest) -> None:
    silent = [raw(node) for _ in range(60)]
    connect(node.url, timeout=WITHIN).close()
    for sock in silent:
        assert is_hung_up(sock)
        sock.close()


def test_descriptors_that_nobody_asked_for_are_closed(node: NodeUnderTest) -> None:
    before = len(descriptors(node.pid))
    for _ in range(20):
        with raw(node) as sock:
            reader, writer = os.pipe()
            rights = struct.pack("12i", *[reader, writer] * 6)
            sock.sendmsg([b"\x81"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            assert is_hung_up(sock)
            os.close(reader)
            os.close(writer)
    wait_until(lambda: len(descriptors(node.pid)) <= before, WITHIN, "descriptors are closed")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 99}, UnsupportedVersionError),
        ({"kind": 9}, ConfigError),
        ({"start_time": 1}, AttachRefusedError),
        ({"resume": 1}, AttachRefusedError),
        ({"resume": (1 << 63) - 1}, AttachRefusedError),
    ],
)
def test_a_hello_that_cannot_be_is_refused_with_a_reason(
    node: NodeUnderTest, changes: dict[str, int], error: type[PenstockError]
) -> None:
    start_time = liveness.start_time(os.getpid())
    assert start_time is not None
    fields: dict[str, Any] = {
        "version": ms.PROTOCOL_VERSION, "kind": lo.KIND_PRODUCER, "start_time": start_time,
        "client_id": "liar", "resume": None, **changes,
    }  # fmt: skip
    channel: Channel = Channel(raw(node), inbound=ms.NodeMessage)
    channel.send(ms.Hello(**fields))
    received = channel.recv(WITHIN)
    assert received is not None
    reply, _ = received
    assert isinstance(reply, ms.Refused)
    assert reply.error == error.__name__
    assert channel.recv(WITHIN) is None
    channel.close()


def test_requests_out_of_turn_end_the_connection(node: NodeUnderTest) -> None:
    for message in (ms.FindTopic("t"), ms.OpenLane(0), ms.DescribeNode()):
        channel: Channel = Channel(raw(node), inbound=ms.NodeMessage)
        channel.send(message)
        assert channel.recv(WITHIN) is None
        channel.close()


def test_many_clients_at_once_are_served_or_refused(node: NodeUnderTest) -> None:
    """More than there is room for, all at the same moment: each gets an answer."""
    outcomes: list[str] = []

    def attach() -> None:
        try:
            connect(node.url, timeout=WITHIN).close()
            outcomes.append("served")
        except ResourceLimitError:
            outcomes.append("refused")

    threads = [threading.Thread(target=attach) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(45)
    assert len(outcomes) == 40
    assert "served" in outcomes
