"""Judges groups and transactions: why one is behind, or holds readers back, and what to do."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from penstock.client.admin.groups import GroupDescription, GroupMember, GroupPartition
    from penstock.client.transactions.listing import TransactionDescription
    from penstock.ipc.messages import NodeDescription
    from penstock.observe.sample import Sample

POLL_AGE_MAX: Final = 30.0
"""Seconds without a poll after which a member with lag counts as stuck."""
COMMIT_AGE_MAX: Final = 300.0
"""Seconds without a commit after which a member that polls, and has records in hand, does."""
HELD_MIN: Final = 10.0
"""Seconds from which on an open transaction is told of."""
HELD_MAX: Final = 60.0
"""Seconds for which one may hold readers back before that counts as wrong."""
PARTITIONS_SHOWN: Final = 5


class Complaint(msgspec.Struct, frozen=True):
    """`is_wrong` false: worth knowing, and no fault."""

    subject: str
    what: str
    advice: str
    is_wrong: bool = True


Complaints = Iterator[Complaint]
_NOBODY: Final[Mapping[int, Collection[tuple[str, int]]]] = {}


def judge_transaction(each: TransactionDescription, waiting: list[str]) -> Complaint:
    """Judges a transaction that is open for long; `waiting`: partitions and how much of them it
    holds back."""
    if each.state == "staged":
        what = f"a stage of {each.transactional_id!r} (epoch {each.producer_epoch})"
        advice = (
            "run its job again: a new attempt replaces the stage; or wait: the node gives it up "
            "after stage_timeout (15 minutes by default)"
        )
    else:
        what = f"a transaction of {each.transactional_id!r}"
        advice = (
            "see whether its producer hangs; started again, it aborts what was open; else the node "
            "does, after the producer's transaction_timeout"
        )
    where = f" in {', '.join(each.topics)}" if each.topics else ""
    more = f" and {len(waiting) - PARTITIONS_SHOWN} more" if len(waiting) > PARTITIONS_SHOWN else ""
    behind = f"; offsets above the last stable one: {', '.join(waiting[:PARTITIONS_SHOWN])}{more}"
    return Complaint(
        "transactions",
        f"{what} has held readers of committed records back for {each.open_for:.0f} s{where}"
        + (behind if waiting else ""),
        advice,
        is_wrong=each.open_for > HELD_MAX,
    )


def sample_of(node: NodeDescription) -> Sample:
    """Looks into the shared memory of a node of this host."""
    from penstock.observe.place import find_node
    from penstock.observe.sample import Observer

    with closing(Observer(find_node(f"shm://{node.data_folder}"))) as observer:
        return observer.sample()


def stopped_readers(node: NodeDescription) -> dict[int, set[tuple[str, int]]]:
    """Consumers on this host whose process is stopped: what each reads, by pid."""
    sample = sample_of(node)
    found: dict[int, set[tuple[str, int]]] = {}
    for each in sample.consumers:
        if each.stopped:
            parts = [sample.partitions.get(page) for page, _ in each.positions]
            reads = {(part.topic, part.partition) for part in parts if part is not None}
            found[each.pid] = found.get(each.pid, set()) | reads
    return found


def judge_group(
    group: GroupDescription, stopped: Mapping[int, Collection[tuple[str, int]]] = _NOBODY
) -> Complaints:
    """Finds the cause of a group's lag. `stopped`: the partitions of consumers whose process is
    stopped."""
    behind = [one for one in group.partitions if one.lag]
    if behind and not group.members:
        names = {(one.topic, one.partition) for one in behind}
        former = [pid for pid, reads in stopped.items() if not names.isdisjoint(reads)]
        what, advice = f"lag {group.lag}, and no member works on it", "start its consumers"
        if former:
            what += f"; pid {former[0]}, which reads from its partitions, is stopped"
            advice = f"`kill -CONT {former[0]}` lets it join again; or start other consumers"
        yield Complaint(f"group {group.group}", what, advice, is_wrong=bool(former))
        return
    for member in group.members:
        who = f"member {member.member_id} (pid {member.pid or 'of another host'})"
        yield from _uncommitted(group, member, who)
        own = [one for one in behind if one.member_id == member.member_id]
        if not own:
            continue
        lag, hand = sum(one.lag or 0 for one in own), sum(one.in_hand or 0 for one in own)
        if member.pid in stopped:
            yield Complaint(
                f"group {group.group}", f"{who} is stopped: lag {lag}, {hand} in hand",
                f"`kill -CONT {member.pid}` lets it go on",
            )  # fmt: skip
        elif member.poll_seconds is not None and member.poll_seconds > POLL_AGE_MAX:
            yield Complaint(
                f"group {group.group}",
                f"{who} has not polled for {member.poll_seconds:.0f} s: lag {lag}, {hand} in hand",
                "see what its process does (py-spy dump --pid); processing_timeout= would give its "
                "partitions to others",
            )
        elif hand and group.lag_seconds is not None and _commit_age(own) > COMMIT_AGE_MAX:
            yield Complaint(
                f"group {group.group}",
                f"{who} polls, and has committed nothing for {_commit_age(own):.0f} s: lag {lag}, "
                f"{hand} in hand",
                "call commit(), or read with guarantee='at-least-once', which does",
            )


def _uncommitted(group: GroupDescription, member: GroupMember, who: str) -> Complaints:
    """Notes a member with guarantee manual that has read and committed nothing; other guarantees
    commit by themselves. It is only a note: it may have begun later than its log, or be about to
    commit for the first time."""
    if group.guarantee != "manual":
        return
    parts = [one for one in group.partitions if one.member_id == member.member_id]
    read = sum(one.in_hand or 0 for one in parts if one.committed is None)
    if read:
        yield Complaint(
            f"group {group.group}",
            f"{who} has read {read} records, counted from the log's start, and committed none",
            "call commit(), or read with guarantee='at-least-once', which does: else all come "
            "again after a restart", is_wrong=False,
        )  # fmt: skip


def _commit_age(own: list[GroupPartition]) -> float:
    return time.time() - max((one.committed_at for one in own if one.committed_at), default=0.0)
