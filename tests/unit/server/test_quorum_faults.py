"""Real quorums under faults: cuts in one direction, disks that fail, power cuts, lost folders."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
from event_loops import eventually, run
from quorum_fixture import (
    ELECTION,
    STEADY,
    World,
    create,
    free_port,
)
from seeds import seed_of
from unit.core.log_helpers import Call, MemoryStorage, refuse

from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    DataFolderError,
    PenstockError,
    PenstockTimeout,
    StorageError,
)
from penstock.core.storage import Buffer, Storage, storage_error
from penstock.server.quorum import Quorum, raft_node
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum import quorum as quorum_module


# --- the network ---
@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_a_leader_that_is_cut_off_in_one_direction_is_replaced(tmp_path, direction):
    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            term = first.describe()["term"]
            others = [q for q in world.quorums.values() if q is not first]
            if direction in ("out", "both"):
                first._links.loses = lambda node, message: True
            if direction in ("in", "both"):
                for other in others:
                    other._links.loses = lambda node, message: node == first.node
            await eventually(lambda: any(q.is_active for q in others), "another one is active")
            await eventually(lambda: not first.is_active, "the first one is not")
            topic_id = os.urandom(16)
            await others[0].ask(create("meanwhile", topic_id))
            with pytest.raises(PenstockTimeout):
                await first.ask(create("never", os.urandom(16)), timeout=0.3)
            for quorum in world.quorums.values():
                quorum._links.loses = None
            active = await world.agreed()
            await world.unfenced()
            await world.same()
            assert active.describe()["term"] > term
            assert first.image.ids["meanwhile"] == topic_id

    run(main())


def test_a_question_outlives_the_leader_and_is_decided_once(tmp_path):
    """Its answers get lost, then the leader: the next one hears the same question again."""

    async def main() -> None:
        async with World(tmp_path, **STEADY) as world:
            first = await world.agreed()
            await world.unfenced()
            asker = next(q for q in world.quorums.values() if q is not first)
            await asker.ask(create("old", bytes(15) + b"o"))
            await world.same()
            is_answer = {"Answer"}
            first._links.loses = lambda node, message: type(message).__name__ in is_answer
            topic_id = os.urandom(16)
            created = asyncio.create_task(asker.ask(create("orders", topic_id)))
            deleted = asyncio.create_task(asker.ask(cr.DeleteTopic("old")))
            grown = asyncio.create_task(asker.ask(cr.AddPartitions("orders", 5)))
            await eventually(lambda: "old" not in asker.image.ids, "it is decided")
            before = first._active.controller
            assert before is not None
            await asyncio.sleep(0)
            assert not created.done()
            assert not deleted.done()
            await world.stop(first.node)
            assert await created == topic_id
            await deleted
            with pytest.raises(ConfigError):  # it was not there yet when this was asked
                await grown

    run(main())


# --- members ---
def test_a_quorum_that_was_written_shorter_than_it_is_says_whom_it_lacks(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.agreed()
            for node in (1, 2, 3):
                await world.stop(node)
            world.text = f"1@127.0.0.1:{world.ports[1]}"
            lone = await world.start(1, registers=False)
            with pytest.raises(PenstockTimeout) as told:
                await lone.ask(cr.Describe(), timeout=0.3)
            for other in (2, 3):
                assert f" {other} (nobody knows where it is; it has a vote" in str(told.value)

    run(main())


def test_a_broker_without_a_vote_joins_and_is_removed(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.agreed()
            await world.unfenced()
            fourth = await world.start(4)
            await world.unfenced()
            await fourth.ask(create("wide", os.urandom(16), 4, 4))
            await world.same()
            described = await fourth.ask(cr.Describe())
            assert described["leader"] == described["node"] != 4, "who leads tells it"
            roles = {member["node"]: member["role"] for member in described["members"]}
            assert sorted(roles.values()) == ["follower", "follower", "leader", "learner"]
            assert roles[4] == "learner"
            assert len(described["members"]) == 4
            assert all(member["lag"] is not None for member in described["members"])
            with pytest.raises(ConfigError, match="stop it"):
                await fourth.ask(cr.RemoveMember(4))
            await world.stop(4)
            await world.remove(4)
            await world.start(4)
            await world.unfenced()
            await world.same()

    run(main())


def test_a_voter_that_lost_its_folder_gets_its_vote_back_after_it_was_removed(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            lost = next(node for node in world.quorums if node != first.node)
            await world.stop(lost)
            shutil.rmtree(tmp_path / str(lost))
            again = await world.start(lost, registers=False)
            await eventually(
                lambda: any("data folder" in again._links.trouble(node) for node in world.ports),
                "it is refused",
            )
            active = await world.agreed(but=lost)
            await world.remove(lost)
            registered = asyncio.create_task(again.register((), was_clean=False))
            await eventually(
                lambda: (
                    {m["node"] for m in active.describe()["members"] if m["is_voter"]} == {1, 2, 3}
                ),
                "it has its vote back",
            )
            await registered
            await world.unfenced()
            await world.same()

    run(main())


def test_a_number_is_refused_to_another_folder_only_while_its_broker_is_heard(tmp_path):
    """A disk that was replaced is back before anybody has missed the one before."""

    async def main() -> None:
        async with World(tmp_path, broker_session_timeout=2.0) as world:
            first = await world.agreed()
            await world.unfenced()
            lost = next(node for node in world.quorums if node != first.node)
            epoch = world.quorums[lost].broker_epoch
            await world.stop(lost)
            shutil.rmtree(tmp_path / str(lost))
            again = await world.start(lost, registers=False)
            await world.agreed(but=lost)
            await world.remove(lost)

            async def speaks() -> None:
                while True:
                    asked = world.quorums[first.node].ask(
                        cr.Heartbeat(lost, epoch or 0, is_current=True, is_leaving=False)
                    )
                    with contextlib.suppress(PenstockError):
                        await asked
                    await asyncio.sleep(0.05)

            speaking = asyncio.create_task(speaks())
            with pytest.raises(AttachRefusedError, match="with another data folder: give this one"):
                await again.register((), was_clean=False)
            registered = asyncio.create_task(again.register((), was_clean=False))
            await asyncio.sleep(0.5)
            assert not registered.done()
            speaking.cancel()
            await registered
            await world.unfenced()

    run(main())


def test_a_quorum_of_one_grows_to_three(tmp_path):
    """The new ones have a majority by themselves, and form no cluster of their own."""

    async def main() -> None:
        world = World(tmp_path, 1)
        async with world:
            topic_id = os.urandom(16)
            await world.unfenced()
            await world.quorums[1].ask(create("kept", topic_id))
            cluster = world.quorums[1].cluster_id
            await world.stop(1)
            world.ports |= {2: free_port(), 3: free_port()}
            world.text = ",".join(f"{n}@127.0.0.1:{port}" for n, port in world.ports.items())
            await asyncio.gather(*(world.start(node) for node in world.ports))
            await eventually(
                lambda: all(
                    {m["node"] for m in q.describe()["members"] if m["is_voter"]} == {1, 2, 3}
                    for q in world.quorums.values()
                ),
                "all three have a vote",
            )
            await world.unfenced()
            await world.same()
            assert {q.cluster_id for q in world.quorums.values()} == {cluster}
            await world.stop(1)
            active = await world.agreed()
            assert active.image.ids == {"kept": topic_id}

    run(main())


def test_a_raft_log_that_is_gone_is_told(tmp_path):
    async def main() -> None:
        async with World(tmp_path, 1) as world:
            quorum = await world.agreed()
            kept = tmp_path / "1" / "raft" / "cluster.json"
            await eventually(kept.exists, "the cluster's id is kept")
            assert quorum.cluster_id.hex() in kept.read_text()
            await world.stop(1)
            for file in kept.parent.glob("*.log"):
                file.unlink()
            with pytest.raises(DataFolderError, match="its log is gone"):
                await world.start(1)
            del world.quorums[1]

    run(main())


# --- snapshots ---
@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_a_broker_that_is_far_behind_gets_a_snapshot(tmp_path, monkeypatch, inline):
    monkeypatch.setattr(raft_node, "SNAPSHOT_ENTRIES", 40)
    monkeypatch.setattr(raft_node, "INLINE_BYTES", inline)

    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            behind = next(node for node in world.quorums if node != first.node)
            await world.stop(behind)
            for number in range(30):
                await first.ask(create(f"t{number}", os.urandom(16), 2, 2))
                if number >= 5:
                    await first.ask(cr.DeleteTopic(f"t{number - 5}"))
            await eventually(
                lambda: all(q.counts().get("log snapshots_made") for q in world.quorums.values()),
                "both have a snapshot",
            )
            again = await world.start(behind)
            await world.unfenced()
            await world.same()
            assert again.counts()["log snapshots_restored"] >= 1
            assert len(again.image.ids) == 5
            for node in list(world.quorums):  # from their own snapshots
                await world.stop(node)
            await asyncio.gather(*(world.start(node) for node in world.ports))
            await world.unfenced()
            await world.same()

    run(main())


# --- disks ---
class Ill(Storage):
    """Its files under raft/ refuse with that error, while there is one."""

    code = 0

    def _check(self, action: str, path: str) -> None:
        if self.code and "/raft/" in path:
            raise storage_error(OSError(self.code, "injected"), action, path)

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        self._check("write", self.path_of(fd))
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self._check("fdatasync", self.path_of(fd))
        super().fdatasync(fd)


def test_a_full_disk_holds_up_one_broker_until_there_is_room(tmp_path):
    async def main() -> None:
        ill = Ill()
        async with World(tmp_path) as world:
            first = await world.agreed()
            follower = next(node for node in world.quorums if node != first.node)
            await world.stop(follower)
            world.storages[follower] = ill
            held = await world.start(follower)
            await world.unfenced()
            ill.code = errno.ENOSPC
            active = await world.agreed()
            for number in range(5):
                await active.ask(create(f"t{number}", os.urandom(16)))
            await eventually(lambda: held.counts()["log syncs_refused"] > 0, "it is refused")
            ill.code = 0
            await world.unfenced()
            await world.same()
            assert held.failure is None
            assert not world.failures

    run(main())


def test_a_disk_that_fails_ends_this_brokers_part_and_nobody_elses(tmp_path):
    async def main() -> None:
        ill = Ill()
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.stop(first.node)
            world.storages[first.node] = ill
            await world.start(first.node)
            await world.unfenced()
            ill.code = errno.EIO
            one = world.quorums[first.node]
            other = next(q for q in world.quorums.values() if q is not one)
            await other.ask(create("goes-on", os.urandom(16)))
            await eventually(lambda: one.failure is not None, "it has failed")
            assert "EIO" in str(world.failures[one.node])
            assert one.leader is None
            with pytest.raises(StorageError, match="EIO"):
                await one.ask(cr.DeleteTopic("goes-on"))
            await world.stop(one.node)
            await other.ask(cr.DeleteTopic("goes-on"))
            ill.code = 0
            await world.start(one.node)
            await world.unfenced()
            await world.same()

    run(main())


def test_a_power_cut_of_all_brokers_takes_nothing_that_was_answered(tmp_path):
    """Also where it tears their files."""
    chance = random.Random(seed_of("power cuts of quorums"))

    async def main() -> None:
        world = World(tmp_path)
        storages = {node: MemoryStorage() for node in world.ports}
        world.storages.update(storages)
        async with world:
            await world.agreed()
            await world.unfenced()
            answered: set[str] = set()
            for round_ in range(3):
                asking = [
                    asyncio.create_task(_create_many(quorum, f"r{round_}q{node}", answered))
                    for node, quorum in world.quorums.items()
                ]
                enough = 10 * (round_ + 1)
                await eventually(lambda e=enough: len(answered) >= e, "some are answered")  # type: ignore[misc]
                for storage in storages.values():
                    storage.fault = _no_power
                known = set(answered)
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
                for node in world.ports:
                    await world.stop(node)
                    world.storages[node] = storages[node] = storages[node].power_cut(chance)
                await asyncio.gather(*(world.start(node) for node in world.ports))
                await world.unfenced()
                await world.same()
                for quorum in world.quorums.values():
                    assert known <= set(quorum.image.ids)

    run(main())


def _no_power(call: Call) -> None:
    refuse(call, errno.EIO)


async def _create_many(quorum: Quorum, prefix: str, answered: set[str]) -> None:
    number = 0
    while True:
        name = f"{prefix}n{number}"
        number += 1
        await quorum.ask(create(name, os.urandom(16)))
        answered.add(name)


def test_who_lost_the_controllers_log_begins_no_cluster_without_topics(tmp_path, monkeypatch):
    """Two of three: with each other they would have begun again, and every broker would have
    removed what it has. They wait for the third, and then have all of it again."""
    monkeypatch.setattr(quorum_module, "FORGOTTEN_PAUSE", 1.0)

    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            await first.ask(create("orders", os.urandom(16), 3))
            await world.same()
            cluster = first.cluster_id
            for node in (1, 2, 3):
                await world.stop(node)
            for node in (1, 2):
                shutil.rmtree(tmp_path / str(node) / "raft")
            for _ in range(2):  # also where they have begun a log, with nothing in it
                for node in (1, 2):
                    await world.start(node, registers=False)
                await asyncio.sleep(4 * ELECTION)
                assert world.active is None
                for node in (1, 2):
                    await world.stop(node)
            for node in (1, 2):
                await world.start(node, registers=False)
            third = asyncio.create_task(world.start(3))
            others = [
                asyncio.create_task(world.quorums[node].register((), was_clean=True))
                for node in (1, 2)
            ]
            await asyncio.gather(third, *others)
            await world.unfenced()
            await world.same()
            active = await world.agreed()  # the third, or one that has all of it from there
            assert active.cluster_id == cluster
            assert set(active.image.ids) == {"orders"}

    run(main())


def test_a_voter_that_lost_the_controllers_log_gives_no_vote_before_it_has_it_again(tmp_path):
    """The one that is away for a moment may have what this one had promised to have."""

    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            others = [node for node in world.quorums if node != first.node]
            for node in (1, 2, 3):
                await world.stop(node)
            shutil.rmtree(tmp_path / str(others[0]) / "raft")
            for node in others:
                await world.start(node, registers=False)
            forgetful = world.quorums[others[0]]
            await eventually(lambda: forgetful.counts().get("log votes_withheld"), "it is asked")
            await asyncio.sleep(4 * ELECTION)
            assert world.active is None, "one that may miss what was committed leads"
            await asyncio.gather(
                world.start(first.node),
                *(world.quorums[node].register((), was_clean=True) for node in others),
            )
            await world.unfenced()
            await world.stop(first.node)
            await world.agreed()

    run(main())


def test_the_only_voter_does_not_start_without_the_controllers_log(tmp_path):
    async def main() -> None:
        async with World(tmp_path, 1) as world:
            await world.agreed()
            await world.unfenced()
            await world.stop(1)
            shutil.rmtree(tmp_path / "1" / "raft")
            with pytest.raises(DataFolderError, match="nobody else knows which topics"):
                await world.make(1).start()

    run(main())


def test_a_folder_with_records_of_another_cluster_is_left_alone(tmp_path):
    """A broker without a vote lost `raft`, and meanwhile the others began a new cluster."""

    async def main() -> None:
        async with World(tmp_path, 1) as world:
            await world.agreed()
            await world.start(4)
            await world.unfenced()
            await world.stop(4)
            await world.stop(1)
            shutil.rmtree(tmp_path / "1")
            shutil.rmtree(tmp_path / "4" / "raft")
            await world.start(1)
            await world.agreed()
            del world.news[4][:]
            await world.start(4, registers=False)
            registering = asyncio.create_task(world.quorums[4].register((), was_clean=True))
            await eventually(lambda: 4 in world.failures, "it takes no part")
            assert isinstance(world.failures[4], DataFolderError)
            assert not world.news[4], "nobody was told of a cluster without its topics"
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)

    run(main())


class NoRoom(Storage):
    """Of the cluster's id nothing can be noted, as long as it is full."""

    is_full = True

    def write_file_atomic(self, path: str, data: Buffer) -> None:
        if self.is_full and path.endswith("node.json") and b'"cluster": ""' not in bytes(data):
            raise storage_error(OSError(errno.ENOSPC, "injected"), "write", path)
        super().write_file_atomic(path, data)


def test_a_full_disk_does_not_end_a_broker_that_learns_its_cluster(tmp_path):
    async def main() -> None:
        world = World(tmp_path, 1)
        world.storages[1] = disk = NoRoom()
        async with world:
            quorum = await world.agreed()
            await world.unfenced()
            assert not world.failures
            assert quorum.cluster_id.hex() not in (tmp_path / "1" / "node.json").read_text()
            disk.is_full = False
            await quorum.ask(create("orders", os.urandom(16)))
            await world.same()
            assert quorum.cluster_id.hex() in (tmp_path / "1" / "node.json").read_text()

    run(main())
