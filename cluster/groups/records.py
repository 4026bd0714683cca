"""The group machine's records: one for each thing of which the newest counts.

| key | value |
|---|---|
| ("group", group) | `Meta` |
| ("member", group, member id) | `Member` |
| ("owners", group, topic id) | `Owners` |
| ("offset", group, topic id, partition) | `CommittedOffset` |
| ("skipped", group) | `Skipped` |

Keys and values are msgpack arrays. A value may get further fields with defaults at its end; what
changes its meaning gets another kind of key.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.cluster.decisions import Record
from penstock.cluster.groups.types import ClientIdentity

GROUP: Final = "group"
MEMBER: Final = "member"
OWNERS: Final = "owners"
OFFSET: Final = "offset"
SKIPPED: Final = "skipped"


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """`empty_since`: seconds; None while there are members."""

    guarantee: str
    generation: int
    next_number: int
    empty_since: float | None


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group. `number` names it in `Owners`; a group never uses a number twice."""

    member_id: str
    number: int
    instance_id: str | None
    topics: tuple[str, ...]
    pattern: str | None
    session_timeout: float
    processing_timeout: float | None
    client: ClientIdentity


class Owners(msgspec.Struct, frozen=True, array_like=True):
    """By partition: the number of its owner (0: nobody), its grant, and whom it is meant for. Where
    the last is not the owner, the owner has been asked to let go."""

    topic: str
    owners: list[int]
    grants: list[int]
    targets: list[int]


class ClaimMade(msgspec.Struct, frozen=True, array_like=True):
    """The claim that moved an offset, so that its repetition is known. It ended at that offset."""

    claim_id: int
    member_id: str
    grant: int
    start: int


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """`committed_at`: microseconds since the epoch."""

    offset: int
    leader_epoch: int
    committed_at: int
    claim: ClaimMade | None = None


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """`last`: the claim with which each member reported last, so that a repetition adds nothing."""

    records: int
    last: dict[str, int]


_encode: Final = msgspec.msgpack.Encoder().encode
decode_key: Final = msgspec.msgpack.Decoder().decode
decode_meta: Final = msgspec.msgpack.Decoder(Meta).decode
decode_member: Final = msgspec.msgpack.Decoder(Member).decode
decode_owners: Final = msgspec.msgpack.Decoder(Owners).decode
decode_committed: Final = msgspec.msgpack.Decoder(CommittedOffset).decode
decode_skipped: Final = msgspec.msgpack.Decoder(Skipped).decode


def _record(key: tuple[Any, ...], value: msgspec.Struct | None) -> Record:
    return Record(_encode(key), None if value is None else _encode(value))


def group_record(group: str, meta: Meta | None) -> Record:
    return _record((GROUP, group), meta)


def member_record(group: str, member_id: str, member: Member | None) -> Record:
    return _record((MEMBER, group, member_id), member)


def owners_record(group: str, topic_id: bytes, owners: Owners | None) -> Record:
    return _record((OWNERS, group, topic_id), owners)


def offset_record(
    group: str, topic_id: bytes, partition: int, committed: CommittedOffset | None
) -> Record:
    return _record((OFFSET, group, topic_id, partition), committed)


def skipped_record(group: str, skipped: Skipped | None) -> Record:
    return _record((SKIPPED, group), skipped)
