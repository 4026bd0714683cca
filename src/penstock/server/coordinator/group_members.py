"""The process, session and client slot of each member of a group.

    joined ── Bye ──────────────► left
      │  └─── connection ended ─► disconnected: its session timeout runs; it joins again in time
      ├────── pidfd ────────────► died, in any state
      └────── state T for longer than stall_timeout ─► stalled (rule 8)

Remote members have no process here: only the end of their connection is seen.

Owns pidfds of its own, one a process, since a member may be without a connection. Decides nothing
about the consequences of an event. No timer runs while there are no members.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.cluster.groups import ClientIdentity
from penstock.core.errors import PenstockError
from penstock.ipc import liveness
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region
from penstock.server.node.attached_client import NO_SLOT, REMOTE_PID, AttachedClient

logger = logging.getLogger("penstock.coordinator")

LOOKS_A_STALL: Final = 4
"""A stopped process is seen so many times before it counts as stalled."""
LOOK_MAX: Final = 2.5


@dataclass(slots=True, eq=False)
class _Process:
    pid: int
    start_time: int
    pidfd: int
    members: set[str] = field(default_factory=set)
    stopped_since: float | None = None


@dataclass(slots=True, eq=False)
class WatchedMember:
    """`client` is None while it has no connection."""

    group: str
    member_id: str
    process: _Process
    client: AttachedClient | None


Event = Callable[[WatchedMember], None]


class WatchedMembers:
    """All members that this node watches, by member id."""

    def __init__(
        self, table: Region, boot_id: str, stall_timeout: float, *, died: Event, stalled: Event
    ) -> None:
        self._table = table
        self._boot_id = boot_id
        self._stall_timeout = stall_timeout
        self._died = died
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, WatchedMember] = {}
        self._processes: dict[tuple[int, int], _Process] = {}
        self._elsewhere = _Process(REMOTE_PID, REMOTE_PID, -1)
        """The entry that all remote members have as their process."""
        self._timer: asyncio.TimerHandle | None = None
        self.notices = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> WatchedMember | None:
        return self._members.get(member_id)

    def identity(self, client: AttachedClient) -> ClientIdentity:
        who = str(client.permits)
        if client.remote is not None:
            return ClientIdentity(REMOTE_PID, REMOTE_PID, "", client.name, who)
        return ClientIdentity(client.pid, client.start_time, self._boot_id, client.name, who)

    # --- in ---
    def prepare(self, client: AttachedClient) -> None:
        """See to it that the client's process can be watched. Raises `ResourceLimitError`; asked
        before anything is decided for it."""
        self._process_of(client)

    def joined(self, group: str, member_id: str, client: AttachedClient) -> None:
        """A member came, or came back by another session."""
        self._enter(WatchedMember(group, member_id, self._process_of(client), client))

    def found(self, group: str, member_id: str, identity: ClientIdentity) -> WatchedMember | None:
        """Takes up a member that the log tells of; None when its process is gone."""
        known = self._members.get(member_id)
        if known is not None:
            return known
        if identity.pid == REMOTE_PID:
            process = self._elsewhere
        elif identity.boot_id != self._boot_id:
            return None
        else:
            try:
                process = self._process(identity.pid, identity.start_time, None)
            except ProcessLookupError:
                return None
        member = WatchedMember(group, member_id, process, None)
        self._enter(member)
        return member

    def seen(self, member_id: str, client: AttachedClient) -> None:
        """A remote member that was without a connection asked something by that one."""
        member = self._members.get(member_id)
        if (
            member is not None
            and member.client is None
            and member.process is self._elsewhere
            and client.remote is not None
        ):
            member.client = client

    def _enter(self, member: WatchedMember) -> None:
        old = self._members.get(member.member_id)
        self._members[member.member_id] = member
        member.process.members.add(member.member_id)
        if old is not None and old.process is not member.process:
            self._let_go(old)

    def _process_of(self, client: AttachedClient) -> _Process:
        if client.remote is not None:
            return self._elsewhere
        return self._process(client.pid, client.start_time, client.pidfd)

    def _process(self, pid: int, start_time: int, pidfd: int | None) -> _Process:
        process = self._processes.get((pid, start_time))
        if process is None:
            fd = liveness.open_pidfd(pid, start_time) if pidfd is None else _duplicate(pidfd)
            process = self._processes[pid, start_time] = _Process(pid, start_time, fd)
            self._loop.add_reader(fd, self._ended, process)
            if self._timer is None:
                self._timer = self._loop.call_later(self._look_every, self._look)
        return process

    # --- out ---
    def left(self, member_id: str) -> None:
        member = self._members.pop(member_id, None)
        if member is not None:
            self._let_go(member)

    def _let_go(self, member: WatchedMember) -> None:
        process = member.process
        process.members.discard(member.member_id)
        if not process.members:
            self._forget(process)

    def _forget(self, process: _Process) -> None:
        if self._processes.pop((process.pid, process.start_time), None) is not None:
            self._loop.remove_reader(process.pidfd)
            os.close(process.pidfd)

    def of_client(self, client: AttachedClient) -> list[WatchedMember]:
        """The members behind that session."""
        return [member for member in self._members.values() if member.client is client]

    def keep_only(self, known: Iterable[str]) -> None:
        """Forgets members that the groups do not know any more."""
        for member_id in set(self._members).difference(known):
            self.left(member_id)

    def _ended(self, process: _Process) -> None:
        """Its pidfd says dead (rule 7)."""
        gone = [self._members.pop(member_id) for member_id in process.members]
        process.members.clear()
        self._forget(process)
        for member in gone:
            self._died(member)

    # --- stopped is not dead (rule 8) ---
    @property
    def _look_every(self) -> float:
        return min(self._stall_timeout / LOOKS_A_STALL, LOOK_MAX)

    def _look(self) -> None:
        """Finds processes that have been stopped for too long. Runs only while there are any."""
        self._timer = None
        now = time.monotonic()
        for process in list(self._processes.values()):
            if not process.members:  # what it was prepared for was refused
                self._forget(process)
                continue
            try:
                state = liveness.state(process.pid)
            except (PenstockError, OSError) as error:
                logger.error("process %d cannot be looked at: %s", process.pid, error)
                continue
            if state != "T":
                process.stopped_since = None
            elif process.stopped_since is None:
                process.stopped_since = now
            elif now - process.stopped_since >= self._stall_timeout:
                for member_id in list(process.members):
                    self._stalled(self._members[member_id])
        if self._processes:
            self._timer = self._loop.call_later(self._look_every, self._look)

    # --- notices ---
    def notify(self, member_ids: Iterable[str]) -> None:
        """Tells these members that their assignment changed. A member without a slot asks when it
        is back."""
        for member_id in member_ids:
            member = self._members.get(member_id)
            client = None if member is None else member.client
            if client is None or client.slot == NO_SLOT:
                continue
            ClientSlot(self._table, client.slot).give_notice()
            client.doorbell.ring()
            self.notices += 1

    def notice_of(self, client: AttachedClient) -> int:
        """Returns the notice word of that client's slot; 0 without one."""
        return 0 if client.slot == NO_SLOT else ClientSlot(self._table, client.slot).notice

    def slot_of(self, member_id: str) -> int:
        member = self._members.get(member_id)
        return NO_SLOT if member is None or member.client is None else member.client.slot

    def clear(self) -> None:
        """Watch nobody any more."""
        self._members.clear()
        for process in (*self._processes.values(), self._elsewhere):
            process.members.clear()
        for process in list(self._processes.values()):
            self._forget(process)

    def close(self) -> None:
        """Lets go of every descriptor."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.clear()


def _duplicate(pidfd: int) -> int:
    try:
        return os.dup(pidfd)
    except OSError as error:
        raise liveness.descriptor_limit_error("watching the process of a member") from error
