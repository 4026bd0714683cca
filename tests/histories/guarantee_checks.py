"""What each guarantee promises a group, and what commits are worth.

    delivered twice       at most once: a place came to the group's handlers again
    unclaimed delivery    at most once: it came before its claim was known to be committed
    never delivered       at least once, exactly once: promised, and no member had it in the end
    committed again       a place came to a member that was assigned after it was committed
    lost commit           the group's place is below one that was acknowledged
    missing output        exactly once: an input has no output that anybody sees
    doubled output        exactly once: an input has two
    output without offset exactly once: there is an output of an input that counts as not consumed
    offset without output exactly once: an input counts as consumed and has no output
    output order          exactly once: outputs of one partition stand in another order than inputs

A group's place may be set by hand (`reset`): what goes back behind it may come again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from histories.anomalies import Anomaly, contains, found, found_in, look_up, rows_where
from histories.events import NOTHING, OFFSET_BITS, Commit, Ints, Reset, value_name
from histories.facts import COMMITTED, PLAIN, Facts

AT_LEAST_ONCE = ("at-least-once", "manual")
OFFSETS = (1 << OFFSET_BITS) - 1
EVER = np.iinfo(np.int64).max


class Groups:
    """The rows of `polls` of each group, and its members' guarantee and topics."""

    def __init__(self, facts: Facts) -> None:
        self.guarantee: dict[str, str] = {}
        self.topics: dict[str, set[str]] = defaultdict(set)
        self.outputs: dict[str, set[str]] = defaultdict(set)
        self.isolation: dict[str, bool] = {}
        members: dict[str, list[int]] = defaultdict(list)
        for number, reader in enumerate(facts.history.readers):
            if reader.group is not None and reader.guarantee is not None:
                self.guarantee[reader.group] = reader.guarantee
                self.topics[reader.group] |= reader.topics
                self.outputs[reader.group] |= reader.outputs
                self.isolation[reader.group] = reader.read_committed
                members[reader.group].append(number)
        self.rows = {
            group: rows_where(np.isin(facts.poll_reader, numbers))
            for group, numbers in members.items()
        }

    def of(self, *guarantees: str) -> list[str]:
        return [group for group, each in self.guarantee.items() if each in guarantees]


def at_most_once(facts: Facts) -> Iterator[Anomaly]:
    groups = Groups(facts)
    for group in groups.of("at-most-once"):
        yield from _twice(facts, group, groups.rows[group])
        yield from _unclaimed(facts, group, groups.rows[group])


def _twice(facts: Facts, group: str, rows: Ints) -> Iterator[Anomaly]:
    order = np.argsort(facts.poll_place[rows], kind="stable")
    place = facts.poll_place[rows[order]]
    _, starts, counts = np.unique(place, return_index=True, return_counts=True)
    allowed = np.ones(len(starts), np.int64)
    for reset in facts.history.resets:
        if reset.group == group and reset.to < reset.start:
            low, high = (reset.partition << OFFSET_BITS | at for at in (reset.to, reset.start))
            allowed += (place[starts] >= low) & (place[starts] < high)

    def tell(index: int) -> str:
        again = rows[order[starts[index] : starts[index] + counts[index]]]
        return f"{group}: " + "; ".join(facts.describe_poll(int(row)) for row in again[:4])

    yield from found("delivered twice", rows_where(counts > allowed), tell)


def _unclaimed(facts: Facts, group: str, rows: Ints) -> Iterator[Anomaly]:
    place = facts.poll_place[rows]
    claims = [each for each in facts.history.claims if each.group == group]
    claimed = _committed_by(claims, [], place >> OFFSET_BITS, facts.poll_time[rows])

    def tell(at: int) -> str:
        row = facts.describe_poll(int(rows[at]))
        return f"{group}: {row}, claimed by then: up to {int(claimed[at])}"

    yield from found("unclaimed delivery", rows_where(claimed <= place & OFFSETS), tell)


