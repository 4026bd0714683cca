"""kill -9 of the node at named steps of its start, its work and its end: the next one goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.node_steps import AT_END, AT_START, AT_WORK
from crash.node_under_test import NodeUnderTest

from penstock.client.client import connect
from penstock.core.errors import PenstockError
from penstock.logcheck import check_partition, find_partitions
from penstock.testing import wait_until

pytestmark = pytest.mark.crash


class Filled:
    """A folder with something to lose, and no node that runs: a topic whose records were
    acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.node = NodeUnderTest(folder, writers_max=1)
        self.kept = [b"kept-%d" % number for number in range(20)]
        self.is_whole = False
        """As one test left it for the next one."""
        self.node.start()
        with self.node.connect() as client:
            client.admin().create_topic("kept")
            with client.producer() as producer:
                for value in self.kept:
                    producer.send("kept", value)
        assert self.node.stop() == 0


@pytest.fixture(scope="module")
def folders() -> Iterator[list[Filled]]:
    made: list[Filled] = []
    yield made
    for filled in made:
        filled.node.clear()


@pytest.fixture
def filled(folders: list[Filled], tmp_path: Path) -> Filled:
    """Whose node died at the steps before this one, too."""
    if not folders or not folders[-1].is_whole:
        folders.append(Filled(tmp_path))
    folders[-1].is_whole = False
    return folders[-1]


def armed(node: NodeUnderTest, step: str, skip: int = 0) -> None:
    node.config["step"] = [step, skip]


def expect_death(node: NodeUnderTest) -> None:
    process, step = node.process, node.config["step"]
    wait_until(lambda: process.poll() is not None, 45.0, lambda: f"it dies {step}:\n{node.tail()}")
    assert process.returncode == -signal.SIGKILL, f"{step}:\n{node.tail()}"
    del node.config["step"]


def work(url: str) -> None:
    """Everything that a node does for clients; it may die at any of it."""
    client = connect(url)
    admin = client.admin()
    producer = client.producer()
    with contextlib.suppress(PenstockError):
        admin.create_topic("fresh")
    with contextlib.suppress(PenstockError):
        producer.send_and_wait("fresh", b"value", timeout=45)
    with contextlib.suppress(PenstockError):
        producer.close(timeout=45)
    with contextlib.suppress(PenstockError):
        admin.delete_topic("fresh")
    with contextlib.suppress(PenstockError):
        admin.close()


def check_whole(filled: Filled) -> None:
    """The next node has what was there, does its work, ends cleanly and leaves nothing."""
    node, kept = filled.node, filled.kept
    node.start()
    with node.connect() as client:
        with client.consumer("kept", follow=False) as consumer:
            assert [record.value for record in consumer] == kept
        admin = client.admin()
        assert set(admin.list_topics()) <= {"kept", "fresh"}
        admin.create_topic("after")
        for topic in admin.list_topics():
            with client.producer() as producer:
                receipt = producer.send_and_wait(topic, b"after", timeout=45)
            assert receipt.offset is not None
            assert receipt.offset <= len(kept)
            with client.consumer(topic, start=receipt.offset, follow=False) as consumer:
                assert [record.value for record in consumer] == [b"after"]
        kept.append(b"after")
        for topic in ("after", "fresh"):
            if topic in admin.list_topics():
                admin.delete_topic(topic)
    assert node.stop() == 0
    node.check_gone()
    (partition,) = find_partitions(str(node.data))
    assert not check_partition(partition).errors
    filled.is_whole = True


def test_crash_of_the_node_in_its_start(filled: Filled) -> None:
    """The next one dies at the next step: what was left must keep it from nothing before that."""
    node = filled.node
    for step in AT_START:
        armed(node, step)
        node.launch()
        expect_death(node)
    check_whole(filled)


@pytest.mark.parametrize("step", AT_WORK)
def test_crash_of_the_node_at_work(filled: Filled, step: str) -> None:
    node = filled.node
    armed(node, step)
    node.start()
    # A process of its own: a lane that the node made and did not hand over any more stays until the
    # process dies that it was made for. It waits for the node as long as that lives.
    worker = multiprocessing.get_context("fork").Process(target=work, args=[node.url])
    worker.start()
    expect_death(node)
    worker.kill()
    worker.join(45)
    assert not worker.is_alive()
    check_whole(filled)


@pytest.mark.parametrize("step", AT_END)
def test_crash_of_the_node_in_its_end(filled: Filled, step: str) -> None:
    node = filled.node
    at_start = {"node.json": 2, "-state": 1}  # its names in shared memory, and the run
    armed(node, step, skip=at_start.get(step.rpartition(" ")[2], 0))
    node.start()
    node.signal(signal.SIGTERM)
    expect_death(node)
    check_whole(filled)
