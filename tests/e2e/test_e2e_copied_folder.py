"""Copies of a data folder beside the original, instead of it, and of one partition: what is in
shared memory belongs to the folder that made it, and to no copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cli_runner import Ran, call_cli
from node_helpers import NodeProcess, environment, eventually, owner_of, uuid_of

import penstock
from penstock.core.errors import LogTruncatedError, NotConnectedError
from penstock.ipc import shm
from penstock.ipc.lane import undrained
from penstock.ipc.ownership import old_objects, unlink_own
from penstock.server.node.tables import map_existing
from penstock.testing import remains
from penstock.testing.processes import end_processes_on

pytestmark = pytest.mark.local("shared memory and data folders are of the node's own host")


RING = 7_000_000
"""The value that was in a lane, and in no log, when its node was killed."""


@pytest.fixture
def original(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_at(tmp_path, "original") as node:
        yield node
    assert left_over(node.folder) == []


def node_at(tmp_path: Path, name: str) -> NodeProcess:
    (tmp_path / name).mkdir(exist_ok=True)
    return NodeProcess(tmp_path / name / remains.DATA, "--writers", "1")


def copy_of(node: NodeProcess, tmp_path: Path, name: str = "copy") -> NodeProcess:
    copy = node_at(tmp_path, name)
    shutil.copytree(node.folder, copy.folder, ignore=shutil.ignore_patterns("attach.sock"))
    return copy


def left_over(folder: Path) -> list[str]:
    """Everything under the folder's uuid in /dev/shm, whoever made it."""
    return shm.listing(f"/penstock-{uuid_of(folder)}")


def connect(node: NodeProcess) -> penstock.Client:
    return penstock.connect(f"shm://{node.folder}")


def produce(node: NodeProcess, values: range) -> None:
    with connect(node) as client, client.producer() as producer:
        for each in values:
            producer.send("t", b"%d" % each)


def values(node: NodeProcess) -> list[int]:
    with connect(node) as client, client.consumer("t", follow=False) as consumer:
        return [int(record.value or b"-1") for record in consumer]


def members_share(node: NodeProcess) -> list[int]:
    """What a group has not read yet, which it commits."""
    with connect(node) as client, client.consumer("t", group="g", follow=False) as member:
        return [int(record.value or b"-1") for record in member]


def begin(node: NodeProcess, count: int = 100) -> NodeProcess:
    node.start()
    with connect(node) as client:
        client.admin().create_topic("t", penstock.TopicConfig(partitions=1))
    produce(node, range(count))
    return node


def poll_on(reader: penstock.Consumer) -> None:
    """As one that goes on wherever it is, until an error comes."""
    for _ in range(20):
        reader.poll(timeout=1)


def adopt(node: NodeProcess, *options: str) -> Ran:
    ran = call_cli("node", "adopt", str(node.folder), *options)
    assert ran.code == 0, ran.err
    return ran


def put_undrained(node: NodeProcess) -> None:
    """Kill the node and its processes with a record in a lane that no log has. Its producer dies
    before, so that nobody sends it again."""
    writer = node.writers()[0].pid
    os.kill(writer, signal.SIGSTOP)
    program = f"""
import os, penstock
from penstock.ipc.shm import listing
producer = penstock.connect({f"shm://{node.folder}"!r}).producer(linger=0)
producer.send("t", b"{RING}")
print(flush=True)
os.read(0, 1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
    ) as sender:  # fmt: skip
        eventually(lambda: undrained_bytes(node), "a frame in a lane")
        sender.kill()
    end_all(node)


def undrained_bytes(node: NodeProcess) -> int:
    size = 0
    for name in shm.listing(f"/penstock-{owner_of(node.folder)}-lane-"):
        region = map_existing(name, writable=False)
        if region is not None:
            with region:
                size += undrained(region)
    return size


def has_begun(node: NodeProcess, before: int) -> bool:
    """Whether a node that was started serves, or has ended. `before`: how often it had served."""
    assert node.process is not None
    return served_times(node) > before or node.process.poll() is not None


def served_times(node: NodeProcess) -> int:
    return node.log.count(f" serves {node.folder}:") if node.process else 0


def forget_owner(folder: Path) -> None:
    """node.json as versions wrote it that had no owners."""
    record = json.loads((folder / "node.json").read_bytes())
    del record["shm"], record["place"]
    (folder / "node.json").write_bytes(json.dumps(record).encode())


def end_all(node: NodeProcess) -> None:
    """SIGKILL to the node and all its processes."""
    node.kill()
    assert end_processes_on(os.fspath(node.folder))


@pytest.mark.rule(5)
def test_a_copy_beside_an_original_with_a_slow_writer_takes_nothing_of_it(original, tmp_path):
    """What the original's lanes hold is acknowledged by the original, and is in its log."""
    begin(original)
    writer = original.writers()[0].pid
    with connect(original) as client, client.producer() as producer:
        os.kill(writer, signal.SIGSTOP)
        try:
            sent = [producer.send("t", b"%d" % each) for each in range(100, 600)]
            with copy_of(original, tmp_path) as copy:
                copy.start(ready=False)
                assert copy.wait() == 1
                assert "One of the two is a copy" in copy.log
        finally:
            os.kill(writer, signal.SIGCONT)
        assert [each.result(30).offset for each in sent] == list(range(100, 600))
    os.kill(writer, signal.SIGKILL)  # its successor finds the tables
    eventually(lambda: original.writers()[0].pid not in (0, writer), "a successor")
    produce(original, range(600, 700))
    assert values(original) == list(range(700))
    assert original.stop() == 0


