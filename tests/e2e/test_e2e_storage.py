"""Devices that fill up and fail: what producers, consumers and other partitions see of it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import failing_syscalls
from crash.failing_syscalls import SHORT, Faults
from crash.log_files import read_log
from crash.node_under_test import NodeUnderTest
from mount_namespace import run_behind

from penstock.client.admin.admin import Admin, PartitionDescription, TopicConfig
from penstock.client.client import Client
from penstock.client.producer.producer import Producer
from penstock.core.errors import (
    BufferFullError,
    DeliveryTimeout,
    ErrorCode,
    PenstockTimeout,
    ProduceError,
)
from penstock.testing import wait_until

WITHIN = 45.0
SOON = 0.3
"""Seconds in which nothing may happen."""


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setenv(failing_syscalls.FAULTS_VARIABLE, str(tmp_path / "faults"))
    return Faults(tmp_path / "faults")


@pytest.fixture
def node(tmp_path: Path, faults: Faults) -> Iterator[NodeUnderTest]:
    command = [sys.executable, failing_syscalls.__file__]
    with NodeUnderTest(tmp_path, writers_max=1, writer_command=command) as node:
        yield node
        faults.clear()


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Admin:
    return client.admin()


def partition(admin: Admin, topic: str, number: int = 0) -> PartitionDescription:
    return admin.describe_topic(topic).partitions[number]


def folder(node: NodeUnderTest, admin: Admin, topic: str, number: int = 0) -> Path:
    return node.data / f"{admin.describe_topic(topic).topic_id}-{number}"


def values(client: Client, topic: str) -> list[bytes | None]:
    with client.consumer(topic, follow=False) as consumer:
        return [record.value for record in consumer]


def send_all(producer: Producer, topic: str, numbers: range) -> list[bytes]:
    sent = [b"%d" % number for number in numbers]
    for value in sent:
        producer.send(topic, value)
    return sent


# --- a full disk ---------------------------------------------------------------------------------
@pytest.mark.rule(4)
def test_rule_4_a_full_disk_holds_producers_up_and_consumers_read_on(
    client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        sent = send_all(producer, "t", range(10))
        producer.flush(WITHIN)
        faults.set("pwritev", errno.ENOSPC, path=r"\.log$")
        sent += send_all(producer, "t", range(10, 20))
        with pytest.raises(PenstockTimeout, match="storage full"):
            producer.flush(1.0)
        described = partition(admin, "t")
        assert described.status == "storage full"
        assert described.counters["throttles"] > 0
        read: list[bytes | None] = []
        while len(read) < 10:
            batch = consumer.poll(timeout=WITHIN)
            assert batch, "what was written stays readable"
            read += [record.value for record in batch]
        assert not consumer.poll(timeout=SOON)
        faults.clear()
        producer.flush(WITHIN)
        assert partition(admin, "t").status == "online"
        while len(read) < 20:
            batch = consumer.poll(timeout=WITHIN)
            assert batch
            read += [record.value for record in batch]
    assert read == sent == values(client, "t")


@pytest.mark.rule(4)
def test_rule_4_a_full_partition_does_not_hold_up_others_of_its_writer(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("full")
    admin.create_topic("free")
    where = folder(node, admin, "full").name
    with client.producer(linger=0.0) as waiting, client.producer(linger=0.0) as going:
        faults.set("pwritev", errno.ENOSPC, path=where)
        delivery = waiting.send("full", b"waits")
        wait_until(
            lambda: partition(admin, "full").status == "storage full", WITHIN, "the writer met it"
        )
        for number in range(50):
            assert going.send_and_wait("free", b"%d" % number, timeout=WITHIN).offset == number
        assert not delivery.done()
        faults.clear()
        assert delivery.result(WITHIN).offset == 0


def test_a_full_disk_fails_deliveries_at_their_own_timeout(
    client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t")
    with client.producer(linger=0.0, delivery_timeout=3.0) as producer:
        producer.send_and_wait("t", b"before", timeout=WITHIN)
        faults.set("pwritev", errno.ENOSPC, path=r"\.log$")
        failed = producer.send("t", b"may still be written")
        error = failed.exception(WITHIN)
        assert isinstance(error, DeliveryTimeout)
        assert "storage full" in str(error)
        faults.clear()
        after = producer.send("t", b"after")
        assert after.result(WITHIN).offset is not None
    found = values(client, "t")
    assert found[0] == b"before"
    assert found.count(b"after") == 1
    assert found.count(b"may still be written") <= 1


def test_a_full_disk_blocks_a_producer_whose_memory_is_bounded(
    client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t")
    options = {"linger": 0.0, "batch_bytes": 1 << 10, "buffer_bytes_max": 16 << 10}
    with client.producer(on_full="error", **options) as producer:  # type: ignore[call-overload]
        producer.send_and_wait("t", b"before", timeout=WITHIN)
        faults.set("pwritev", errno.ENOSPC, path=r"\.log$")
        producer.send("t", b"meets it")
        wait_until(lambda: partition(admin, "t").status == "storage full", WITHIN, "it is full")
        sent = 1
        with pytest.raises(BufferFullError, match=r"buffer_bytes_max.*storage full"):  # noqa: PT012
            for sent in range(1, 10_000):
                producer.send("t", b"%06d" % sent + bytes(500))
        faults.clear()
        producer.flush(WITHIN)
    assert len(values(client, "t")) == 1 + sent


def test_a_segment_that_cannot_be_made_waits_for_room_as_well(
    client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t", TopicConfig(segment_bytes=4096))
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", bytes(1000), timeout=WITHIN)
        faults.set("open", errno.ENOSPC, path=r"\.log$")
        for _ in range(20):
            producer.send("t", bytes(1000))
        with pytest.raises(PenstockTimeout, match="storage full"):
            producer.flush(1.0)
        assert 1 <= len(values(client, "t")) < 21  # how many is a matter of when they were gathered
        faults.clear()
        producer.flush(WITHIN)
    assert partition(admin, "t").status == "online"
    assert len(values(client, "t")) == 21


@pytest.mark.rule(4)
def test_rule_4_a_writer_that_dies_on_a_full_disk_loses_nothing_that_was_accepted(
    client: Client, admin: Admin, faults: Faults
) -> None:
    """Its successor cannot recover the log either: frames wait and readers read on meanwhile."""
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer, client.producer(linger=0.0, acks=0) as ring:
        sent = send_all(producer, "t", range(10))
        producer.flush(WITHIN)
        ring.send("t", b"warm")
        wait_until(lambda: len(values(client, "t")) == 11, WITHIN, "all is written")
        faults.set("pwritev|posix_fallocate", errno.ENOSPC)
        waits = producer.send("t", b"waits")
        assert ring.send("t", b"accepted").result(WITHIN).durability == "ring"
        wait_until(lambda: partition(admin, "t").status == "storage full", WITHIN, "it is full")
        before = admin.describe_node().writers[0]
        os.kill(before.pid, signal.SIGKILL)
        wait_until(
            lambda: admin.describe_node().writers[0].pid not in (0, before.pid),
            WITHIN,
            "it has a successor",
        )
        throttles = partition(admin, "t").counters["throttles"]
        wait_until(
            lambda: partition(admin, "t").counters["throttles"] > throttles, WITHIN, "it has tried"
        )
        assert partition(admin, "t").status == "storage full"
        assert not waits.done()
        assert len(values(client, "t")) == 11
        faults.clear()
        waits.result(WITHIN)
        wait_until(lambda: partition(admin, "t").status == "online", WITHIN, "there is room")
        assert ring.metrics()["refused_after_ring"] == 0
    found = values(client, "t")
    assert found[:11] == [*sent, b"warm"]
    assert sorted(map(bytes, filter(None, found[11:]))) == [b"accepted", b"waits"]


def test_a_log_that_is_damaged_when_there_is_room_again_goes_offline(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", b"before", timeout=WITHIN)
        (log,) = folder(node, admin, "t").glob("*.log")
        faults.set("pwritev|posix_fallocate", errno.ENOSPC)
        waits = producer.send("t", b"waits")
        wait_until(lambda: partition(admin, "t").status == "storage full", WITHIN, "it is full")
        before = admin.describe_node().writers[0]
        os.kill(before.pid, signal.SIGKILL)
        throttles = partition(admin, "t").counters["throttles"]
        wait_until(
            lambda: partition(admin, "t").counters["throttles"] > throttles + 2,
            WITHIN,
            "its successor has tried",
        )
        with log.open("r+b") as file:
            file.write(bytes(64))
        faults.clear()
        error = waits.exception(WITHIN)
        assert isinstance(error, ProduceError)
        assert error.code is ErrorCode.PARTITION_OFFLINE
    assert partition(admin, "t").status == "offline"


def test_what_finds_no_room_ahead_is_written_without(
    client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t", TopicConfig(segment_bytes=4096))
    faults.set("posix_fallocate", errno.ENOSPC, path=r"\.log$")
    with client.producer(linger=0.0) as producer:
        sent = send_all(producer, "t", range(100))
        producer.flush(WITHIN)
    assert values(client, "t") == sent


def test_short_writes_are_finished(client: Client, admin: Admin, faults: Faults) -> None:
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer:
        faults.set("pwritev", SHORT, path=r"\.log$", times=5)
        sent = send_all(producer, "t", range(50))
        producer.flush(WITHIN)
    assert faults.left() == 0
    assert values(client, "t") == sent


def test_a_file_size_limit_is_a_full_disk(
    node: NodeUnderTest, client: Client, admin: Admin
) -> None:
    """The kernel's own EFBIG, by the limit of the running writer."""
    admin.create_topic("t", TopicConfig(segment_bytes=1 << 20))
    (writer,) = node.writer_pids()
    with client.producer() as producer:
        sent = send_all(producer, "t", range(10))
        producer.flush(WITHIN)
        before = resource.prlimit(writer, resource.RLIMIT_FSIZE)
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (256 << 10, before[1]))
        big = [bytes(100_000) for _ in range(8)]
        for value in big:
            producer.send("t", value)
        with pytest.raises(PenstockTimeout, match="storage full"):
            producer.flush(1.0)
        assert len(values(client, "t")) >= 10
        resource.prlimit(writer, resource.RLIMIT_FSIZE, before)
        producer.flush(WITHIN)
    assert values(client, "t") == [*sent, *big]


