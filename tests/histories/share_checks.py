"""What share groups promise: each record is one worker's at a time, until it is done or dead.

    lost job              the group is drained, and the record is neither acknowledged nor dead
    stale answer counted  the same, though a former holder, to whom it was no more, acknowledged it
    done again            a worker was told that its final answer is kept, and others got it later
    doubled lease         one lease of a record was handed out twice
    two holders           an answer is kept that was given after others had the record
    deliveries fell       a later lease of a record counts fewer deliveries than an earlier one
    deliveries repeated   it counts as many, and the earlier holder did not give it back
    done and dead         its acknowledgement is kept, and it has a dead letter
    delivered when dead   it was delivered more often than its dead letter tells
    dead without cause    it has a dead letter, was not rejected, and not delivered often enough
    dead without story    its dead letter tells of another record, or not of every failure
    key out of order      in a group with an order it was leased after a later record of its key
    keys side by side     the same, before the one before it of its key was over

A lease has a number that grows, so the numbers tell in which order a record's leases were granted,
whenever a worker that was stopped comes to hand one out. Who dies in between may have had a lease
of which nothing is written down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from histories.anomalies import Anomaly, found_in
from histories.events import OFFSET_BITS, SHARED, Dead, Ints, JobTaken
from histories.facts import COMMITTED, PLAIN, Facts

OFFSETS = (1 << OFFSET_BITS) - 1
FINAL = ("ack", "reject")
STORY_MAX = 5
"""Failures that a dead letter tells: the newest ones."""

Told = Iterator[tuple[str, str]]
"""Names of anomalies, each with a case in words."""


class ShareGroups:
    """The leases of each record of each share group, in the order in which they were granted."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.topics: dict[str, set[str]] = defaultdict(set)
        self.max_deliveries: dict[str, int] = {}
        self.ordered: set[str] = set()
        for reader in facts.history.readers:
            if reader.group is not None and reader.guarantee == SHARED:
                self.topics[reader.group] |= reader.topics
                self.max_deliveries[reader.group] = reader.max_deliveries
                if reader.order:
                    self.ordered.add(reader.group)
        self.leases: dict[str, dict[int, list[JobTaken]]] = {name: {} for name in self.topics}
        for taken in facts.history.jobs:
            group = facts.history.readers[taken.reader].group
            assert group is not None
            self.leases[group].setdefault(taken.place, []).append(taken)
        for places in self.leases.values():
            for leases in places.values():
                leases.sort(key=lambda taken: (taken.lease, taken.time))
        self.dead: dict[str, dict[int, list[Dead]]] = {name: {} for name in self.topics}
        for letter in facts.history.dead:
            self.dead[letter.group].setdefault(letter.place, []).append(letter)

    def tell(self, group: str, place: int, *leases: JobTaken) -> str:
        """What is known of a record."""
        return f"{group}: {self.facts.history.place_name(place)}" + "".join(
            f"; {self.tell_lease(taken)}" for taken in leases
        )

    def tell_lease(self, taken: JobTaken) -> str:
        who = self.facts.history.readers[taken.reader].who
        said = f"{who} had lease {taken.lease}, delivery {taken.deliveries}, t={taken.time}"
        if taken.answer is not None:
            kept = " (kept)" if taken.is_kept else ""
            said += f", {taken.answer} t={taken.answered}{kept}"
        return said


def shares(facts: Facts) -> Iterator[Anomaly]:
    """One check of all groups, so that their tables are made once."""
    groups = ShareGroups(facts)
    cases: dict[str, list[str]] = defaultdict(list)
    for group, places in groups.leases.items():
        for place, leases in places.items():
            for name, told in _of_record(groups, group, place, leases):
                cases[name].append(told)
        found = (
            *_of_the_end(groups, group),
            *_of_dead_letters(groups, group),
            *_of_keys(groups, group),
        )
        for name, told in found:
            cases[name].append(told)
    for name, all_ in cases.items():
        yield from found_in(name, all_)


def _of_record(groups: ShareGroups, group: str, place: int, leases: list[JobTaken]) -> Told:
    for before, after in pairwise(leases):
        told = groups.tell(group, place, before, after)
        if before.lease == after.lease:
            yield "doubled lease", told
            continue
        if after.deliveries < before.deliveries:
            yield "deliveries fell", told
        elif after.deliveries == before.deliveries and before.answer != "release":
            yield "deliveries repeated", told
        if before.is_kept and before.answer in FINAL:
            yield "done again", told
        elif before.is_kept and before.answered > after.time:
            yield "two holders", told


def _of_keys(groups: ShareGroups, group: str) -> Told:
    """In a group with an order. Whether a record died is known once the group is drained."""
    if group not in groups.ordered:
        return
    by_key: dict[tuple[int, str], list[JobTaken]] = defaultdict(list)
    for place, leases in groups.leases[group].items():
        for taken in leases:
            if taken.key is not None:
                by_key[place >> OFFSET_BITS, taken.key].append(taken)
    may_die = groups.max_deliveries[group] > 0 and group not in groups.facts.history.drained
    for leases in by_key.values():
        leases.sort(key=lambda taken: taken.lease)
        for before, after in pairwise(leases):
            told = groups.tell(group, after.place, after)
            told += f"; its key {after.key!r}, {groups.tell(group, before.place, before)}"
            if after.place < before.place:
                yield "key out of order", told
            elif after.place > before.place and not (
                (before.answer in FINAL and before.answered <= after.time)
                or before.place in groups.dead[group]
                or may_die
            ):
                yield "keys side by side", told


def _of_the_end(groups: ShareGroups, group: str) -> Told:
    """Once the group is drained, all is done or dead that readers of committed records see."""
    facts = groups.facts
    if group not in facts.history.drained:
        return
    place, value = facts.versions
    fate = facts.fate_of(value)
    due = facts.history.in_topics(place, groups.topics[group])
    due &= (fate == PLAIN) | (fate == COMMITTED)
    for at in _not_in(place[due], groups.dead[group]):
        leases = groups.leases[group].get(at, [])
        if leases and leases[-1].answer == "ack":
            continue
        is_stale = any(taken.answer == "ack" for taken in leases)
        yield "stale answer counted" if is_stale else "lost job", groups.tell(group, at, *leases)


def _not_in(places: Ints, others: Iterable[int]) -> Iterator[int]:
    known = set(others)
    return (at for at in dict.fromkeys(places.tolist()) if at not in known)


def _of_dead_letters(groups: ShareGroups, group: str) -> Told:
    facts, most = groups.facts, groups.max_deliveries[group]
    values = dict(zip(*(column.tolist() for column in facts.versions), strict=True))
    for place, letters in groups.dead[group].items():
        leases = groups.leases[group].get(place, [])
        for letter in letters:
            told = groups.tell(group, place, *leases) + f"; its dead letter tells of {letter}"
            if values.get(place) != letter.value or letter.failures != min(
                letter.deliveries, STORY_MAX
            ):
                yield "dead without story", told
            if any(taken.deliveries > letter.deliveries for taken in leases):
                yield "delivered when dead", told
            if any(taken.is_kept and taken.answer == "ack" for taken in leases):
                yield "done and dead", told
            rejected = any(
                taken.answer == "reject" and taken.deliveries == letter.deliveries
                for taken in leases
            )
            if not rejected and not 0 < most <= letter.deliveries:
                yield "dead without cause", told


CHECKS = (shares,)