@pytest.mark.rule(5)
def test_a_copy_that_is_adopted_is_served_beside_the_original(original, tmp_path):
    """Its start, its end and a kill of each take nothing from the other, which is slow."""
    begin(original)
    writer = original.writers()[0].pid
    with connect(original) as client, client.producer() as producer:
        os.kill(writer, signal.SIGSTOP)
        try:
            sent = [producer.send("t", b"%d" % each) for each in range(100, 600)]
            with copy_of(original, tmp_path) as copy:
                adopt(copy, "--yes")
                copy.start()
                produce(copy, range(1000, 1100))
                end_all(copy)
                copy.start()
                produce(copy, range(1100, 1200))
                assert values(copy) == [*range(100), *range(1000, 1200)]
                assert copy.stop() == 0
                assert left_over(copy.folder) == []
        finally:
            os.kill(writer, signal.SIGCONT)
        assert [each.result(30).offset for each in sent] == list(range(100, 600))
    os.kill(writer, signal.SIGKILL)
    produce(original, range(600, 700))
    end_all(original)
    original.start()
    assert values(original) == list(range(700))
    assert original.stop() == 0


@pytest.mark.rule(5)
def test_lanes_of_a_killed_original_wait_for_it_and_for_no_copy(original, tmp_path):
    begin(original)
    put_undrained(original)
    with copy_of(original, tmp_path) as copy:
        before = left_over(original.folder)
        copy.start(ready=False)
        assert copy.wait() == 1
        assert f"has the uuid of {original.folder}" in copy.log
        assert "start and stop the node of the other first" in copy.log
        assert left_over(original.folder) == before
        adopt(copy, "--yes")
        copy.start()
        assert values(copy) == list(range(100))
        assert copy.stop() == 0
        assert left_over(original.folder) == before
    ran = call_cli("node", "adopt", str(original.folder), "--yes")
    assert (ran.code, "is no copy" in ran.err) == (1, True)
    original.start()
    assert values(original)[:101] == [*range(100), RING]
    assert original.stop() == 0


def test_an_original_that_was_moved_is_refused_while_its_copy_is_served(original, tmp_path):
    """Moved within its file system it finds its lanes; the copy has none of them."""
    begin(original)
    put_undrained(original)
    before = left_over(original.folder)
    with copy_of(original, tmp_path) as copy, node_at(tmp_path, "moved") as moved:
        original.folder.rename(moved.folder)
        copy.start()
        copy.wait_log(f"that was at {original.folder} and is not there any more")
        copy.wait_log("is not the folder of its last run")
        assert values(copy) == list(range(100))
        moved.start(ready=False)
        assert moved.wait() == 1
        assert (
            f"has the uuid of {copy.folder}, which the node of pid {copy.pid} serves" in moved.log
        )
        assert copy.stop() == 0
        assert left_over(moved.folder) == before
        moved.start()
        assert values(moved)[:101] == [*range(100), RING]
        assert "is not the folder of its last run" not in moved.log.split("INFO node")[-1]
        assert moved.stop() == 0
        moved.folder.rename(original.folder)


