"""Consumed offsets, as a transaction commits them beside its records.

Owns the batch of a group, which knows under whose grants it was read, and the two calls that a
transactional producer needs: `consumed_offsets` before the commit, `rewind` after an abort.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, TypeAlias

from msgspec import structs

from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk, Record, RecordBatch
from penstock.client.typed import K_co, V_co
from penstock.client.validation import check_pair
from penstock.core.errors import ConfigError
from penstock.ipc.coordination import GroupOffsets, OffsetCommit, Owned

NO_GRANT: Final = 0
"""Generations of a group begin at 1."""


@dataclass(frozen=True, slots=True)
class GrantedPartitions:
    """Partitions that a member owned at some time, with their grants. Never changed: replaced.

    `rewinds`: how often a partition was rewound until then, and the least offset it went back to.
    """

    group: str = ""
    member_id: str = ""
    owned: Mapping[TopicPartition, Owned] = field(default_factory=dict)
    rewinds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def commit_of(self, name: TopicPartition, offset: int, leader_epoch: int) -> OffsetCommit:
        owned = self.owned[name]
        return OffsetCommit(owned.topic_id, owned.partition, owned.grant, offset, leader_epoch)

    def is_still(self, before: GrantedPartitions, name: TopicPartition) -> bool:
        """Whether it owns that partition under the grant that it had then."""
        one, other = self.owned.get(name), before.owned.get(name)
        return one is not None and other is not None and one.grant == other.grant

    def rewound(self, places: Mapping[TopicPartition, int]) -> GrantedPartitions:
        """The same after partitions went back to these offsets."""
        found = dict(self.rewinds)
        for name, offset in places.items():
            times, least = found.get(name, (0, offset))
            found[name] = times + 1, min(least, offset)
        return replace(self, rewinds=found)

    def comes_again(self, before: GrantedPartitions, name: TopicPartition, end: int) -> bool:
        """Whether what was brought then, up to `end`, was rewound since."""
        times, least = self.rewinds.get(name, (0, 0))
        return times > before.rewinds.get(name, (0, 0))[0] and end > least


class OffsetSource(Protocol):
    """The group's consumer, as far as a transaction needs it."""

    def offsets_of(self, batch: GroupBatch[Any, Any] | None = None) -> GroupOffsets: ...

    def rewind(self, batch: GroupBatch[Any, Any] | None = None) -> None: ...


class GroupBatch(RecordBatch[V_co, K_co]):
    """A `RecordBatch` that a group's consumer brought. `ownership`: under which grants."""

    __slots__ = ("ownership", "source")

    def __init__(
        self,
        chunks: Sequence[Chunk],
        ownership: GrantedPartitions,
        source: OffsetSource | None = None,
    ) -> None:
        super().__init__(chunks)
        self.ownership = ownership
        self.source = source

    def _with(self, chunks: Sequence[Chunk]) -> Self:
        return type(self)(chunks, self.ownership, self.source)

    @property
    def consumed(self) -> GroupOffsets:
        """The offsets behind its records, to be committed by who owned them when they were read."""
        return self.consumed_under(self.ownership)

    def consumed_under(self, now: GrantedPartitions) -> GroupOffsets:
        """Returns the same offsets, with the rewound partitions under a grant that nobody has.

        Rewound records come again, so a transaction with them is refused as stale.
        """
        ends = {(chunk.topic, chunk.partition): chunk for chunk in self.chunks}
        owner = self.ownership
        return GroupOffsets(
            owner.group,
            owner.member_id,
            [
                structs.replace(commit, grant=NO_GRANT)
                if now.comes_again(owner, name, chunk.next_offset)
                else commit
                for name, chunk in ends.items()
                for commit in [owner.commit_of(name, chunk.next_offset, chunk.leader_epoch)]
            ],
        )


def as_batch(batch: object) -> GroupBatch[Any, Any]:
    """Returns a batch that a group's consumer brought, as it is. TypeError for anything else."""
    if isinstance(batch, GroupBatch):
        return batch
    raise TypeError(f"a batch that a group's consumer brought is wanted, not {batch!r}")