def _committed_by(
    commits: Iterable[Commit], resets: Iterable[Reset], partition: Ints, time: Ints
) -> Ints:
    """For each (partition, time): the highest offset acknowledged for it by then, 0 if none.

    A reset lowers it when it was asked for, and what was asked for before it was done is nothing.
    """
    result = np.zeros(len(partition), np.int64)
    by_partition: dict[int, list[Commit]] = defaultdict(list)
    for each in commits:
        by_partition[each.partition].append(each)
    back: dict[int, list[Reset]] = defaultdict(list)
    for reset in resets:
        back[reset.partition].append(reset)
    for number, mine in by_partition.items():
        rows = np.flatnonzero(partition == number)
        table = np.array([(each.time, each.offset, each.asked) for each in mine], np.int64)
        table = table[np.argsort(table[:, 0], kind="stable")]
        since = 0
        cuts = sorted(back[number], key=lambda reset: reset.asked)
        for index in range(len(cuts) + 1):
            until = cuts[index].asked if index < len(cuts) else EVER
            part = table[(table[:, 2] >= since) & (table[:, 0] < until)]
            wanted = rows[(time[rows] >= since) & (time[rows] < until)]
            if len(part) and len(wanted):
                at = np.searchsorted(part[:, 0], time[wanted], "right")
                tops = np.maximum.accumulate(part[:, 1])
                result[wanted] = np.where(at > 0, tops[np.maximum(at - 1, 0)], 0)
            since = cuts[index].time if index < len(cuts) else EVER
    return result


def commits(facts: Facts) -> Iterator[Anomaly]:
    """No member begins below what was acknowledged before it was assigned, and nothing that was
    acknowledged is taken back."""
    for group, rows in Groups(facts).rows.items():
        known = (*facts.history.commits, *facts.history.claims)
        mine = [each for each in known if each.group == group]
        resets = [each for each in facts.history.resets if each.group == group]
        yield from _committed_again(facts, group, rows, mine, resets)
        yield from _lost_commits(facts, group, mine, resets)


def _committed_again(
    facts: Facts, group: str, rows: Ints, mine: list[Commit], resets: list[Reset]
) -> Iterator[Anomaly]:
    eras = facts.history.eras
    start = np.array([each.start or 0 for each in eras] or [0], np.int64)[facts.poll_era[rows]]
    asked = np.array([each.asked or 0 for each in eras] or [0], np.int64)[facts.poll_era[rows]]
    place = facts.poll_place[rows]
    known = _committed_by(mine, resets, place >> OFFSET_BITS, asked)
    for reset in resets:  # while it was assigned, so nobody knows which came first
        meanwhile = (asked <= reset.time) & (start >= reset.asked)
        known[meanwhile & (place >> OFFSET_BITS == reset.partition)] = 0

    def tell(at: int) -> str:
        return (
            f"{group}: {facts.describe_poll(int(rows[at]))}, but {int(known[at])} was committed "
            f"before it was assigned at t={int(asked[at])}"
        )

    yield from found("committed again", rows_where(known > place & OFFSETS), tell)


def _lost_commits(
    facts: Facts, group: str, mine: list[Commit], resets: list[Reset]
) -> Iterator[Anomaly]:
    final = facts.history.drained.get(group)
    if final is None or not mine:
        return
    asked = facts.history.drained_at[group]
    partitions = np.array(sorted({each.partition for each in mine}), np.int64)
    known = _committed_by(mine, resets, partitions, np.full(len(partitions), asked))
    yield from found_in(
        "lost commit",
        [
            f"{group}: {'-'.join(map(str, facts.history.places[number]))} is at "
            f"{final.get(number, 0)}, {offset} was acknowledged"
            for number, offset in zip(partitions.tolist(), known.tolist(), strict=True)
            if final.get(number, 0) < offset
        ],
    )


def at_least_once(facts: Facts) -> Iterator[Anomaly]:
    """What was promised in the group's topics came to some member, once the group is drained."""
    groups = Groups(facts)
    for group in groups.of(*AT_LEAST_ONCE, "exactly-once"):
        if group in facts.history.drained:
            yield from _undelivered(facts, group, groups.topics[group], groups.rows[group])


