"""Raft's fsync runs in a thread beside the event loop, and nothing counts as stored before it."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest
from event_loops import run
from golden_quorum import opened, writes
from unit.core.log_helpers import Call, MemoryStorage, refuse

from penstock.core.errors import PenstockError
from penstock.server.quorum import storage_thread as module
from penstock.server.quorum.raft_storage import RaftDisk
from penstock.server.quorum.storage_thread import Storing

BOUND = 10.0


class SlowDevice(MemoryStorage):
    """A device on which a sync takes until the test lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.syncs = 0
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if self.slow:
            self.syncs += 1
            self.begun.set()
            if not self.may_end.wait(BOUND):
                raise AssertionError("nobody else ran while the device synced")
        super().fdatasync(fd)


class Stored:
    """A disk behind its thread, and what the loop hears of it."""

    def __init__(self) -> None:
        self.device = SlowDevice()
        disk: RaftDisk = opened(self.device)[0]
        self.device.slow = True
        self.numbers: list[int] = []
        self.failures: list[PenstockError] = []
        self._heard = asyncio.Event()
        self.storing = Storing(disk, self._stored, self.failures.append)

    def _stored(self, number: int) -> None:
        self.numbers.append(number)
        self._heard.set()

    async def sync_begun(self) -> None:
        """Poll, in the loop, until the device is in a sync: possible only if the loop is free."""
        while not self.device.begun.is_set():
            await asyncio.sleep(0.001)

    async def hear(self, number: int) -> None:
        while not self.numbers or self.numbers[-1] < number:
            self._heard.clear()
            await self._heard.wait()


@pytest.mark.rule(26)
def test_the_loop_runs_while_raft_s_fsync_takes_its_time():
    async def main() -> None:
        stored = Stored()
        stored.storing.store(writes()[:1])
        await stored.sync_begun()
        for _ in range(100):  # turns of the loop within one sync
            await asyncio.sleep(0)
        assert stored.numbers == [], "told as stored before its fsync returned"
        stored.device.may_end.set()
        await stored.hear(1)
        stored.storing.close()
        assert stored.failures == []

    run(main())


@pytest.mark.rule(26)
def test_what_gathers_during_an_fsync_is_stored_by_the_next_one():
    async def main() -> None:
        stored = Stored()
        stored.storing.store(writes()[:1])
        await stored.sync_begun()
        for write in writes()[1:4]:
            stored.storing.store([write])
        assert stored.device.syncs == 1
        stored.device.may_end.set()
        await stored.hear(4)
        stored.storing.close()
        assert stored.numbers == [1, 4]
        assert stored.device.syncs == 2
        assert stored.failures == []

    run(main())


def test_what_finds_no_room_is_told_once_it_is_stored(monkeypatch):
    monkeypatch.setattr(module, "RETRY", 0.01)

    async def main() -> None:
        stored = Stored()
        stored.device.slow, full = False, [True]

        def fault(call: Call) -> None:
            if full[0] and call.name in ("pwritev", "create", "allocate"):
                refuse(call, errno.ENOSPC)

        stored.device.fault = fault
        stored.storing.store(writes()[:2])
        while stored.storing.refusals < 3:
            await asyncio.sleep(0.001)
        assert stored.numbers == []
        full[0] = False
        await stored.hear(2)
        stored.storing.close()
        assert stored.numbers == [2]
        assert stored.failures == []
        assert opened(stored.device.power_cut())[1].term == writes()[1].term

    run(main())
