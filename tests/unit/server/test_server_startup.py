"""What a node takes over at its start, with writers that drain nothing (rule 5)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import fake_writer
import pytest
from node_helpers import (
    NodeThread,
    RawClient,
    environment,
    eventually,
    remove_shared_objects,
    shared_objects,
)

from penstock.core.errors import DataFolderError, UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import shm
from penstock.ipc.shm import Region
from penstock.server.config import NodeConfig

OPENED = 5.0
"""Seconds within which fake writers have opened their partitions, on a busy machine too."""


@pytest.fixture
def folder(tmp_path):
    """A data folder; what its nodes leave in shared memory is removed at the end."""
    data = tmp_path / "data"
    yield data
    remove_shared_objects(data)


class LastingNode(NodeThread):
    """A node that leaves its shared objects to the next one."""

    def __exit__(self, *_: object) -> None:
        self.stop()


def running(folder: Path, **options: object) -> LastingNode:
    config = NodeConfig(str(folder), name=None, **{"drain_timeout": 0.3, **options})  # type: ignore[arg-type]
    return LastingNode(config, fake_writer.command())


def leave_a_lane(folder: Path, *, frames: int, dead: bool, writer: int = 1) -> str:
    """Have a run end with a producer's lane in shared memory; its name.

    The producer is this process, which lives on. A dead one is made by giving the lane another pid.
    """
    with running(folder, writers_max=2) as node:
        client = node.attach(lo.KIND_PRODUCER)
        client.create("orders", partitions=2)
        lane = client.open_lane(writer)
        for _ in range(frames):
            lane.try_write(1, [b"x" * 64], 64)
    client.close()
    if dead:
        with Region.of_fd(shm.open_existing(lane.name, writable=True)) as region:
            region.q[lo.Q_LANE_START_TIME] += 1
    lane.detach()
    return lane.name


def drain(name: str) -> None:
    """Do a writer's work: head to tail."""
    with Region.of_fd(shm.open_existing(name, writable=True)) as region:
        region.q[lo.Q_LANE_HEAD] = region.q[lo.Q_LANE_TAIL]