def _undelivered(facts: Facts, group: str, topics: set[str], rows: Ints) -> Iterator[Anomaly]:
    value, row = facts.promised
    value, place = value[row != NOTHING], facts.ack_place[row[row != NOTHING]]
    value, place = value[place != NOTHING], place[place != NOTHING]
    due = facts.history.in_topics(place, topics)
    for reset in facts.history.resets:
        if reset.group == group and reset.to > reset.start:
            low, high = (reset.partition << OFFSET_BITS | at for at in (reset.start, reset.to))
            due &= ~((place >= low) & (place < high))
    came = np.unique(facts.poll_value[rows])
    yield from found(
        "never delivered",
        rows_where(due & ~contains(came, value)),
        lambda at: f"{group}: {facts.describe_value(int(value[at]))}",
    )


def exactly_once(facts: Facts) -> Iterator[Anomaly]:
    """Jobs: what they made of their inputs, as readers of committed records see it."""
    groups = Groups(facts)
    rows = facts.committed_view.rows
    rows = rows[facts.poll_source[rows] != NOTHING]
    for group, outputs in groups.outputs.items():
        if not outputs:
            continue
        mine = rows[facts.history.in_topics(facts.poll_place[rows], outputs)]
        _, first = np.unique(facts.poll_place[mine], return_index=True)
        mine = mine[first]  # each place once, in the order of places
        yield from _outputs(facts, group, groups.topics[group], mine)
        yield from _output_order(facts, group, mine)


def _outputs(facts: Facts, group: str, topics: set[str], mine: Ints) -> Iterator[Anomaly]:
    source = facts.poll_source[mine]
    order = np.argsort(source, kind="stable")
    ordered = source[order]
    again = rows_where(ordered[1:] == ordered[:-1])
    yield from found(
        "doubled output",
        again,
        lambda at: (
            f"{group}: of {value_name(int(ordered[at]))}: "
            f"{facts.describe_poll(int(mine[order[at]]))}; "
            f"{facts.describe_poll(int(mine[order[at + 1]]))}"
        ),
    )
    final = facts.history.drained.get(group)
    if final is None or not facts.committed_view.is_complete:
        return
    place, value = facts.versions
    fate = facts.fate_of(value)
    due = facts.history.in_topics(place, topics) & ((fate == PLAIN) | (fate == COMMITTED))
    place, value = place[due], value[due]
    made = contains(np.unique(source), value)
    ends = np.array([final.get(n, 0) for n in range(len(facts.history.places))], np.int64)
    consumed = (place & OFFSETS) < ends[place >> OFFSET_BITS]

    def tell(at: int) -> str:
        return (
            f"{group}: {facts.describe_value(int(value[at]))}; the group's place is "
            f"{int(ends[place[at] >> OFFSET_BITS])}"
        )

    yield from found("offset without output", rows_where(consumed & ~made), tell)
    yield from found("output without offset", rows_where(~consumed & made), tell)
    promised = contains(np.unique(facts.promised[0]), value)
    yield from found("missing output", rows_where(promised & ~made), tell)


def _output_order(facts: Facts, group: str, mine: Ints) -> Iterator[Anomaly]:
    place, value = facts.versions
    order = np.argsort(value, kind="stable")
    origin = look_up(value[order], place[order], facts.poll_source[mine], NOTHING)
    mine, origin = mine[origin != NOTHING], origin[origin != NOTHING]
    target = facts.poll_place[mine]
    order = np.lexsort((target, origin >> OFFSET_BITS, target >> OFFSET_BITS))
    target, origin, mine = target[order], origin[order], mine[order]
    same = (target[1:] >> OFFSET_BITS == target[:-1] >> OFFSET_BITS) & (
        origin[1:] >> OFFSET_BITS == origin[:-1] >> OFFSET_BITS
    )
    yield from found(
        "output order",
        rows_where(same & (origin[1:] < origin[:-1])),
        lambda at: (
            f"{group}: {facts.describe_poll(int(mine[at]))} was made of "
            f"{facts.history.place_name(int(origin[at]))} and stands before "
            f"{facts.describe_poll(int(mine[at + 1]))}, made of "
            f"{facts.history.place_name(int(origin[at + 1]))}"
        ),
    )


CHECKS = (at_most_once, commits, at_least_once, exactly_once)
