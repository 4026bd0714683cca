"""Workers of share groups by raw messages, in the test's process or in one of their own.

`share_workers.py SOCKET GROUP TOPIC COUNT` acquires so many records, prints them as a line of JSON,
and holds them until it is killed.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Any

from group_members import MemberProcess, RawMember
from node_helpers import RawClient

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh


class RawWorker(RawMember):
    """A member of a share group: `ends` are those of the partitions of `topic`."""

    def __init__(self, socket: Path, group: str, topic: ms.TopicInfo, **options: Any) -> None:
        self.topic = topic
        self.leases: list[sh.LeasedRecords] = []
        super().__init__(socket, group, topic.name, guarantee="shared", **options)

    def acquire(
        self, count: int = 100, *answers: sh.LeaseAnswer, ends: dict[int, int] | None = None,
        settings: sh.ShareSettings | None = None,
    ) -> sh.RecordsAcquired:  # fmt: skip
        told = [
            sh.PartitionEnds(self.topic.topic_id, partition, 0, end)
            for partition, end in (ends or {}).items()
        ]
        request = sh.AcquireRecords(
            self.group, self.member_id, count, told, list(answers), settings
        )
        answer = self.client.ask(request, sh.RecordsAcquired)
        self.leases += answer.leases
        return answer

    def answer(self, lease: sh.LeasedRecords, **what: Any) -> sh.RecordsAcquired:
        """For a lease; `what`: `accepted=[(0, 3)]` and so on."""
        answer = sh.LeaseAnswer(lease.topic_id, lease.partition, lease.lease, **what)
        return self.acquire(0, answer)

    def describe(self) -> sh.ShareDescription:
        return self.client.ask(sh.DescribeShare(self.group), sh.ShareDescription)


def offsets(leases: list[sh.LeasedRecords]) -> list[tuple[int, int]]:
    """(partition, offset) of all that these hold."""
    return [
        (lease.partition, offset)
        for lease in leases
        for first, end in lease.runs
        for offset in range(first, end)
    ]


class WorkerProcess(MemberProcess):
    """A worker in a process of its own, to be killed; `held`: what it acquired."""

    def __init__(self, socket: Path, group: str, topic: str, count: int) -> None:
        super().__init__(socket, group, topic, str(count), program=__file__)
        self.held = [tuple(pair) for pair in self.next()]


def main(socket: str, group: str, topic: str, count: str) -> None:
    with RawClient(Path(socket), lo.KIND_ADMIN) as admin:
        found = admin.ask(ms.FindTopic(topic), ms.TopicFound)
    worker = RawWorker(Path(socket), group, found.topic)
    worker.acquire(int(count), ends={0: int(count)})
    print(json.dumps(offsets(worker.leases)), flush=True)
    select.select([], [], [], 3600.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
