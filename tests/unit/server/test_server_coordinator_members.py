"""Members and their processes: deaths, stops, returns, notices. The processes are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time

import pytest
from coordinator_fixture import running

from penstock.cluster.groups import ClientIdentity
from penstock.ipc import layout as lo
from penstock.ipc import liveness, shm
from penstock.ipc.clients import ClientSlot, format_table
from penstock.ipc.shm import Region
from penstock.server.coordinator.group_members import WatchedMembers
from penstock.server.node.attached_client import NO_SLOT, AttachedClient

BOOT = liveness.boot_id()


class Ground:
    """A client table, members, and what was told of them."""

    def __init__(self, stall_timeout=10.0):
        self.name = f"/penstock-{os.urandom(16).hex()}-clients"
        self.table = Region.of_fd(shm.create(self.name, lo.client_table_bytes()))
        format_table(self.table)
        self.events: list[tuple[str, str]] = []
        self.members = WatchedMembers(
            self.table,
            BOOT,
            stall_timeout,
            died=lambda member: self.events.append(("died", member.member_id)),
            stalled=self.stalled,
        )
        self.processes = []
        self.clients = []

    def stalled(self, member):
        self.events.append(("stalled", member.member_id))
        self.members.left(member.member_id)

    def process(self):
        process = subprocess.Popen(["sleep", "60"])
        self.processes.append(process)
        return process

    def client(self, process, slot=NO_SLOT):
        start = liveness.start_time(process.pid)
        assert start is not None
        pidfd = liveness.open_pidfd(process.pid, start)
        client = AttachedClient(lo.KIND_CONSUMER, process.pid, start, pidfd, "c")
        client.slot = slot
        self.clients.append(client)
        return client

    async def until(self, condition):
        deadline = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline, self.events
            await asyncio.sleep(0.005)

    def close(self):
        self.members.close()
        for process in self.processes:
            process.kill()
            process.wait()
        for client in self.clients:
            os.close(client.pidfd)
            client.doorbell.close()
        self.table.close()
        shm.unlink(self.name)


@pytest.fixture
def run():
    return running(Ground)


def pidfds():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link) == "anon_inode:[pidfd]" for link in links if os.path.lexists(link))


@pytest.mark.rule(7)
def test_rule_7_a_death_is_told_once_for_each_member_of_the_process(run):
    async def scenario(ground):
        process = ground.process()
        client = ground.client(process)
        before = pidfds()
        ground.members.joined("g", "a", client)
        ground.members.joined("h", "b", client)
        assert pidfds() == before + 1, "one for the process"
        process.kill()
        await ground.until(lambda: len(ground.events) == 2)
        assert sorted(ground.events) == [("died", "a"), ("died", "b")]
        assert (len(ground.members), pidfds()) == (0, before)

    run(scenario)


def test_a_member_that_left_or_is_not_known_any_more_is_watched_no_longer(run):
    async def scenario(ground):
        client = ground.client(ground.process())
        before = pidfds()
        for member_id in "abc":
            ground.members.joined("g", member_id, client)
        ground.members.left("a")
        ground.members.keep_only(["b"])
        assert [member.member_id for member in ground.members.of_client(client)] == ["b"]
        ground.members.left("b")
        assert pidfds() == before

    run(scenario)


def test_members_of_the_log_are_found_while_their_process_lives(run):
    async def scenario(ground):
        living, dead = ground.process(), ground.process()
        identities = {
            name: ClientIdentity(process.pid, liveness.start_time(process.pid) or 0, BOOT)
            for name, process in (("living", living), ("dead", dead))
        }
        dead.kill()
        dead.wait()
        who = identities["living"]
        other_start = ClientIdentity(who.pid, who.start_time + 1, BOOT)
        other_boot = ClientIdentity(who.pid, who.start_time, "another boot")
        assert ground.members.found("g", "living", who).client is None
        assert ground.members.found("g", "dead", identities["dead"]) is None
        assert ground.members.found("g", "reused", other_start) is None
        assert ground.members.found("g", "before", other_boot) is None
        living.kill()
        await ground.until(lambda: ground.events == [("died", "living")])

    run(scenario)


def test_a_member_that_comes_back_by_another_process_is_that_processs(run):
    async def scenario(ground):
        first, second = ground.process(), ground.process()
        ground.members.joined("g", "a", ground.client(first))
        ground.members.joined("g", "a", ground.client(second))
        first.kill()
        first.wait()
        await asyncio.sleep(0)
        assert "a" in ground.members
        second.kill()
        await ground.until(lambda: ground.events == [("died", "a")])

    run(scenario)


@pytest.mark.rule(8)
def test_rule_8_a_stopped_process_stalls_and_one_that_goes_on_does_not(run):
    async def scenario(ground):
        stopped, running = ground.process(), ground.process()
        ground.members.joined("g", "stopped", ground.client(stopped))
        ground.members.joined("g", "running", ground.client(running))
        stopped.send_signal(signal.SIGSTOP)
        await ground.until(lambda: ground.events)
        assert ground.events == [("stalled", "stopped")]
        assert "running" in ground.members

    run(scenario, stall_timeout=0.1)


def test_a_notice_is_one_word_and_a_ring_and_skips_who_has_no_slot(run):
    async def scenario(ground):
        process = ground.process()
        there, away = ground.client(process, slot=3), ground.client(process)
        ground.members.joined("g", "there", there)
        ground.members.joined("g", "away", away)
        ground.members.notify(["there", "away", "nobody"])
        assert ClientSlot(ground.table, 3).notice == ground.members.notice_of(there) == 1
        assert there.doorbell.clear()
        assert not away.doorbell.clear()
        assert (ground.members.slot_of("there"), ground.members.slot_of("away")) == (3, NO_SLOT)
        assert ground.members.notices == 1

    run(scenario)
