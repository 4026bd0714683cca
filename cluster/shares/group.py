"""One share group: what it is set to, its partitions, and who waits. All but the policy, the pause
and the partitions is volatile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.cluster.shares.answers import LeaseGranted
from penstock.cluster.shares.breaker import Breaker, SharePause
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.policy import SharePolicy
from penstock.cluster.shares.runs import count
from penstock.cluster.shares.share_log import LoggedShare, Place
from penstock.cluster.shares.waiting_members import WaitingMembers


class KnownEnds(NamedTuple):
    """The part of a partition that may be read."""

    place: Place
    start: int
    end: int


@dataclass(slots=True)
class ShareGroup:
    """`turn`: how many acquisitions there were, so that partitions take turns."""

    policy: SharePolicy = field(default_factory=SharePolicy)
    is_set: bool = False
    partitions: dict[Place, LoggedShare] = field(default_factory=dict)
    waiting: WaitingMembers = field(default_factory=WaitingMembers)
    burying: dict[tuple[Place, int], tuple[str, float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    breaker: Breaker = field(default_factory=Breaker)
    pause: SharePause | None = None
    turn: int = 0

    def machine(self, place: Place) -> SharePartition | None:
        share = self.partitions.get(place)
        return None if share is None else share.whole()

    def allowed(
        self, member: str, places: Sequence[Place], topics: Collection[bytes], count_max: int
    ) -> tuple[Collection[Place], int]:
        """Of which partitions a member may get records now, and how many. While there are records
        that may have ended a worker it gets one of those, once it has nothing else. While the group
        is paused it gets nothing."""
        if self.pause is not None:
            return (), count_max
        of_topics = {place for place in places if place[0] in topics}
        machines = [(it, machine) for it in places if (machine := self.machine(it)) is not None]
        if any(machine.is_alone(member) for _, machine in machines):
            return (), 0
        suspected = {it for it, machine in machines if machine.suspects} & of_topics
        if not suspected:
            return of_topics, count_max
        is_free = not any(machine.holds(member) for _, machine in machines)
        return suspected, min(count_max, int(is_free))

    def available(self, places: Collection[Place], known: dict[Place, KnownEnds], most: int) -> int:
        """How many records of these partitions a member may get, up to so many."""
        found = 0
        for place in places if most else ():
            machine, ends = self.machine(place), known.get(place, KnownEnds(place, 0, 0))
            new = ends.end - ends.start
            found += new if machine is None else machine.available(ends.end, most)
        return min(found, most)

    def granted(self, grant: LeaseGranted) -> None:
        self.counts["acquired"] += count(grant.runs)
        again = [run for times, run in grant.deliveries if times > 1]
        self.counts["redelivered"] += count(again)