def test_a_writer_without_descriptors_waits_for_them(
    node: NodeUnderTest, client: Client, admin: Admin
) -> None:
    admin.create_topic("t", TopicConfig(segment_bytes=4096))
    (writer,) = node.writer_pids()
    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        before = resource.prlimit(writer, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{writer}/fd")}
        lowest = min(set(range(1000)) - taken)  # the number that the next one would get
        resource.prlimit(writer, resource.RLIMIT_NOFILE, (lowest, before[1]))
        for _ in range(10):
            producer.send("t", bytes(1000))
        with pytest.raises(PenstockTimeout, match="storage full"):
            producer.flush(1.0)
        batch = consumer.poll(max_records=1, timeout=WITHIN)
        assert [record.value for record in batch] == [b"0"]
        resource.prlimit(writer, resource.RLIMIT_NOFILE, before)
        producer.flush(WITHIN)
        assert node.writer_pids() == [writer]
    assert len(values(client, "t")) == 11


SCRIPT = r"""
import os, sys
from pathlib import Path
from penstock.core.errors import PenstockTimeout
from crash.node_under_test import NodeUnderTest
folder = Path(sys.argv[1])
with NodeUnderTest(folder) as node, node.connect() as client:
    client.admin().create_topic("t")
    with client.producer(linger=0.0) as producer, client.consumer("t") as consumer:
        sent = 0
        while True:
            for _ in range(10):
                producer.send("t", b"%06d" % sent + os.urandom(10_000))
                sent += 1
            try:
                producer.flush(2.0)
            except PenstockTimeout as error:
                print("held up:", error)
                break
        read = 0
        while batch := consumer.poll(timeout=0.5):
            read += len(batch)
        assert 0 < read < sent, (read, sent)
        (node.data / "ballast").unlink()
        producer.flush(20.0)
        while read < sent:
            batch = consumer.poll(timeout=45)
            assert batch, (read, sent)
            for record in batch:
                assert record.value.startswith(b"%06d" % record.offset), record.offset
            read += len(batch)
    assert node.stop() == 0
print("all", sent)
"""


def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    """A tmpfs of a few megabytes with a ballast in it, in a mount namespace of its own."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    prepare = (
        f"mount -t tmpfs -o size=6m tmpfs {mounted} && mkdir {mounted}/data && "
        f"head -c 3000000 /dev/zero > {mounted}/data/ballast"
    )
    said = run_behind(prepare, SCRIPT, mounted, timeout=90)
    assert "held up: flush" in said
    assert "storage full" in said


# --- a failing device ----------------------------------------------------------------------------
@pytest.mark.rule(16)
def test_rule_16_a_failed_fsync_is_rescued_into_a_new_segment(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t", TopicConfig(durability="fsync"))
    where = folder(node, admin, "t")
    with client.producer(linger=0.0) as producer:
        sent = send_all(producer, "t", range(5))
        producer.flush(WITHIN)
        faults.set("fdatasync", errno.EIO, path=r"\.log$", times=1)
        receipt = producer.send_and_wait("t", b"5", timeout=WITHIN)
        assert (receipt.offset, receipt.durability) == (5, "fsynced")
        sent += [b"5", *send_all(producer, "t", range(6, 10))]
        producer.flush(WITHIN)
    assert faults.left() == 0
    assert list(where.glob("*.failed")), "the file that the device failed on is kept"
    assert partition(admin, "t").durable == 10
    assert values(client, "t") == sent
    log = read_log(where, "t", 0)
    assert [stored.value for stored in log.records] == sent


@pytest.mark.rule(16)
def test_rule_16_a_device_that_fails_for_good_takes_its_partition_offline_and_no_other(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("ill", TopicConfig(durability="fsync"))
    admin.create_topic("well", TopicConfig(durability="fsync"))
    where = folder(node, admin, "ill").name
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("ill", b"0", timeout=WITHIN)
        faults.set("fdatasync|fsync", errno.EIO, path=where)
        error = producer.send("ill", b"1").exception(WITHIN)
        assert isinstance(error, ProduceError)
        assert error.code is ErrorCode.PARTITION_OFFLINE
        assert "offline" in str(error)
        assert partition(admin, "ill").status == "offline"
        assert producer.send_and_wait("well", b"0", timeout=WITHIN).offset == 0
        assert values(client, "ill")[:1] == [b"0"]
        again = producer.send("ill", b"2").exception(WITHIN)
        assert isinstance(again, ProduceError)
        faults.clear()
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "ill").status == "online", WITHIN, "it is recovered")
        receipt = producer.send_and_wait("ill", b"3", timeout=WITHIN)
    found = values(client, "ill")
    assert found[0] == b"0"
    assert found[receipt.offset or 0] == b"3"
    assert len(found) == len(set(found))


def test_a_write_error_takes_the_partition_offline_with_a_clear_error(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        faults.set("pwritev", errno.EIO, path=r"\.log$")
        error = producer.send("t", b"1").exception(WITHIN)
        assert isinstance(error, ProduceError)
        assert error.code is ErrorCode.PARTITION_OFFLINE
        assert values(client, "t") == [b"0"]
        faults.clear()
        assert "Input/output error (EIO). The device failed" in node.tail(200)
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "t").status == "online", WITHIN, "it is recovered")
        assert producer.send_and_wait("t", b"2", timeout=WITHIN).offset == 1
    assert values(client, "t") == [b"0", b"2"]


def test_a_partition_that_cannot_be_opened_is_offline_and_says_so(
    node: NodeUnderTest, client: Client, admin: Admin, faults: Faults
) -> None:
    """Not deleted, not unknown: producers that hold records for it are told what is the matter."""
    admin.create_topic("t")
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("t", b"0", timeout=WITHIN)
        faults.set("open", errno.EIO, path=r"\.log$")
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "t").status == "offline", WITHIN, "it is offline")
        error = producer.send("t", b"1").exception(WITHIN)
        assert isinstance(error, ProduceError)
        assert error.code is ErrorCode.PARTITION_OFFLINE
        faults.clear()
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "t").status == "online", WITHIN, "it is recovered")
        assert producer.send_and_wait("t", b"2", timeout=WITHIN).offset == 1


@pytest.mark.rule(14)
def test_rule_14_damage_below_the_published_end_takes_the_log_offline_and_keeps_the_file(
    node: NodeUnderTest, client: Client, admin: Admin
) -> None:
    admin.create_topic("t")
    admin.create_topic("other")
    where = folder(node, admin, "t")
    with client.producer(linger=0.0) as producer:
        for number in range(10):
            producer.send_and_wait("t", b"%d" % number, timeout=WITHIN)
        (segment,) = where.glob("*.log")
        image = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(5 * 256)
            file.write(b"\xff" * 64)
        damaged = segment.read_bytes()
        assert damaged != image
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "t").status == "offline", WITHIN, "it is offline")
        assert segment.read_bytes() == damaged
        error = producer.send("t", b"10").exception(WITHIN)
        assert isinstance(error, ProduceError)
        assert error.code is ErrorCode.PARTITION_OFFLINE
        assert producer.send_and_wait("other", b"0", timeout=WITHIN).offset == 0
        segment.write_bytes(image)
        (writer,) = node.writer_pids()
        os.kill(writer, 9)
        wait_until(lambda: partition(admin, "t").status == "online", WITHIN, "it is whole again")
        assert producer.send_and_wait("t", b"10", timeout=WITHIN).offset == 10
    assert values(client, "t") == [b"%d" % number for number in range(11)]
