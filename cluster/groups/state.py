"""One group as its records tell it, changed by `Group.replay` alone.

Every record sets one part of it, whatever the others are: so the newest record of each key is all
that counts, in any order of the keys, once or several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from penstock.cluster.groups import records
from penstock.cluster.groups.patterns import matches
from penstock.cluster.groups.records import CommittedOffset, Member, Meta, Owners, Skipped
from penstock.cluster.groups.types import AT_MOST_ONCE, EMPTY, MOVING, STABLE
from penstock.cluster.groups.windows import CommitWindow


class Group:
    """`meta` is None while no record of the group itself was replayed: it does not exist then.

    `by_number` has the members by the numbers under which `owners` names them. `offsets`: by topic
    id, then by partition; `windows` has the last commits of each of these.
    """

    __slots__ = ("by_number", "members", "meta", "name", "offsets", "owners", "skipped", "windows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.meta: Meta | None = None
        self.members: dict[str, Member] = {}
        self.by_number: dict[int, Member] = {}
        self.owners: dict[bytes, Owners] = {}
        self.offsets: dict[bytes, dict[int, CommittedOffset]] = {}
        self.windows: dict[tuple[bytes, int], CommitWindow] = {}
        self.skipped: Skipped | None = None

    # --- the one mutator ---
    def replay(self, kind: str, rest: list[Any], value: bytes | None) -> None:
        """Sets the part that the key names; `rest` is the key after kind and group."""
        match kind:
            case records.OFFSET:
                self._set_offset(rest[0], rest[1], value)
            case records.OWNERS:
                if value is None:
                    self.owners.pop(rest[0], None)
                else:
                    self.owners[rest[0]] = records.decode_owners(value)
            case records.MEMBER:
                if old := self.members.pop(rest[0], None):
                    self.by_number.pop(old.number, None)
                if value is not None:
                    member = self.members[rest[0]] = records.decode_member(value)
                    self.by_number[member.number] = member
            case records.GROUP:
                self.meta = None if value is None else records.decode_meta(value)
            case records.SKIPPED:
                self.skipped = None if value is None else records.decode_skipped(value)

    def _set_offset(self, topic_id: bytes, partition: int, value: bytes | None) -> None:
        if value is not None:
            new = records.decode_committed(value)
            self.offsets.setdefault(topic_id, {})[partition] = new
            window = self.windows.get((topic_id, partition))
            if window is None:
                window = self.windows[topic_id, partition] = CommitWindow()
            window.note(new.committed_at, new.offset)
        elif of_topic := self.offsets.get(topic_id):
            of_topic.pop(partition, None)
            self.windows.pop((topic_id, partition), None)
            if not of_topic:
                del self.offsets[topic_id]

    # --- reading ---
    @property
    def void(self) -> bool:
        """Whether nothing is left of it."""
        return not (self.meta or self.members or self.owners or self.offsets or self.skipped)

    @property
    def guarantee(self) -> str:
        return self.meta.guarantee if self.meta else ""

    @property
    def at_most_once(self) -> bool:
        return self.guarantee == AT_MOST_ONCE

    @property
    def generation(self) -> int:
        return self.meta.generation if self.meta else 0

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        moving = any(
            owner and owner != target
            for owned in self.owners.values()
            for owner, target in zip(owned.owners, owned.targets, strict=True)
        )
        return MOVING if moving else STABLE

    def committed(self, topic_id: bytes, partition: int) -> CommittedOffset | None:
        of_topic = self.offsets.get(topic_id)
        return of_topic.get(partition) if of_topic else None

    def owner(self, topic_id: bytes, partition: int) -> int:
        """The number of a partition's owner, 0 for nobody."""
        owned = self.owners.get(topic_id)
        known = owned is not None and 0 <= partition < len(owned.owners)
        return owned.owners[partition] if owned and known else 0

    def is_current(self, member: Member, topic_id: bytes, partition: int, grant: int) -> bool:
        """Whether this member owns the partition under this grant: what fences everything."""
        owned = self.owners.get(topic_id)
        return (
            owned is not None
            and 0 <= partition < len(owned.owners)
            and owned.owners[partition] == member.number
            and owned.grants[partition] == grant
        )

    def all_offsets(self) -> Iterator[tuple[bytes, int, CommittedOffset]]:
        for topic_id, of_topic in self.offsets.items():
            for partition, committed in of_topic.items():
                yield topic_id, partition, committed

    def concerned_by(self, names: Set[str], there: Set[bytes]) -> bool:
        """Whether these changed topics, or that only topics of `there` are left, is anything to
        it."""
        if not (self.owners.keys() <= there and self.offsets.keys() <= there):
            return True
        return any(
            not names.isdisjoint(member.topics)
            or (member.pattern is not None and any(matches(member.pattern, name) for name in names))
            for member in self.members.values()
        )
