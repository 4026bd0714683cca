"""Committed offsets, and the right to move them: commits, claims, seeks and dropped offsets.

The functions only read one group, and return records. In an at-most-once group, records below the
committed offset may have been handed out, and those from it on never were. So there:

- a claim is granted only if it starts at the committed offset, and moves that to its end;
- `commit` never moves it back, and it does not expire;
- `seek` moves it back, and `delete` removes it, only where that was asked for explicitly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.cluster.decisions import Record
from penstock.cluster.groups.records import (
    ClaimMade,
    CommittedOffset,
    Member,
    Skipped,
    group_record,
    offset_record,
    owners_record,
    skipped_record,
)
from penstock.cluster.groups.state import Group
from penstock.cluster.groups.types import (
    NO_EPOCH,
    NO_OFFSET,
    Claim,
    Claimed,
    OffsetCommit,
    OffsetSeek,
    Topics,
)
from penstock.core.errors import (
    ConfigError,
    GroupError,
    StaleGenerationError,
    UnknownTopicError,
)

OFFSET_MAX: Final = (1 << 63) - 1


def micros(now: float) -> int:
    return int(now * 1e6)


def where(group: Group, topic_id: bytes, partition: int) -> str:
    """A partition as a message names it."""
    owners = group.owners.get(topic_id)
    return f"{owners.topic if owners else 'topic ' + topic_id.hex()}-{partition}"


# --- commit -------------------------------------------------------------------------------------
def commit(
    group: Group, member: Member, offsets: Sequence[OffsetCommit], now: float
) -> tuple[tuple[Record, ...], list[int]]:
    """Records, and the places in `offsets` whose grant is not current."""
    current: dict[tuple[bytes, int], OffsetCommit] = {}  # of two for one partition the later counts
    stale = []
    for place, o in enumerate(offsets):
        if group.is_current(member, o.topic_id, o.partition, o.grant):
            current[o.topic_id, o.partition] = o
        else:
            stale.append(place)
    if group.at_most_once:
        _check_forward(group, current.values())
    return commit_records(group, current.values(), now), stale


def commit_records(group: Group, offsets: Iterable[OffsetCommit], now: float) -> tuple[Record, ...]:
    """Of offsets whose grants are current. One that is committed already makes no record."""
    found = []
    for o in offsets:
        _check_offset(group, o.topic_id, o.partition, o.offset)
        was = group.committed(o.topic_id, o.partition)
        if was is None or was.offset != o.offset or was.leader_epoch != o.leader_epoch:
            new = CommittedOffset(o.offset, o.leader_epoch, micros(now))
            found.append(offset_record(group.name, o.topic_id, o.partition, new))
    return tuple(found)


def check_current(group: Group, member: Member, offsets: Sequence[OffsetCommit]) -> None:
    """For transactions: one stale grant refuses them all, and the group must allow going back."""
    if group.at_most_once:
        raise GroupError(
            f"offsets of group {group.name!r} cannot be committed with a transaction: it is "
            "at-most-once; use a group with guarantee='exactly-once'"
        )
    for offset in offsets:
        _check_offset(group, offset.topic_id, offset.partition, offset.offset)
        if not group.is_current(member, offset.topic_id, offset.partition, offset.grant):
            raise StaleGenerationError(
                f"offset {offset.offset} of {where(group, offset.topic_id, offset.partition)} was "
                f"not committed: {member.member_id} of group {group.name!r} does not own "
                f"it under grant {offset.grant} any more"
            )


def _check_forward(group: Group, offsets: Iterable[OffsetCommit]) -> None:
    for o in offsets:
        was = group.committed(o.topic_id, o.partition)
        if was is not None and o.offset < was.offset:
            raise GroupError(
                f"offset {o.offset} of {where(group, o.topic_id, o.partition)} was not committed: "
                f"group {group.name!r} is at-most-once and is at {was.offset}; to go back use "
                "seek and allow redelivery"
            )


def _check_offset(group: Group, topic_id: bytes, partition: int, offset: int) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise ConfigError(
            f"offset {offset} of {where(group, topic_id, partition)} in group {group.name!r} is "
            "no offset"
        )


def begin_records(
    group: Group, added: Mapping[bytes, Iterable[int]], now: float
) -> tuple[Record, ...]:
    """Of partitions that came to be under the eyes of a group's members: they begin at their
    beginning. Where members begin by themselves, say at the latest, would pass over what was
    written until they heard of it."""
    return tuple(
        offset_record(group.name, topic_id, partition, CommittedOffset(0, NO_EPOCH, micros(now)))
        for topic_id, partitions in added.items()
        for partition in partitions
        if group.committed(topic_id, partition) is None
    )


# --- claim --------------------------------------------------------------------------------------
def claim(
    group: Group, member: Member, claim_id: int, claims: Sequence[Claim], skipped: int, now: float
) -> tuple[tuple[Record, ...], Claimed, Counter[str]]:
    """Rule 18: compare and advance. The counter tells of claims granted, repeated and refused."""
    _check_claims(group, claims, skipped)
    records: list[Record] = []
    granted: list[bool] = []
    committed: list[int] = []
    counts: Counter[str] = Counter()
    for c in claims:
        was = group.committed(c.topic_id, c.partition)
        made = ClaimMade(claim_id, member.member_id, c.grant, c.start)
        outcome, at = "claims_refused", was.offset if was else NO_OFFSET
        if group.is_current(member, c.topic_id, c.partition, c.grant):
            if was is not None and was.claim == made and was.offset == c.end:
                outcome = "claims_repeated"
            elif was is None or was.offset == c.start:
                outcome, at = "claims_granted", c.end
                new = CommittedOffset(c.end, c.leader_epoch, micros(now), made)
                records.append(offset_record(group.name, c.topic_id, c.partition, new))
        granted.append(outcome != "claims_refused")
        committed.append(at)
        counts[outcome] += 1
    records += _skip(group, member, claim_id, skipped)
    return tuple(records), Claimed(granted, committed), counts


def _check_claims(group: Group, claims: Sequence[Claim], skipped: int) -> None:
    if not group.at_most_once:
        raise GroupError(
            f"group {group.name!r} is {group.guarantee}: only an at-most-once group claims offsets"
        )
    if len({(c.topic_id, c.partition) for c in claims}) < len(claims):
        raise ConfigError(f"a claim in group {group.name!r} names a partition twice")
    if bad := [c for c in claims if not 0 <= c.start < c.end <= OFFSET_MAX]:
        place = where(group, bad[0].topic_id, bad[0].partition)
        raise ConfigError(
            f"a claim in group {group.name!r} on {place} from {bad[0].start} to {bad[0].end} "
            "is no range of offsets"
        )
    if not 0 <= skipped <= OFFSET_MAX:
        raise ConfigError(f"{skipped} skipped records in group {group.name!r} is no number of them")


def _skip(group: Group, member: Member, claim_id: int, skipped: int) -> list[Record]:
    """Added once for each claim, however often it is repeated."""
    old = group.skipped or Skipped(0, {})
    if not skipped or old.last.get(member.member_id, -1) >= claim_id:
        return []
    last = {m: at for m, at in old.last.items() if m in group.members}
    last[member.member_id] = claim_id
    return [skipped_record(group.name, Skipped(old.records + skipped, last))]


# --- administration -----------------------------------------------------------------------------
def seek(
    group: Group, offsets: Sequence[OffsetSeek], allow_redelivery: bool, topics: Topics, now: float
) -> tuple[Record, ...]:
    names = {topic_id: (name, partitions) for name, (topic_id, partitions) in topics.items()}
    found = []
    for o in offsets:
        name, partitions = names.get(o.topic_id, ("", 0))
        if not 0 <= o.partition < partitions:
            raise UnknownTopicError(
                f"group {group.name!r} was not moved: there is no partition {o.partition} of "
                f"{name or 'a topic ' + o.topic_id.hex()}"
            )
        _check_offset(group, o.topic_id, o.partition, o.offset)
        was = group.committed(o.topic_id, o.partition)
        if group.at_most_once and not allow_redelivery and was and o.offset < was.offset:
            raise GroupError(
                f"group {group.name!r} was not moved: on {name}/{o.partition} it would go from "
                f"{was.offset} back to {o.offset}, and it is at-most-once; allow redelivery "
                "(--allow-redelivery) if records may be handed out again"
            )
        new = CommittedOffset(o.offset, o.leader_epoch, micros(now))
        found.append(offset_record(group.name, o.topic_id, o.partition, new))
    return tuple(found)


def delete(group: Group, places: Sequence[tuple[bytes, int]]) -> tuple[Record, ...]:
    if group.at_most_once:
        raise GroupError(
            f"no offset of group {group.name!r} was deleted: it is at-most-once, and without them "
            "would hand out records again; use seek, or delete the whole group"
        )
    found = []
    for topic_id, partition in places:
        if group.owner(topic_id, partition):
            raise GroupError(
                f"no offset of group {group.name!r} was deleted: a member owns "
                f"{where(group, topic_id, partition)}; stop it first, or use seek"
            )
        if group.committed(topic_id, partition):
            found.append(offset_record(group.name, topic_id, partition, None))
    return tuple(found)


# --- what goes by itself ------------------------------------------------------------------------
def orphaned(group: Group, there: Container[bytes]) -> Iterator[Record]:
    """Tombstones of offsets whose topic is gone."""
    for topic_id, partition, _ in group.all_offsets():
        if topic_id not in there:
            yield offset_record(group.name, topic_id, partition, None)


def expires_at(group: Group, retention: float) -> float | None:
    """When the next offset of a group without members may go, or the group itself if it has none;
    None while it has members, or for as long as its offsets are to stay."""
    if group.meta is None or group.meta.empty_since is None:
        return None
    if group.at_most_once and group.offsets:
        return None
    ages = [committed.committed_at / 1e6 for _, _, committed in group.all_offsets()]
    return max(group.meta.empty_since, min(ages, default=0.0)) + retention


def expired(group: Group, now: float, retention: float) -> Iterator[Record]:
    """Tombstones of offsets that were committed longer ago than their time."""
    for topic_id, partition, committed in group.all_offsets():
        if committed.committed_at / 1e6 + retention <= now:
            yield offset_record(group.name, topic_id, partition, None)


def removal(group: Group) -> Iterator[Record]:
    """Tombstones of all that a group without members is."""
    for topic_id, partition, _ in group.all_offsets():
        yield offset_record(group.name, topic_id, partition, None)
    for topic_id in group.owners:
        yield owners_record(group.name, topic_id, None)
    if group.skipped:
        yield skipped_record(group.name, None)
    yield group_record(group.name, None)
