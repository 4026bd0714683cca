"""Admits members to a group: checks room, guarantee, and the identity of a returning member."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from penstock.cluster.groups.records import Member
from penstock.cluster.groups.requests import go_together
from penstock.cluster.groups.state import Group
from penstock.cluster.groups.types import AT_MOST_ONCE, SHARED, ClientIdentity, GroupLimits
from penstock.core.errors import GroupError, ResourceLimitError, UnknownMemberError

Owns = Callable[[str], bool]
"""Whether the caller may act for the members of a principal."""


def owned_by_all(principal: str) -> bool:
    return True


def check_room(group: Group, groups: int, limits: GroupLimits) -> None:
    """For a member that is new; `groups`: how many there are."""
    if group.meta is None and groups >= limits.groups_max:
        raise ResourceLimitError(
            f"group {group.name!r} was not made: there are {groups} groups, the most there may be "
            "(groups_max): delete groups that nobody uses"
        )
    if len(group.members) >= limits.members_max:
        raise ResourceLimitError(
            f"nobody more may join group {group.name!r}: it has {len(group.members)} members, "
            "the most there may be (members_max)"
        )


def check_same(
    group: Group, member: Member, instance_id: str | None, client: ClientIdentity
) -> None:
    """A member comes back as the process and the instance that it is."""
    was = member.client
    if (was.pid, was.start_time, was.boot_id) != (client.pid, client.start_time, client.boot_id):
        raise UnknownMemberError(
            f"member {member.member_id!r} of group {group.name!r} is process {was.pid}, and not "
            f"{client.pid}: join again"
        )
    if member.instance_id != instance_id:
        raise GroupError(
            f"member {member.member_id!r} of group {group.name!r} joined as instance "
            f"{member.instance_id!r} and comes back as {instance_id!r}: join again"
        )


def check_guarantee(group: Group, guarantee: str) -> None:
    if group.members and not go_together(group.guarantee, guarantee):
        raise GroupError(
            f"nobody may join group {group.name!r} with guarantee {guarantee!r}: its members have "
            f"{group.guarantee!r}; use another group"
        )
    for lasting in (AT_MOST_ONCE, SHARED):
        if group.guarantee == lasting != guarantee:
            raise GroupError(
                f"nobody may join group {group.name!r} with guarantee {guarantee!r}: it is "
                f"{lasting} until it is deleted; use another group"
            )
    if guarantee == SHARED and group.meta is not None and group.guarantee != SHARED:
        raise GroupError(
            f"group {group.name!r} cannot be a share group: it has had plain members, until it is "
            "deleted; use another group"
        )


def refuse_twin(group: Group, other: Member) -> NoReturn:
    """Of two with one instance id the later one stays: each pushing the other out never ends."""
    raise GroupError(
        f"instance {other.instance_id!r} of group {group.name!r} was taken over by process "
        f"{other.client.pid}, which is connected: end one of the two, or give each process an "
        "instance_id of its own"
    )


def predecessor(group: Group, instance_id: str | None, owns: Owns) -> Member | None:
    """The member that has this instance id. Raises GroupError where the caller may not act for
    it."""
    if instance_id is None:
        return None
    found = next((m for m in group.members.values() if m.instance_id == instance_id), None)
    if found is not None and not owns(found.client.principal):
        raise GroupError(
            f"instance {instance_id!r} of group {group.name!r} belongs to another principal: use "
            "another instance_id, or another group"
        )
    return found
