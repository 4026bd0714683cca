"""Groups as an administrator sees them: lists, and one group page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Final

from penstock.cluster.groups.liveness import Liveness
from penstock.cluster.groups.state import Group
from penstock.cluster.groups.types import (
    NO_EPOCH,
    NO_OFFSET,
    GroupDescription,
    GroupInfo,
    GroupList,
    GroupPartition,
    MemberInfo,
)

LIST_MAX: Final = 200
"""Groups of one answer."""


def everything(_name: str) -> bool:
    """Nothing is hidden."""
    return True


def info(group: Group) -> GroupInfo:
    partitions = sum(len(owned.owners) for owned in group.owners.values())
    return GroupInfo(
        group.name,
        group.guarantee,
        group.state,
        group.generation,
        len(group.members),
        partitions,
    )


def list_groups(groups: Mapping[str, Group], after: str, sees: Callable[[str], bool]) -> GroupList:
    there = (name for name, group in groups.items() if name > after and group.meta and sees(name))
    names = nsmallest(LIST_MAX + 1, there)
    return GroupList([info(groups[name]) for name in names[:LIST_MAX]], len(names) > LIST_MAX)


def describe(
    group: Group,
    topics: Mapping[bytes, str],
    liveness: Liveness,
    counts: Mapping[str, int],
    skip: int,
    partitions_max: int,
    sees: Callable[[str], bool],
) -> GroupDescription:
    """`topics`: names by id. Members are told with the first page only. `sees`: of which topics the
    partitions are told at all."""
    owned = {
        (owners.topic, topic_id, partition)
        for topic_id, owners in group.owners.items()
        for partition in range(len(owners.owners))
    }
    kept = {
        (topics.get(topic_id, ""), topic_id, partition)
        for topic_id, partition, _ in group.all_offsets()
    }
    places = sorted(place for place in owned | kept if sees(place[0]))
    page = [_partition(group, *place) for place in places[skip : skip + partitions_max]]
    return GroupDescription(
        info(group),
        [] if skip else _members(group, liveness),
        page,
        skip + len(page) < len(places),
        group.skipped.records if group.skipped else 0,
        dict(counts),
    )


def _partition(group: Group, topic: str, topic_id: bytes, partition: int) -> GroupPartition:
    owner = group.by_number.get(group.owner(topic_id, partition))
    at = group.committed(topic_id, partition)
    return GroupPartition(
        topic,
        topic_id,
        partition,
        owner.member_id if owner else "",
        group.owners[topic_id].grants[partition] if owner else 0,
        at.offset if at else NO_OFFSET,
        at.leader_epoch if at else NO_EPOCH,
        at.committed_at if at else 0,
        group.windows[topic_id, partition].pairs() if at else [],
    )


def _members(group: Group, liveness: Liveness) -> list[MemberInfo]:
    owned = [number for owners in group.owners.values() for number in owners.owners]
    return [
        MemberInfo(
            member.member_id,
            member.instance_id,
            member.client,
            liveness.is_connected((group.name, member.member_id)),
            owned.count(member.number),
        )
        for member in sorted(group.members.values(), key=lambda member: member.number)
    ]