Committed: TypeAlias = "GroupBatch[Any, Any] | Record[Any, Any] | Mapping[TopicPartition, int]"
"""Input of `commit`: a batch, or a part of it; a record, with all before it in its partition; or
the offset of the next record wanted, by (topic, partition)."""


def as_committed(given: object) -> Committed:
    """The same, checked by its form. TypeError for anything else, `ConfigError` below 0."""
    if isinstance(given, GroupBatch | Record):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(
            "commit takes a batch that a group's consumer brought, a record of it, or {(topic, "
            f"partition): offset of the next record}}, not {given!r}"
        )
    found = {check_pair(name): offset for name, offset in given.items()}
    for (topic, number), offset in found.items():
        if not hasattr(offset, "__index__") or isinstance(offset, bool):
            raise TypeError(f"commit: the offset of {topic}-{number} is a number, not {offset!r}")
        if offset < 0:
            raise ConfigError(f"commit: offset {offset} of {topic}-{number} is negative")
    return {name: int(offset) for name, offset in found.items()}


Consumed: TypeAlias = (
    "GroupBatch[Any, Any] | OffsetSource | Iterable[GroupBatch[Any, Any] | OffsetSource]"
)
"""Input of a transaction: a group's batch, a group's consumer (all it handed out), or several."""


def _each(consumed: Consumed | None) -> list[GroupBatch[Any, Any] | OffsetSource]:
    if consumed is None:
        return []
    if isinstance(consumed, GroupBatch) or hasattr(consumed, "offsets_of"):
        return [consumed]  # type: ignore[list-item]
    if isinstance(consumed, str | RecordBatch) or not isinstance(consumed, Iterable):
        raise ConfigError(
            f"consumed={consumed!r}: a transaction commits what a consumer of a group brought: a "
            "batch of `client.consumer(..., group=...)`, or that consumer"
        )
    return [item for each in consumed for item in _each(each)]


def check_consumed(consumed: Consumed | None) -> Consumed | None:
    """Returns the input if a transaction may commit it and bring it again after an abort.

    Returns an iterable as a list. Raises `ConfigError`.
    """
    found = _each(consumed)
    for each in found:
        source = each.source if isinstance(each, GroupBatch) else each
        if getattr(source, "guarantee", None) == "at-most-once":
            raise ConfigError(
                "consumed=: that group is at-most-once, which commits before records are handed "
                "out; read with guarantee='exactly-once'"
            )
    return None if consumed is None else found


def batch_offsets(batch: GroupBatch[Any, Any]) -> GroupOffsets:
    """Returns the offsets to commit for a batch, from the consumer that brought it."""
    return batch.consumed if batch.source is None else batch.source.offsets_of(batch)


def consumed_offsets(consumed: Consumed | None) -> list[GroupOffsets]:
    """Returns the offsets to commit with a transaction's records.

    Of several batches of a partition it takes the furthest, in any order. Raises `ConfigError`
    for input that no group's consumer brought.
    """
    found: dict[tuple[str, str], dict[tuple[bytes, int, int], OffsetCommit]] = {}
    for each in _each(consumed):
        offsets = batch_offsets(each) if isinstance(each, GroupBatch) else each.offsets_of()
        furthest = found.setdefault((offsets.group, offsets.member_id), {})
        for one in offsets.offsets:
            place = one.topic_id, one.partition, one.grant
            if place not in furthest or furthest[place].offset < one.offset:
                furthest[place] = one
    return [GroupOffsets(*who, list(each.values())) for who, each in found.items() if each]


def rewind(consumed: Consumed | None) -> None:
    """After an abort: let the consumers bring it again. Partitions that others own by now are left
    to them."""
    for each in _each(consumed):
        if isinstance(each, GroupBatch):
            if each.source is not None:
                each.source.rewind(each)
        else:
            each.rewind()
