"""A shell around the group machine as a node's is: one log, answers after replay, reloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups import (
    Assignment,
    ClientIdentity,
    GroupDescription,
    GroupLimits,
    GroupMachine,
    GroupPartition,
    OwnedPartition,
    Release,
)

T = TypeVar("T")
PROCESS = ClientIdentity(100, 5000, "boot", "tester")


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def catalogue(**partitions: int) -> dict[str, tuple[bytes, int]]:
    return {name: (topic_id(name), count) for name, count in partitions.items()}


def compacted(log: Iterable[Record]) -> list[Record]:
    """The newest record of each key, in the order of the log."""
    records = list(log)
    newest = {record.key: place for place, record in enumerate(records)}
    return [records[place] for place in sorted(newest.values())]


class Shell:
    """`told`: the notices of the last decision."""

    def __init__(self, limits: GroupLimits | None = None, **partitions: int) -> None:
        self.limits = limits
        self.topics = catalogue(**partitions)
        self.log: list[Record] = []
        self.now = 1000.0
        self.made = 0
        self.told: frozenset[str] = frozenset()
        self.machine = GroupMachine(limits)
        self.take(self.machine.topics_changed(self.now, self.topics))

    def take(self, decision: Decision[T]) -> T:
        self.log += decision.records
        for record in decision.records:
            self.machine.replay(record)
        self.told = decision.notify
        return decision.answer

    def reload(self, log: Iterable[Record] | None = None) -> None:
        """Throw the machine away and make it again from its log."""
        self.machine = GroupMachine(self.limits)
        for record in self.log if log is None else log:
            self.machine.replay(record)
        self.take(self.machine.topics_changed(self.now, self.topics))

    def change_topics(self, **partitions: int) -> None:
        self.topics = catalogue(**partitions)
        self.take(self.machine.topics_changed(self.now, self.topics))
        self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        """Let time go by, and do what is due then."""
        self.now += seconds
        while (at := self.machine.deadline()) is not None and at <= self.now:
            self.take(self.machine.tick(self.now))

    # --- what clients ask ---
    def join(
        self,
        group: str = "g",
        topics: Iterable[str] = ("t",),
        guarantee: str = "at-least-once",
        *,
        member_id: str = "",
        pattern: str | None = None,
        instance_id: str | None = None,
        session_timeout: float = 30.0,
        processing_timeout: float | None = None,
        client: ClientIdentity = PROCESS,
    ) -> Assignment:
        self.made += 1
        decision = self.machine.join(
            self.now, group, member_id, f"m{self.made}", list(topics), pattern, guarantee,
            instance_id, session_timeout, processing_timeout, client,
        )  # fmt: skip
        return self.take(decision)

    def sync(self, member_id: str, *released: OwnedPartition, group: str = "g") -> Assignment:
        let_go = [Release(o.topic_id, o.partition, o.grant) for o in released]
        return self.take(self.machine.sync(self.now, group, member_id, let_go))

    def obey(self, member_id: str, group: str = "g") -> Assignment:
        """Sync, let go of what is asked back, and see what is left."""
        owned = self.sync(member_id, group=group).partitions
        return self.sync(member_id, *(o for o in owned if o.revoked), group=group)

    def settle(self, group: str = "g") -> None:
        """Every member obeys until nothing moves; each round settles what it can."""
        for _ in range(3):
            for member in self.describe(group).members:
                self.obey(member.member_id, group)
        assert self.describe(group).info.state != "moving"

    # --- what an administrator sees ---
    def describe(self, group: str = "g") -> GroupDescription:
        page = self.machine.describe(group, 0)
        assert not page.more
        return page

    def owners(self, group: str = "g") -> dict[tuple[str, int], str]:
        return {(p.topic, p.partition): p.member_id for p in self.describe(group).partitions}

    def offsets(self, group: str = "g") -> dict[tuple[str, int], int]:
        found = self.describe(group).partitions
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}


def durable(page: GroupDescription) -> list[GroupPartition]:
    """Its partitions without the commits before the last one, which compaction takes."""
    return [msgspec.structs.replace(each, commits=[]) for each in page.partitions]


def durable_state(machine: GroupMachine, now: float) -> object:
    """All that the machine tells of its groups and that has to survive a reload."""
    found = []
    for info in machine.list_groups("").groups:
        page = machine.describe(info.group, 0)
        synced = [machine.sync(now, info.group, m.member_id, ()) for m in page.members]
        assert not any(decision.records for decision in synced)
        members = [(m.member_id, m.instance_id, m.client, m.partitions) for m in page.members]
        answers = [decision.answer for decision in synced]
        found.append((page.info, members, durable(page), page.skipped, answers))
    return found
