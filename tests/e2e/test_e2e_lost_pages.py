"""A segment file is cut from outside, or its device fails: readers get an error with its name."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash.block_device import Device, why_not
from crash.node_under_test import NodeUnderTest, environment

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client
from penstock.testing import wait_until

pytestmark = pytest.mark.over_tcp
WITHIN = 45.0
COUNT, VALUE = 3000, 1000
CUT_TO = 366 * mmap.PAGESIZE
"""Bytes of the segment file that are left, of about 3 MB. These are whole pages: the rest of a page
in which a file ends reads as zeros, and a batch that ends there is damaged and not cut."""
READS_ON = """
import sys
import penstock

url, transport, script = sys.argv[1:]
client = penstock.connect(url, transport=transport, timeout=20)
consumer = client.consumer("t", follow=False, prefetch_bytes=200_000)
batch = consumer.poll(timeout=20)
assert batch
print("reading", flush=True)
input()
records = 0
try:
    exec(script)
except penstock.StorageError as error:
    print("told", records, error, flush=True)
print("and goes on", flush=True)
client.close()
"""
POLLS = """
while batch := consumer.poll(timeout=20):
    records += len(batch)
"""
ITERATES = """
for record in consumer:
    records += 1
"""
USES_LATER = """
list(batch)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(tmp_path, writers_max=1) as node:
        yield node


def fill(client: Client, *topics: str) -> None:
    for topic in topics:
        client.admin().create_topic(topic, TopicConfig(partitions=1, durability="fsync"))
        with client.producer(batch_bytes=60_000) as producer:
            for number in range(COUNT):
                producer.send(topic, b"%06d" % number * (VALUE // 6))


def segment(node: NodeUnderTest, client: Client, topic: str = "t") -> Path:
    (found,) = (node.data / f"{client.admin().describe_topic(topic).topic_id}-0").glob("*.log")
    return found


@contextmanager
def reading(node: NodeUnderTest, script: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has polled once, and goes on with `script` when it gets a line."""
    way = "tcp" if node.transport == "tcp" else "auto"
    program = subprocess.Popen(
        [sys.executable, "-c", READS_ON, node.url, way, script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "reading\n"
        yield program
    finally:
        program.kill()
        program.communicate()


def told(program: subprocess.Popen[str], file: Path) -> int:
    """How many records came before the error, which names the file; the program goes on then."""
    output, _ = program.communicate("\n", timeout=WITHIN)
    assert program.returncode == 0, f"status {program.returncode}, after {output!r}"
    first, rest = output.split("\n", 1)
    assert first.startswith("told "), output
    assert str(file) in first
    assert rest == "and goes on\n"
    return int(first.split()[1])


def still_serves(node: NodeUnderTest, client: Client, topic: str) -> None:
    with client.consumer(topic, follow=False) as consumer:
        assert sum(1 for _ in consumer) == COUNT


# --- a file is cut ------------------------------------------------------------------------------
@pytest.mark.parametrize("script", [POLLS, ITERATES], ids=["poll", "iterate"])
def test_a_consumer_whose_segment_is_cut_is_told_which_file(node, script):
    with node.connect() as client:
        fill(client, "t", "other")
        gateway = node.gateway_pid()
        with reading(node, script) as program:
            os.truncate(segment(node, client), CUT_TO)
            told(program, segment(node, client))
        assert node.gateway_pid() == gateway
        still_serves(node, client, "other")


@pytest.mark.local("what comes by tcp is a copy")
def test_records_made_of_a_batch_after_the_cut_are_an_error(node):
    with node.connect() as client:
        fill(client, "t")
        with reading(node, USES_LATER) as program:
            os.truncate(segment(node, client), 0)
            assert told(program, segment(node, client)) == 0


# --- a device fails -----------------------------------------------------------------------------
@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    if reason := why_not():
        pytest.skip(reason)
    with Device(tmp_path) as device:
        yield device


@pytest.fixture
def ill(device: Device) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(device.mounted_at, writers_max=1) as node:
        yield node


def forget_pages(file: Path) -> None:
    """Have the kernel read the file from the device again."""
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("script", [POLLS, ITERATES], ids=["poll", "iterate"])
def test_a_consumer_of_a_device_that_fails_is_told_which_file(ill, device, script):
    with ill.connect() as client:
        fill(client, "t")
        file, gateway = segment(ill, client), ill.gateway_pid()
        with reading(ill, script) as program:
            forget_pages(file)
            device.fail()
            told(program, file)
        assert ill.gateway_pid() == gateway
        assert client.admin().describe_topic("t").partitions[0].high_watermark == COUNT


@pytest.mark.local("reads files of its own host")
def test_tools_and_recovery_name_the_file_that_their_device_does_not_read(ill, device):
    with ill.connect() as client:
        fill(client, "t")
        file = segment(ill, client)
    ill.kill()
    wait_until(lambda: not ill.processes(), WITHIN, "the writers to end")
    forget_pages(file)
    device.fail()
    for verb in (["verify", str(ill.data)], ["dump", str(file.parent)]):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "log", *verb],
            capture_output=True, text=True, env=environment(), timeout=WITHIN,
        )  # fmt: skip
        assert done.returncode in (1, 2), (done.stdout, done.stderr)
        assert str(file) in done.stdout + done.stderr
        assert "EIO" in done.stdout + done.stderr