@pytest.mark.rule(5)
def test_rule_5_clients_are_admitted_only_after_the_lanes_are_drained(folder):
    name = leave_a_lane(folder, frames=2, dead=True)
    begun = time.monotonic()
    program = (
        "import sys, time; from test_server_startup import drain; time.sleep(1.0);"
        "drain(sys.argv[1])"
    )
    helper = subprocess.Popen(
        [sys.executable, "-c", program, name],
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with running(folder, drain_timeout=20.0) as node:
        assert time.monotonic() - begun > 1.0
        eventually(lambda: name not in shm.listing("/penstock"), "the lane is unlinked")
        assert node.writers()[0].lanes == 0
    helper.wait()


@pytest.mark.rule(5)
def test_rule_5_after_the_bound_clients_are_admitted_and_told_why(folder, caplog):
    name = leave_a_lane(folder, frames=2, dead=True)
    with running(folder, drain_timeout=OPENED) as node, node.attach() as client:
        assert client.ask(ms.DescribeNode(), ms.NodeDescription).lanes == 1
    assert (
        f"{name} is not drained after {OPENED:g} s (drain_timeout), 256 bytes are left"
        in caplog.text
    )
    assert "all partitions of writer 1 are online" in caplog.text
    assert name in shm.listing("/penstock"), "what holds frames is never unlinked"


@pytest.mark.rule(5)
def test_rule_5_an_offline_partition_is_named_as_the_reason(folder, caplog):
    leave_a_lane(folder, frames=1, dead=True)
    config = NodeConfig(str(folder), name=None, drain_timeout=OPENED)
    with LastingNode(config, fake_writer.command("fail=1")):
        pass
    assert "orders-1 is offline (made to fail)" in caplog.text


@pytest.mark.rule(5)
def test_rule_5_a_living_producers_lane_waits_for_it_although_it_is_empty(folder):
    name = leave_a_lane(folder, frames=0, dead=False)
    producer_id = int(name.split("-")[4])
    with running(folder) as node:
        assert shm.listing(name) == [name]
        with node.attach(lo.KIND_PRODUCER, resume=producer_id) as client:
            assert client.welcome.lanes == [ms.LaneInfo(name, 1)]
            assert len(client.fds) == 4
            client.close(bye=True)
        eventually(lambda: not shm.listing(name), "closed, so retired")


@pytest.mark.rule(5)
def test_rule_5_a_lane_that_its_producer_marked_closed_is_retired_at_the_start(folder):
    name = leave_a_lane(folder, frames=0, dead=False)
    with Region.of_fd(shm.open_existing(name, writable=True)) as region:
        region.q[lo.Q_LANE_STATE] = lo.LANE_CLOSED
    with running(folder):
        eventually(lambda: not shm.listing(name), "the closed lane is gone")


@pytest.mark.rule(6)
def test_rule_6_lanes_keep_the_number_of_writers_of_their_run(folder, caplog):
    leave_a_lane(folder, frames=1, dead=True)
    with running(folder, writers_max=3) as node, node.attach() as client:
        assert client.welcome.writers == 2
    assert "bound to its 2 writers: this run has 2 and not 3" in caplog.text


@pytest.mark.rule(6)
@pytest.mark.setting("node.writers_max")
def test_without_lanes_the_configured_number_of_writers_holds(folder):
    with running(folder, writers_max=2) as node, node.attach() as client:
        assert client.welcome.writers == 2
    with running(folder, writers_max=3) as node, node.attach() as client:
        assert client.welcome.writers == 3


@pytest.mark.rule(5)
def test_rule_5_a_lane_of_another_version_refuses_the_start(folder):
    name = leave_a_lane(folder, frames=1, dead=True)
    with Region.of_fd(shm.open_existing(name, writable=True)) as region:
        region.bytes[lo.LANE_VERSION_AT] = 7
    node = running(folder)
    with pytest.raises(UnsupportedVersionError, match="start the Penstock version that wrote it"):
        node.__enter__()
    node.stop()
    assert shm.listing(name) == [name]


def test_a_lane_of_a_writer_that_is_none_is_removed_aloud(folder, caplog):
    name = leave_a_lane(folder, frames=1, dead=True)
    with Region.of_fd(shm.open_existing(name, writable=True)) as region:
        version = lo.LANE_VERSION_WRITER.pack(lo.LAYOUT_VERSION, 40)
        region.bytes[lo.LANE_VERSION_AT : lo.LANE_VERSION_AT + 8] = version
    with running(folder):
        assert shm.listing(name) == []
    assert "is removed with 128 bytes in it: it names writer 40 of 2" in caplog.text


@pytest.mark.rule(10)
def test_rule_10_tables_stay_for_clients_that_live_on(folder):
    with running(folder) as node:
        client = node.attach(lo.KIND_CONSUMER)
    assert sorted(shared_objects(folder)) == ["clients", "owner", "state"]
    client.close()
    with running(folder):
        pass
    assert shared_objects(folder) == []


def test_a_node_that_cannot_have_its_name_leaves_the_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(tmp_path / "run"))
    first = NodeThread(NodeConfig(str(tmp_path / "other"), name="same"), fake_writer.command())
    with first:
        RawClient(tmp_path / "run/same.sock").close()
        second = LastingNode(NodeConfig(str(folder), name="same"), fake_writer.command())
        with pytest.raises(DataFolderError, match="another node answers at"):
            second.__enter__()
        second.stop()
        assert not (folder / "node.json").exists()
        assert not (folder / "attach.sock").exists()
        RawClient(tmp_path / "run/same.sock").close()
    assert not (tmp_path / "run/same.sock").exists()