@pytest.mark.rule(15)
def test_a_backup_in_the_place_of_a_lost_folder_is_served_and_begins_an_epoch(original, tmp_path):
    """The advice of the guide, within one boot; the lost folder had records in its lanes. Groups,
    access and settings are in the backup too."""
    begin(original)
    url = f"shm://{original.folder}"
    assert call_cli("acl", "add", "ann", "read", "topic", "t", url=url).code == 0
    assert call_cli("topic", "config", "t", "retention=3d", url=url).code == 0
    assert len(members_share(original)) == 100
    assert original.stop() == 0
    backup = copy_of(original, tmp_path, "backup").folder
    original.start()
    produce(original, range(100, 150))
    put_undrained(original)
    lost = left_over(original.folder)
    shutil.rmtree(original.folder)
    shutil.copytree(backup, original.folder)
    original.start()
    original.wait_log("is not the folder of its last run")
    original.wait_log("leader epoch 2 .new.")
    original.wait_log(f"{len(lost)} objects in /dev/shm are of a folder")
    produce(original, range(200, 210))
    assert values(original) == [*range(100), *range(200, 210)]
    assert members_share(original) == list(range(200, 210))
    [entry] = call_cli("acl", "list", "--format", "json", url=url).objects
    assert (entry["principal"], entry["name"]) == ("ann", "t")
    [settings] = call_cli("topic", "config", "t", "--format", "json", url=url).objects
    assert settings["retention"] == 3 * 86_400
    assert original.stop() == 0
    verified = call_cli("log", "verify", str(original.folder))
    assert (verified.code, verified.lines[0].split()[1]) == (0, "good:"), verified
    assert left_over(original.folder) == lost
    for name in lost:  # as the warning says
        shm.unlink(name)


def test_the_same_folder_by_another_path_is_the_same(original, tmp_path):
    begin(original)
    put_undrained(original)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "data").symlink_to(original.folder)
    linked = NodeProcess(tmp_path / "link" / "data", "--writers", "1")
    linked.start()
    assert values(linked)[:101] == [*range(100), RING]
    assert "last run" not in linked.log
    assert linked.stop() == 0


def test_what_an_older_version_left_is_taken_over_once(original):
    """It named everything by the uuid alone, and node.json did not say where the folder was."""
    begin(original)
    with connect(original) as client, client.producer() as producer:  # it lives on
        producer.send_and_wait("t", b"100")
        put_undrained(original)
        uuid, owner = uuid_of(original.folder), owner_of(original.folder)
        for name in left_over(original.folder):
            if name.endswith("-owner"):
                shm.unlink(name)
            else:
                shm.rename(name, name.replace(owner, uuid))
        forget_owner(original.folder)
        sent = [producer.send("t", b"%d" % each) for each in range(101, 200)]
        original.start()
        original.wait_log("objects of an older version in /dev/shm are taken over")
        assert all(each.result(30) for each in sent)
    found = values(original)
    assert found.count(RING) == 1
    assert [each for each in found if each != RING] == list(range(200))
    assert old_objects(uuid) == []
    assert original.stop() == 0


def test_a_maker_that_died_before_it_said_whose_it_is_leaves_nothing_behind(original):
    begin(original)
    end_all(original)
    for name in left_over(original.folder):
        if name.endswith("-owner"):
            os.truncate(f"/dev/shm{name}", 0)
        else:
            shm.unlink(name)
    original.start()
    assert "not used" not in original.log
    assert values(original) == list(range(100))
    assert original.stop() == 0


def test_a_name_that_another_user_takes_keeps_no_node_from_starting(original):
    """The names of the version before could be taken beforehand; those of a run cannot be."""
    begin(original)
    end_all(original)
    uuid, owner = uuid_of(original.folder), owner_of(original.folder)
    kinds = ["state", "clients", "lane-1-0-1", "lane-x", "0-owner"]
    taken = [f"/penstock-{uuid}-{kind}" for kind in kinds]
    taken += [f"/penstock-{owner}-{kind}" for kind in ("lane-1-0-1", "lane-x", "0-owner")]
    for name in taken:
        os.symlink("/nowhere", f"/dev/shm{name}")
    try:
        original.start()
        produce(original, range(100, 200))
        assert values(original) == list(range(200))
        assert original.stop() == 0
    finally:
        for name in taken:
            os.unlink(f"/dev/shm{name}")


def test_a_link_in_the_place_of_a_table_is_named(original):
    begin(original)
    end_all(original)
    path = f"/dev/shm/penstock-{owner_of(original.folder)}-state"
    os.unlink(path)
    os.symlink("/nowhere", path)
    try:
        original.start(ready=False)
        assert original.wait() == 1
        assert f"{path} is a symbolic link: made by uid" in original.log
    finally:
        os.unlink(path)
    original.start()
    assert values(original) == list(range(100))
    assert original.stop() == 0


