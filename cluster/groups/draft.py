"""A group's next state, worked out beside the group: what a decision about membership is made of.

A draft copies what it changes. `place` decides whom partitions are meant for, `finish` hands out
what is free and tells the records that make the group so. A partition moves in two steps, the first
of which may be long before the second:

    owner A, meant for A  --place-->  owner A, meant for B  (A is asked to let go, and may go on)
    owner A, meant for B  --release, drop-->  owner nobody  --finish-->  owner B, a new grant

What `finish` hands out has the draft's generation as its grant, which no decision before it had:
a partition is given once in a decision, so (partition, grant) names one owner for ever.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from penstock.cluster.decisions import Record
from penstock.cluster.groups.assignor import Shares, assign
from penstock.cluster.groups.patterns import matches
from penstock.cluster.groups.records import (
    Member,
    Meta,
    Owners,
    group_record,
    member_record,
    owners_record,
)
from penstock.cluster.groups.state import Group
from penstock.cluster.groups.types import SHARED, Assignment, OwnedPartition, Release, Topics


@dataclass(slots=True)
class Table:
    """`Owners` that can be written to."""

    topic: str
    owners: list[int] = field(default_factory=list)
    grants: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def grow(self, partitions: int) -> None:
        new = [0] * (partitions - len(self.owners))
        self.owners += new
        self.grants += new
        self.targets += new


class GroupDraft:
    """`generation` is the one that this decision makes, should anything change."""

    def __init__(self, group: Group, guarantee: str | None = None) -> None:
        old = group.meta or Meta("", 0, 1, None)
        self.group = group
        self.guarantee = old.guarantee if guarantee is None else guarantee
        self.generation = old.generation + 1
        self.next_number = old.next_number
        self.members = dict(group.members)
        self.tables = {
            topic_id: Table(o.topic, list(o.owners), list(o.grants), list(o.targets))
            for topic_id, o in group.owners.items()
        }
        self.notify: frozenset[str] = frozenset()
        self.added: dict[bytes, range] = {}
        """Partitions that came to be since the group last looked at what its members want."""

    # --- members ---
    def enter(self, member: Member) -> None:
        """A new member, or what is new about one."""
        self.members[member.member_id] = member
        self.next_number = max(self.next_number, member.number + 1)

    def drop(self, member_id: str) -> None:
        """Everything it had is nobody's, at once."""
        number = self.members.pop(member_id).number
        for table in self.tables.values():
            table.owners = [0 if owner == number else owner for owner in table.owners]
            table.targets = [0 if target == number else target for target in table.targets]

    def succeed(self, old_id: str, member: Member) -> None:
        """A static member is back: what was meant for its predecessor is the new one's at once, and
        what the predecessor had been asked to let go of is free."""
        old = self.members.pop(old_id).number
        self.enter(member)
        for table in self.tables.values():
            table.owners = [0 if owner == old else owner for owner in table.owners]
            table.targets = [member.number if t == old else t for t in table.targets]

    def release(self, member: Member, released: Iterable[Release]) -> None:
        """It let go of these; where a grant is not current it had lost them before."""
        for topic_id, partition, grant in ((r.topic_id, r.partition, r.grant) for r in released):
            if self.group.is_current(member, topic_id, partition, grant):
                self.tables[topic_id].owners[partition] = 0

    def regrant(self, topic_id: bytes, partition: int) -> None:
        """Its owner, if any, keeps it under a new grant: what it did under the old is stale."""
        table = self.tables.get(topic_id)
        if table and partition < len(table.owners) and table.owners[partition]:
            table.grants[partition] = self.generation

    # --- assignment ---
    def place(self, topics: Topics, partitions_max: int) -> None:
        """Decides again whom each partition of the subscribed topics is meant for."""
        there = {topic_id for topic_id, _ in topics.values()}
        self.tables = {i: table for i, table in self.tables.items() if i in there}
        shares: dict[bytes, Shares] = {}
        wanted = {} if self.guarantee == SHARED else _subscribers(self.members.values(), topics)
        before: Container[str] = ()
        if any(topics[topic][0] not in self.tables for topic in wanted):
            before = _subscribers(self.group.members.values(), topics)
        for topic, subscribers in sorted(wanted.items()):
            topic_id, partitions = topics[topic]
            is_known = topic in before or topic_id in self.tables
            table = self.tables.setdefault(topic_id, Table(topic))
            if is_known and len(table.owners) < partitions:
                self.added[topic_id] = range(len(table.owners), partitions)
            table.grow(partitions)
            shares[topic_id] = Shares(tuple(subscribers), table.owners, table.targets)
        targets = assign(shares, partitions_max)
        for topic_id, table in self.tables.items():
            table.targets = targets.get(topic_id) or [0] * len(table.owners)

    # --- what comes of it ---
    def finish(self, now: float) -> tuple[Record, ...]:
        """Hand out what is free, and tell the records; none if nothing changed."""
        for table in self.tables.values():
            for partition, owner in enumerate(table.owners):
                if not owner and table.targets[partition]:
                    table.owners[partition] = table.targets[partition]
                    table.grants[partition] = self.generation
        self.tables = {i: table for i, table in self.tables.items() if any(table.owners)}
        members, tables = self._changed_members(), self._changed_tables()
        self.notify = self._affected(tables)
        if not members and not tables and self.group.meta:
            self.generation -= 1
            return ()
        empty_since = None if self.members else now
        if not self.members and not self.group.members and self.group.meta:
            empty_since = self.group.meta.empty_since
        meta = Meta(self.guarantee, self.generation, self.next_number, empty_since)
        return (group_record(self.group.name, meta), *members, *tables.values())

    def _changed_members(self) -> list[Record]:
        old, name = self.group.members, self.group.name
        gone = [member_record(name, member_id, None) for member_id in old.keys() - self.members]
        new = [
            member_record(name, member_id, member)
            for member_id, member in self.members.items()
            if member != old.get(member_id)
        ]
        return sorted(gone) + new

    def _changed_tables(self) -> dict[bytes, Record]:
        found: dict[bytes, Record] = {}
        name, old = self.group.name, self.group.owners
        for topic_id in old:
            if topic_id not in self.tables:
                found[topic_id] = owners_record(name, topic_id, None)
        for topic_id, table in self.tables.items():
            new = Owners(table.topic, table.owners, table.grants, table.targets)
            if new != old.get(topic_id):
                found[topic_id] = owners_record(name, topic_id, new)
        return found

    def _affected(self, changed: Iterable[bytes]) -> frozenset[str]:
        """Returns the members that see a difference: former and new owners of partitions that moved
        or are asked back, and former members."""
        numbers: set[int] = set()
        for topic_id in changed:
            old, new = self.group.owners.get(topic_id), self.tables.get(topic_id)
            before = _seen(old.owners, old.grants, old.targets) if old else []
            after = _seen(new.owners, new.grants, new.targets) if new else []
            common = min(len(before), len(after))
            for was, now in zip(before, after, strict=False):
                if was != now:
                    numbers |= {was[0], now[0]}
            numbers.update(seen[0] for seen in before[common:] + after[common:])
        seeing = {m.member_id for m in self.members.values() if m.number in numbers}
        return frozenset(seeing | (self.group.members.keys() - self.members))

    def assignment(self, member: Member) -> Assignment:
        """Returns the assignment that this member has once the records are replayed."""
        number, group = member.number, self.group
        owned = []
        for topic_id, table in sorted(self.tables.items(), key=lambda item: item[1].topic):
            for partition, owner in enumerate(table.owners):
                if owner == number:
                    at = group.committed(topic_id, partition)
                    owned.append(
                        OwnedPartition(
                            table.topic,
                            topic_id,
                            partition,
                            table.grants[partition],
                            table.targets[partition] != number,
                            *((at.offset, at.leader_epoch) if at else ()),
                        )
                    )
        return Assignment(member.member_id, self.generation, tuple(owned))


def _subscribers(members: Iterable[Member], topics: Topics) -> dict[str, list[int]]:
    """Topics that there are and that somebody wants -> numbers of those who do, ascending."""
    found: dict[str, list[int]] = {}
    for member in sorted(members, key=lambda member: member.number):
        wanted = {topic for topic in member.topics if topic in topics}
        if member.pattern is not None:
            wanted.update(topic for topic in topics if matches(member.pattern, topic))
        for topic in wanted:
            found.setdefault(topic, []).append(member.number)
    return found


def _seen(owners: list[int], grants: list[int], targets: list[int]) -> list[tuple[int, int, bool]]:
    """By partition what its owner sees: that it is, under which grant, whether to let go."""
    return [(o, g, o != t) for o, g, t in zip(owners, grants, targets, strict=True)]
