"""Groups: a list, one group with the reason why it is behind, and where it is to go on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.groups import (
    SHARED,
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupPartition,
    OffsetReset,
)
from penstock.console.pages.links import command, page_link
from penstock.console.pages.overview import GroupFigures, Trouble
from penstock.console.pages.plans import ActionPlan, table
from penstock.operations.judgement import POLL_AGE_MAX
from penstock.operations.wording import counted, human_age

GROUPS_SHOWN: Final = 100
PARTITIONS_SHOWN: Final = 200
"""Partitions of a group's page, those with most lag first."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in a list. `lag` None: it was not looked at yet."""

    group: str
    guarantee: str
    state: str
    members: int
    lag: int | None
    lag_seconds: float | None
    is_stuck: bool
    page: str


@dataclass(frozen=True, slots=True)
class GroupsShown:
    """A page of groups. `after`: where the next page begins; None: this is the last."""

    rows: tuple[GroupRow, ...]
    search: str
    after: str | None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A partition of a group. `waits_for`: the sentence why it does not go on."""

    one: GroupPartition
    poll_seconds: float | None
    commit_seconds: float | None
    waits_for: str


@dataclass(frozen=True, slots=True)
class GroupPageModel:
    group: GroupDescription
    partitions: tuple[GroupProgress, ...]
    left: int
    topics: tuple[str, ...]
    troubles: tuple[Trouble, ...]


def group_list(
    listed: Iterable[GroupListing], known: dict[str, GroupFigures], search: str, after: str,
    *, shared: bool,
) -> GroupsShown:  # fmt: skip
    """Groups, or share groups, whose names contain `search`, behind `after`."""
    chosen = [
        each
        for each in listed
        if each.group > after
        and search.lower() in each.group.lower()
        and (each.guarantee == SHARED) is shared
    ]
    rows = []
    for each in chosen[:GROUPS_SHOWN]:
        figures = known.get(each.group)
        rows.append(GroupRow(
            each.group, each.guarantee, each.state, each.members,
            None if figures is None else figures.lag,
            None if figures is None else figures.lag_seconds,
            figures is not None and any(one.is_wrong for one in figures.complaints),
            page_link("queue" if shared else "group", name=each.group),
        ))  # fmt: skip
    more = len(chosen) > GROUPS_SHOWN
    return GroupsShown(tuple(rows), search, rows[-1].group if more else None)


def group_model(group: GroupDescription, troubles: Iterable[Trouble]) -> GroupPageModel:
    """The page of a group."""
    members = {each.member_id: each for each in group.members}
    ranked = sorted(group.partitions, key=lambda one: (-(one.lag or 0), one.topic, one.partition))
    now = time.time()
    shown = []
    for one in ranked[:PARTITIONS_SHOWN]:
        member = members.get(one.member_id)
        since = None if one.committed_at is None else max(0.0, now - one.committed_at)
        shown.append(GroupProgress(
            one, None if member is None else member.poll_seconds, since, waits_for(one, member)
        ))  # fmt: skip
    return GroupPageModel(
        group, tuple(shown), max(0, len(ranked) - PARTITIONS_SHOWN),
        tuple(sorted({one.topic for one in group.partitions})), tuple(troubles),
    )  # fmt: skip


def waits_for(one: GroupPartition, member: GroupMember | None) -> str:
    """The reason why a partition of a group is where it is."""
    if one.lag == 0 or one.committed == one.high_watermark:
        return "new records: it has all"
    if member is None:
        return "a member: nobody reads it"
    if not member.is_connected:
        return "its member, which is not connected"
    if member.poll_seconds is not None and member.poll_seconds > POLL_AGE_MAX:
        return f"its member to poll, which it has not for {human_age(member.poll_seconds)}"
    if one.position is not None and one.position >= one.high_watermark:
        hand = counted(one.in_hand or 0, "record")
        return f"its member to finish: {hand} in hand, and nothing new behind them"
    if one.in_hand:
        return f"its member to finish: {counted(one.in_hand, 'record')} in hand"
    return "its member to read on"


# --- actions --------------------------------------------------------------------------------------
def seek_plan(
    url: str, group: str, topic: str, words: tuple[object, ...], told: list[OffsetReset], page: str
) -> ActionPlan:
    """The plan of a seek, from its dry run."""
    again = sum(one.redelivers for one in told)
    past = sum(one.skips for one in told)
    rows: list[tuple[object, ...]] = [
        (f"{one.topic}-{one.partition}", one.before, one.after, one.redelivers, one.skips)
        for one in told
    ]
    return ActionPlan(
        f"Let group {group} go on elsewhere",
        (
            f"{counted(again, 'record')} come again, {past} are passed over.",
            "Members that run go on there; what they have in hand they cannot commit any more.",
        ),
        command(url, "group", "seek", group, topic, *words), "Let it go on there", page,
        table(("Partition", "Committed", "Then", "Again", "Passed over"), rows),
        is_empty=not told,
    )  # fmt: skip


def forget_plan(url: str, group: GroupDescription) -> ActionPlan:
    committed = sum(one.committed is not None for one in group.partitions)
    says = [f"{counted(committed, 'committed offset')} of {group.group} are forgotten for ever."]
    if group.members:
        says.append(f"It has {counted(len(group.members), 'member')}: stop them first.")
    return ActionPlan(
        f"Delete group {group.group}", tuple(says), command(url, "group", "delete", group.group),
        "Delete it for ever", page_link("group", name=group.group),
        is_empty=bool(group.members),
    )  # fmt: skip
