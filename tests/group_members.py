"""Members of groups on raw clients, in the test's process or in one of their own.

`group_members.py SOCKET GROUP TOPIC...` is a process that joins, releases what it is asked to, and
prints each of its assignments as a line of JSON, until it is killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node_helpers import TIMEOUT, RawClient, environment, eventually

from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region


class RawMember:
    """A member by messages: joins when made."""

    def __init__(self, socket: Path, group: str, *topics: str, **options: Any) -> None:
        self._socket = socket
        self.group = group
        self._options = {
            "topics": list(topics), "pattern": None, "guarantee": "manual", **options
        }  # fmt: skip
        self.assignment = co.GroupAssignment("", 0, [])
        self.connect()

    def connect(self, socket: Path | None = None) -> None:
        """Attach and join, again or with the member id that is known; from now on there."""
        self._socket = socket or self._socket
        self.client = RawClient(self._socket, lo.KIND_CONSUMER)
        self.slot = ClientSlot(Region.of_fd(os.dup(self.client.fds[1])), self.client.welcome.slot)
        request = co.JoinGroup(self.group, self.member_id, **self._options)
        self.assignment = self.client.ask(request, co.GroupAssignment)

    @property
    def member_id(self) -> str:
        return self.assignment.member_id

    @property
    def owned(self) -> dict[int, co.Owned]:
        """By partition, what is not revoked."""
        return {each.partition: each for each in self.assignment.partitions if not each.revoked}

    def wait_notice(self, timeout: float = TIMEOUT) -> None:
        """Until something has changed since the last assignment, by the doorbell."""
        while self.slot.notice == self.assignment.notice:
            assert select.select([self.client.fds[2]], [], [], timeout)[0], "no notice came"
            os.eventfd_read(self.client.fds[2])

    def sync(self) -> co.GroupAssignment:
        """The assignment now; what is revoked is let go of."""
        while True:
            revoked = [each for each in self.assignment.partitions if each.revoked]
            released = [co.Release(each.topic_id, each.partition, each.grant) for each in revoked]
            request = co.SyncGroup(self.group, self.member_id, released)
            self.assignment = self.client.ask(request, co.GroupAssignment)
            if not any(each.revoked for each in self.assignment.partitions):
                return self.assignment

    def until_owns(self, *partitions: int) -> co.GroupAssignment:
        """Follow notices until exactly these are its own."""
        eventually(lambda: self.sync() and sorted(self.owned) == list(partitions), str(partitions))
        return self.assignment

    def commit(self, partition: int, offset: int, epoch: int = 0) -> list[int]:
        owned = self.owned[partition]
        commit = co.OffsetCommit(owned.topic_id, partition, owned.grant, offset, epoch)
        request = co.CommitOffsets(self.group, self.member_id, [commit])
        return self.client.ask(request, co.Committed).stale

    def claim(self, claim_id: int, partition: int, start: int, end: int) -> co.Claimed:
        owned = self.owned[partition]
        claim = co.Claim(owned.topic_id, partition, owned.grant, start, end)
        request = co.ClaimOffsets(self.group, self.member_id, claim_id, [claim])
        return self.client.ask(request, co.Claimed)

    def leave(self) -> None:
        self.client.ask(co.LeaveGroup(self.group, self.member_id), ms.Done)

    def close(self, *, bye: bool = False) -> None:
        self.client.close(bye=bye)


class MemberProcess:
    """A member in a process of its own, to be killed or stopped."""

    def __init__(self, socket: Path, group: str, *topics: str, program: str = __file__) -> None:
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(program), os.fspath(socket), group, *topics],
            bufsize=0,  # or a line behind the one that was read would wait unseen
            stdout=subprocess.PIPE,
            env=environment(),
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def next(self) -> Any:
        """What it says next: its assignment as a dict of member id, generation, partitions."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT)[0], "it says nothing"
        return json.loads(self.process.stdout.readline())

    def until_owns(self, *partitions: int) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = self.next()
            if found["partitions"] == list(partitions):
                return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main(socket: str, group: str, *topics: str) -> None:
    member = RawMember(Path(socket), group, *topics)
    while True:
        member.sync()
        found = member.assignment
        said = {
            "member_id": found.member_id,
            "generation": found.generation,
            "partitions": sorted(member.owned),
        }
        print(json.dumps(said), flush=True)
        member.wait_notice(3600.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
