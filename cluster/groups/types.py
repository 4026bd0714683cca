"""Inputs and answers of the group machine, and its bounds.

A partition is named by its topic's id and its number. A *grant* is the generation of the group in
which a partition was given to a member. Offsets are the next one wanted. Times are seconds of the
shell's clock, but for `committed_at`: microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1

AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
MANUAL: Final = "manual"
SHARED: Final = "shared"
"""Of a share group, whose members own no partitions: see `cluster.shares`."""
GUARANTEES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE, MANUAL, SHARED)

EMPTY: Final = "empty"
STABLE: Final = "stable"
MOVING: Final = "moving"

Topics = Mapping[str, tuple[bytes, int]]
"""Name of each topic there is -> (topic id, number of partitions)."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The bounds of the machine; going over one is a `ResourceLimitError` that names it.

    `offsets_retention`: seconds for which a group without members keeps its offsets. Those of
    at-most-once groups are kept until the group is deleted: without them it could hand out again.
    `decision_bytes`: about how much a decision about many groups takes; the rest follows in others.
    """

    groups_max: int = 1000
    members_max: int = 256
    member_topics_max: int = 256
    member_partitions_max: int = 1000
    session_timeout_max: float = 3600.0
    processing_timeout_max: float = 86_400.0
    offsets_retention: float = 7 * 86_400.0
    decision_bytes: int = 256 << 10


class ClientIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The process behind a member: pid and start time name it within a boot of its host.

    `principal`: whose the member is. Empty in records of versions that did not note it."""

    pid: int
    start_time: int
    boot_id: str
    client_id: str = ""
    principal: str = ""


class OwnedPartition(msgspec.Struct, frozen=True):
    """A partition of a member, and what is committed there. `revoked`: let go of it, and say so by
    `sync(released=...)`; until then nobody else gets it."""

    topic: str
    topic_id: bytes
    partition: int
    grant: int
    revoked: bool
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class Assignment(msgspec.Struct, frozen=True):
    """All that a member owns now; what it holds beside that is not its own any more."""

    member_id: str
    generation: int
    partitions: tuple[OwnedPartition, ...]


class Release(msgspec.Struct, frozen=True):
    """A partition that a member has let go of: nothing of it is processed any more."""

    topic_id: bytes
    partition: int
    grant: int


class OffsetCommit(msgspec.Struct, frozen=True):
    topic_id: bytes
    partition: int
    grant: int
    offset: int
    leader_epoch: int = NO_EPOCH


class OffsetSeek(msgspec.Struct, frozen=True):
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH


class Claim(msgspec.Struct, frozen=True):
    """Records from `start` (what is committed) to below `end`."""

    topic_id: bytes
    partition: int
    grant: int
    start: int
    end: int
    leader_epoch: int = NO_EPOCH


class Claimed(msgspec.Struct, frozen=True):
    """For each claim whether it is granted, and what is committed then (`NO_OFFSET`: nothing)."""

    granted: list[bool]
    committed: list[int]


class GroupInfo(msgspec.Struct, frozen=True):
    """`guarantee` is empty before the first member came; `state`: empty, stable or moving."""

    group: str
    guarantee: str
    state: str
    generation: int
    members: int
    partitions: int


class GroupList(msgspec.Struct, frozen=True):
    groups: list[GroupInfo]
    more: bool


class MemberInfo(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client: ClientIdentity
    connected: bool
    partitions: int


class GroupPartition(msgspec.Struct, frozen=True):
    """`member_id` is empty where nobody owns it; `committed_at` is 0 where nothing is committed.
    `commits`: the last ones, as `CommitWindow.pairs` has them."""

    topic: str
    topic_id: bytes
    partition: int
    member_id: str
    grant: int
    offset: int
    leader_epoch: int
    committed_at: int
    commits: list[int]


class GroupDescription(msgspec.Struct, frozen=True):
    """`skipped`: records that members reported as never handed out, all time. `counts` are those
    since the machine was made."""

    info: GroupInfo
    members: list[MemberInfo]
    partitions: list[GroupPartition]
    more: bool
    skipped: int
    counts: dict[str, int]