def test_of_two_copies_that_start_at_once_one_at_most_is_served(original, tmp_path):
    begin(original)
    assert original.stop() == 0
    with copy_of(original, tmp_path, "one") as one, copy_of(original, tmp_path, "two") as two:
        for _ in range(5):
            before = [served_times(each) for each in (one, two)]
            for each in (one, two):
                each.start(ready=False)
            for each, times in zip((one, two), before, strict=True):
                eventually(partial(has_begun, each, times), "it serves or has ended")
            found = [each for each in (one, two) if each.process and each.process.poll() is None]
            assert len(found) <= 1
            for each in found:
                assert each.stop() == 0
            assert left_over(original.folder) == []


def test_adopting_keeps_groups_and_transactions_and_says_what_it_does(original, tmp_path):
    begin(original)
    with connect(original) as client:
        with client.consumer("t", group="g", follow=False) as member:
            assert len(list(member)) == 100
        with client.producer(transactional_id="x") as producer, producer.transaction():
            producer.send("t", b"100")
    assert original.stop() == 0
    with copy_of(original, tmp_path) as copy:
        record = (copy.folder / "node.json").read_bytes()
        ran = call_cli("node", "adopt", str(copy.folder), "--dry-run")
        assert (ran.code, "would get another uuid" in ran.lines[0]) == (0, True)
        assert call_cli("node", "adopt", str(copy.folder)).code == 2, "nobody can be asked"
        assert (copy.folder / "node.json").read_bytes() == record
        (copy.folder / "resume-secret").write_bytes(bytes(32))
        ran = adopt(copy, "--yes")
        assert ran.lines[0].endswith(f"has the uuid {uuid_of(copy.folder)} instead of "
                                     f"{uuid_of(original.folder)}")  # fmt: skip
        assert "resume-secret is removed" in ran.lines[1]
        assert not (copy.folder / "resume-secret").exists()
        original.start()
        copy.start()
        for node, value in ((original, 101), (copy, 201)):
            with connect(node) as client:
                [part] = client.admin().describe_group("g").partitions
                assert part.committed == 100
                with client.producer(transactional_id="x") as producer, producer.transaction():
                    producer.send("t", b"%d" % value)
            assert values(node) == [*range(101), value]
        ran = call_cli("node", "adopt", str(copy.folder), "--yes")
        assert (ran.code, "is held by the node of pid" in ran.err) == (1, True)
        assert [original.stop(), copy.stop()] == [0, 0]
        assert left_over(copy.folder) == []


def test_a_folder_that_is_none_or_a_brokers_cannot_be_adopted(original, tmp_path):
    ran = call_cli("node", "adopt", str(tmp_path), "--yes")
    assert (ran.code, "is no data folder of a node" in ran.err) == (1, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "original"]
    begin(original)
    assert original.stop() == 0
    path = original.folder / "node.json"
    record = path.read_bytes()
    path.write_bytes(json.dumps({**json.loads(record), "node_id": 3}).encode())
    ran = call_cli("node", "adopt", str(original.folder), "--yes")
    assert (ran.code, "is the folder of broker 3" in ran.err) == (1, True)
    path.write_bytes(record)


def test_a_consumer_of_the_original_does_not_go_on_at_an_adopted_copy(original, tmp_path):
    """A copy is put in the original's place with another identity: positions are not its own."""
    begin(original)
    with connect(original) as client, client.consumer("t", follow=True) as reader:
        while reader.position("t", 0) < 100:
            assert reader.poll(timeout=20)
        assert original.stop() == 0
        copy = copy_of(original, tmp_path)
        adopt(copy, "--yes")
        kept = tmp_path / "kept"
        original.folder.rename(kept)
        copy.folder.rename(original.folder)
        original.start()
        with pytest.raises(NotConnectedError, match="another node"):
            poll_on(reader)
    assert original.stop() == 0
    unlink_own(str(kept))  # tables are left to clients that live
    shutil.rmtree(kept)


@pytest.mark.rule(14)
@pytest.mark.rule(15)
def test_a_partition_that_is_restored_within_a_boot_opens_in_a_new_epoch(original, tmp_path):
    begin(original)
    assert original.stop() == 0
    [partition] = original.folder.glob("*-0")
    backup = tmp_path / "backup"
    shutil.copytree(partition, backup)
    original.start()
    produce(original, range(100, 150))
    with connect(original) as client, client.consumer("t", follow=True) as reader:
        while reader.position("t", 0) < 150:
            assert reader.poll(timeout=20)
        end_all(original)
        shutil.rmtree(partition)
        shutil.copytree(backup, partition)
        original.start()
        original.wait_log("offsets 100 to 150 are missing")
        produce(original, range(200, 300))
        with pytest.raises(LogTruncatedError):
            poll_on(reader)
    assert values(original) == [*range(100), *range(200, 300)]
    assert original.stop() == 0
