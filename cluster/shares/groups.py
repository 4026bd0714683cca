"""All share groups of a coordinator: which worker gets records of which partition.

`cluster.groups` decides about membership; here a member is a name, and `leave` tells of one that is
gone. Handlers decide records, `replay` alone changes what is so. Volatile, and
safe to lose: which members wait for work, who writes which dead letter, and counts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares.answers import LeaseAnswered, LeaseGranted, ShareDecision
from penstock.cluster.shares.breaker import SharePause, decode_pause
from penstock.cluster.shares.group import KnownEnds, ShareGroup
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.policy import SharePolicy, decode_policy
from penstock.cluster.shares.runs import Runs, count
from penstock.cluster.shares.share_log import DELTA, RUN, SNAPSHOT, LoggedShare, Place, Uniform
from penstock.cluster.shares.state import FailedDelivery
from penstock.core.errors import GroupError, ResourceLimitError

SHARE: Final = "share"
PAUSE: Final = "share pause"
PARTITIONS_MAX: Final = 1000
"""Partitions of a group."""
TOMBSTONES_MAX: Final = 500
WAKES_MAX: Final = 100
"""Partitions that one tick wakes."""
EXPIRY_STEPS: Final = 20
"""An old lease ends late by up to one of so many parts of `max_lease`."""
BURY_WITHIN: Final = 30.0
"""Seconds that a member has for a dead letter before another one is asked to write it."""
LEASE_RUNS_MAX: Final = 500
"""Runs of what one request acquires: an answer is one message."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_key: Final = msgspec.msgpack.Decoder().decode


class GrantedRecords(NamedTuple):
    place: Place
    granted: LeaseGranted


class Acquisition(NamedTuple):
    """`frontiers`: of the partitions that were asked about."""

    granted: tuple[GrantedRecords, ...]
    frontiers: tuple[int, ...]
    is_full: bool
    is_paused: bool = False


class CondemnedOffset(NamedTuple):
    """A condemned record, and its story."""

    place: Place
    offset: int
    deliveries: int
    failures: Sequence[FailedDelivery]


class ShareGroups:
    """All share groups of a coordinator. `uniform` draws the jitter of a wait."""

    def __init__(self, uniform: Uniform) -> None:
        self._uniform = uniform
        self._groups: dict[str, ShareGroup] = {}
        self._due: list[tuple[float, str, Place]] = []
        self._planned: dict[tuple[str, Place], float] = {}
        self._looks: dict[tuple[str, Place], float] = {}
        """Not before that time it is looked again for leases that are too old."""
        self._large: dict[tuple[str, Place], None] = {}
        self._tripped: list[tuple[str, str]] = []

    # --- what is so ---
    def replay(self, record: Record) -> None:
        """The only mutator of what is logged. Records of other machines are passed over."""
        kind, *rest = _decode_key(record.key)
        if kind == SHARE:
            self._replay_policy(rest[0], record.value)
        elif kind == PAUSE:
            group = self._groups.setdefault(rest[0], ShareGroup())
            group.pause = None if record.value is None else decode_pause(record.value)
            group.breaker.forget()
            self._forget_void(rest[0])
        elif kind in (SNAPSHOT, RUN, DELTA):
            name, topic_id, partition, side, at = rest
            group = self._groups.setdefault(name, ShareGroup())
            place = (topic_id, partition)
            share = group.partitions.get(place)
            if share is None:
                share = group.partitions[place] = self._new_share(name, group, place)
            share.replay(kind, side, at, record.value)
            if share.is_void:
                del group.partitions[place]
                self._looks.pop((name, place), None)
                self._forget_void(name)
            else:
                self._plan(name, share)

    def _replay_policy(self, name: str, value: bytes | None) -> None:
        group = self._groups.setdefault(name, ShareGroup())
        group.is_set = value is not None
        if value is not None:
            group.policy = decode_policy(value)
            limits = group.policy.limits()
            for share in group.partitions.values():
                share.limit(limits)
                self._planned.pop((name, share.place), None)
                self._looks.pop((name, share.place), None)
                self._plan(name, share)
        self._forget_void(name)

    def _forget_void(self, name: str) -> None:
        group = self._groups[name]
        if not group.is_set and not group.partitions and group.pause is None:
            del self._groups[name]

    def _plan(self, name: str, share: LoggedShare, looked: float | None = None) -> None:
        """When time does something with it next. `looked`: nothing was to be done then."""
        key = (name, share.place)
        if share.is_snapshot_due:
            self._large[key] = None
        if share.machine is None:
            return
        due_us, end_us = share.machine.next_wake_us(), share.machine.first_end_us()
        due = [due_us / 1e6] if due_us is not None else []
        if end_us is None:
            self._looks.pop(key, None)
        else:
            if looked is not None:
                self._looks[key] = looked + share.limits.max_lease / EXPIRY_STEPS
            due.append(max(end_us / 1e6, self._looks.get(key, 0.0)))
        if due and min(due) < self._planned.get(key, float("inf")):
            self._planned[key] = min(due)
            heapq.heappush(self._due, (min(due), *key))

    def names(self) -> Collection[str]:
        return self._groups.keys()

    def counts(self, name: str) -> dict[str, int]:
        """Since this coordinator serves."""
        group = self._groups.get(name)
        return dict(group.counts) if group else {}

    def totals(self) -> Counter[str]:
        """The counts of all groups."""
        return sum((group.counts for group in self._groups.values()), Counter())

    def count(self, name: str, what: str, records: int) -> None:
        """Counts so many more of that kind."""
        self._groups[name].counts[what] += records

    def policy(self, name: str) -> SharePolicy:
        group = self._groups.get(name)
        return group.policy if group else SharePolicy()

    def pause_of(self, name: str) -> SharePause | None:
        group = self._groups.get(name)
        return group.pause if group else None

    def take_tripped(self) -> list[tuple[str, str]]:
        """Groups that the breaker has paused since the last call, and why."""
        tripped, self._tripped = self._tripped, []
        return tripped

    def partitions(self, name: str) -> Iterator[tuple[Place, SharePartition]]:
        """Those that the group has begun with, in order."""
        group = self._groups.get(name)
        for place, share in sorted(group.partitions.items()) if group else ():
            if share.machine is not None:
                yield place, share.machine

    def holders(self) -> Iterator[tuple[str, str]]:
        """(group, member) of every member that has something to answer for."""
        for name, group in self._groups.items():
            members = {
                member for share in group.partitions.values() if share.machine is not None
                for member in share.machine.members()
            }  # fmt: skip
            yield from ((name, member) for member in sorted(members))

    # --- what workers ask ---
    def configure(self, name: str, policy: SharePolicy) -> Decision[None]:
        """How the group delivers from now on: what the last member to join said."""
        policy.limits()
        group = self._groups.get(name)
        if group is not None and group.is_set and group.policy == policy:
            return Decision((), None)
        return Decision((Record(_encode((SHARE, name)), _encode(policy)),), None)

    def accept(
        self, name: str, place: Place, lease: int, runs: Runs, how: str = "accepted"
    ) -> Decision[LeaseAnswered]:
        """They are done. `how`: as what they are counted."""
        return self._answered(name, place, how, lambda it: it.accept(lease, runs), runs)

    def release(
        self, name: str, place: Place, lease: int, runs: Runs, by: str
    ) -> Decision[LeaseAnswered]:
        return self._answered(name, place, "released", lambda it: it.release(lease, runs), runs, by)

    def fail(
        self, now: float, name: str, place: Place, lease: int, runs: Runs, reason: str,
        delay: float | None, by: str,
    ) -> Decision[LeaseAnswered]:  # fmt: skip
        return self._answered(
            name, place, "failed",
            lambda it: it.fail(_us(now), lease, runs, reason, delay), runs, by, now,
        )  # fmt: skip

    def delay(
        self, now: float, name: str, place: Place, lease: int, runs: Runs,
        due_us: int | Sequence[int], by: str,
    ) -> Decision[LeaseAnswered]:  # fmt: skip
        return self._answered(
            name, place, "delayed", lambda it: it.delay(_us(now), lease, runs, due_us), runs, by
        )

    def extend(
        self, now: float, name: str, place: Place, lease: int, runs: Runs, seconds: float
    ) -> Decision[LeaseAnswered]:
        def decide(machine: SharePartition) -> ShareDecision[LeaseAnswered]:
            return machine.extend(_us(now), lease, runs, seconds)

        return self._answered(name, place, "extended", decide, runs)

    def reject(
        self, now: float, name: str, place: Place, lease: int, runs: Runs, reason: str, by: str
    ) -> Decision[LeaseAnswered]:
        return self._answered(
            name, place, "rejected",
            lambda it: it.reject(_us(now), lease, runs, reason), runs, by, now,
        )  # fmt: skip

    def _answered(
        self,
        name: str,
        place: Place,
        what: str,
        decide: Callable[[SharePartition], ShareDecision[LeaseAnswered]],
        runs: Runs,
        by: str | None = None,
        now: float = 0.0,
    ) -> Decision[LeaseAnswered]:
        """`by`: who answered so that others may have something to do now. `now`: where it may
        condemn."""
        share = self.share(name, place)
        if share is None or share.machine is None:
            return Decision((), LeaseAnswered(0, runs))
        deltas, answer = decide(share.machine)
        counts = self._groups[name].counts
        counts[what] += answer.settled
        counts["stale"] += count(answer.stale)
        if not deltas:
            return Decision((), answer)
        self._groups[name].breaker.note(answer.settled * (what == "accepted"), 0)
        more = self._died(now, name, answer.condemned)
        notify = self.called(name, answer.freed if by is None else answer.settled, by)
        return Decision((share.record_of(deltas), *more), answer, notify)

    def _died(self, now: float, name: str, dead: int) -> tuple[Record, ...]:
        """So many records of the group are condemned. Pauses it where that is too much."""
        group = self._groups[name]
        group.counts["condemned"] += dead
        if not dead or group.pause is not None:
            return ()
        group.breaker.turn(now)
        group.breaker.note(0, dead)
        if not (why := group.breaker.complaint(group.policy.dead_share)):
            return ()
        group.counts["breaker_trips"] += 1
        self._tripped.append((name, why))
        return (_paused(name, SharePause(_us(now), "", why)),)

    def acquire(
        self, now: float, name: str, member: str, count_max: int, ends: Sequence[KnownEnds],
        topics: Collection[bytes],
    ) -> Decision[Acquisition]:  # fmt: skip
        """At most so many records of these topics for the member: what is ready first, and what is
        new up to the ends that it knows."""
        group = self._groups.get(name) or ShareGroup()
        known = {each.place: each for each in ends}
        places = sorted(group.partitions.keys() | known.keys())
        if len(places) > PARTITIONS_MAX:
            raise ResourceLimitError(
                f"share group {name!r} would read more than {PARTITIONS_MAX} partitions "
                "(PARTITIONS_MAX): use several groups"
            )
        made = {place: self._begun(name, group, known[place]) for place in known
                if place[0] in topics and group.machine(place) is None}  # fmt: skip
        records = [record for _, _, first in made.values() for record in first]
        granted: list[GrantedRecords] = []
        frontiers, is_full, runs_left = dict[Place, int](), False, LEASE_RUNS_MAX
        allowed, count_max = group.allowed(member, places, topics, count_max)
        count_max = group.waiting.part_for(
            member, count_max, lambda most: group.available(allowed, known, most)
        )
        group.turn += 1
        group.breaker.turn(now)
        at = group.turn % len(places) if places else 0
        for place in places[at:] + places[:at]:
            if place in made:
                share, machine, _ = made[place]
            elif (there := group.machine(place)) is not None:
                share, machine = group.partitions[place], there
            else:
                continue
            frontiers[place] = machine.frontier
            if count_max <= 0 or runs_left <= 0 or place not in allowed:
                continue
            end = known[place].end if place in known else machine.frontier
            deltas, grant = machine.acquire(_us(now), member, count_max, end, runs_left)
            is_full = is_full or (end > machine.frontier and machine.is_full)
            if grant is None:
                continue
            records.append(
                share.first_record_of(deltas) if place in made else share.record_of(deltas)
            )
            granted.append(GrantedRecords(place, grant))
            count_max, runs_left = count_max - count(grant.runs), runs_left - len(grant.runs)
            group.granted(grant)
            frontiers[place] = max(frontiers[place], grant.runs[-1][1])
        group.counts["held_up"] += is_full
        group.waiting.asked(member, waits=not granted and count_max > 0)
        if records and name not in self._groups:
            self._groups[name] = group  # its volatile part
        answer = Acquisition(
            tuple(granted), tuple(frontiers.get(each.place, each.start) for each in ends), is_full,
            group.pause is not None,
        )  # fmt: skip
        return Decision(tuple(records), answer)

    def _begun(
        self, name: str, group: ShareGroup, ends: KnownEnds
    ) -> tuple[LoggedShare, SharePartition, list[Record]]:
        """A partition that the group begins with."""
        share = self._new_share(name, group, ends.place)
        start = ends.end if group.policy.start == "latest" else ends.start
        return share, *share.begin(start)

    def dead_letters(
        self, now: float, name: str, member: str, topics: Collection[bytes], count_max: int
    ) -> list[CondemnedOffset]:
        """Condemned records that this member is to write the dead letters of. Volatile: another one
        is asked once it has taken too long."""
        group = self._groups.get(name)
        found: list[CondemnedOffset] = []
        if group is None:
            return found
        for place, share in group.partitions.items():
            if share.machine is None or place[0] not in topics:
                continue
            for first, end in share.machine.condemned(count_max):
                for offset in range(first, end):
                    who, until = group.burying.get((place, offset), ("", 0.0))
                    if len(found) == count_max:
                        return found
                    if who != member and now < until:
                        continue
                    group.burying[place, offset] = (member, now + BURY_WITHIN)
                    failures = share.machine.failures(offset)
                    times = share.machine.deliveries(offset)
                    found.append(CondemnedOffset(place, offset, times, failures))
        return found

    def bury(self, name: str, place: Place, runs: Runs) -> Decision[int]:
        """Their dead letters are written. How many of them were condemned."""
        share = self.share(name, place)
        if share is None or share.machine is None:
            return Decision((), 0)
        deltas, buried = share.machine.bury(runs)
        group = self._groups[name]
        group.counts["buried"] += buried
        for first, end in runs:
            for key in [key for key in group.burying if key[0] == place and first <= key[1] < end]:
                del group.burying[key]
        return Decision((share.record_of(deltas),) if deltas else (), buried)

    # --- what happens to members ---
    def leave(self, now: float, name: str, member: str, reason: str) -> Decision[int]:
        """The member is gone: others get what it had, at once. How many records those are."""
        group = self._groups.get(name)
        if group is None:
            return Decision((), 0)
        group.waiting.forget(member)
        for key in [key for key, (who, _) in group.burying.items() if who == member]:
            del group.burying[key]
        records, settled, dead = [], 0, 0
        for share in group.partitions.values():
            if share.machine is None:
                continue
            deltas, answer = share.machine.leave(_us(now), member, reason)
            if deltas:
                records.append(share.record_of(deltas))
                settled += answer.settled
                dead += answer.condemned
        records += self._died(now, name, dead)
        group.counts["returned"] += settled
        return Decision(tuple(records), settled, self.called(name, settled, member))

    def keep_only(
        self, name: str, member: str, holds: Collection[tuple[Place, int]]
    ) -> Decision[int]:
        """The member knows of these leases alone. How many records others can have therefore."""
        group = self._groups.get(name)
        records, settled = [], 0
        for place, share in group.partitions.items() if group is not None else ():
            if share.machine is None:
                continue
            known = {lease for at, lease in holds if at == place}
            deltas, returned = share.machine.keep_only(member, known)
            if deltas:
                records.append(share.record_of(deltas))
                settled += returned
        return Decision(tuple(records), settled, self.called(name, settled, member))

    def called(self, name: str, most: int, but: str | None = None) -> frozenset[str]:
        """Members that wait for work, as many as there may be something for."""
        group = self._groups.get(name)
        return group.waiting.call(most, but) if group is not None else frozenset()

    # --- what time and operators do ---
    def deadline(self) -> float | None:
        """When `tick` is wanted next."""
        return self._due[0][0] if self._due else None

    def tick(self, now: float) -> Decision[None]:
        """Makes records ready again that are due, or that a worker has had for too long."""
        records: list[Record] = []
        died: Counter[str] = Counter()
        notify: frozenset[str] = frozenset()
        while self._due and self._due[0][0] <= now and len(records) < WAKES_MAX:
            at, name, place = heapq.heappop(self._due)
            if self._planned.get((name, place)) != at:
                continue  # it was planned for another time since
            del self._planned[name, place]
            share = self.share(name, place)
            if share is None or share.machine is None:
                continue
            woken, old = share.machine.wake(_us(now)), share.machine.expire(_us(now))
            if deltas := woken.deltas + old.deltas:
                records.append(share.record_of(deltas))
                counts = self._groups[name].counts
                counts["woken"] += woken.answer
                counts["timed_out"] += old.answer.settled
                died[name] += old.answer.condemned
                notify |= self.called(name, woken.answer + old.answer.settled)
            else:
                self._plan(name, share, looked=now)
        paused = (each for name, dead in died.items() for each in self._died(now, name, dead))
        return Decision((*records, *paused), None, notify)

    def snapshots(self) -> Iterator[Decision[None]]:
        """Yields snapshots, which make the log shorter. Append each before asking for the next."""
        while self._large:
            name, place = next(iter(self._large))
            del self._large[name, place]
            share = self.share(name, place)
            if share is None or not share.is_snapshot_due:
                continue
            yield from (Decision((record,), None) for record in share.snapshot_records())

    def seek(self, name: str, place: Place, offset: int) -> Decision[None]:
        """The group begins there; all leases and waits of that partition are void."""
        group = self._known(name)
        share = group.partitions.get(place)
        if share is None or share.machine is None:
            _, records = self._new_share(name, group, place).begin(offset)
        else:
            deltas, _ = share.machine.seek(offset)
            records = [share.record_of(deltas)]
        return Decision(tuple(records), None, self.called(name, len(group.waiting)))

    def pause(self, now: float, name: str, by: str, reason: str) -> Decision[None]:
        """Nobody gets records of it from now on. One that is paused stays so, as it is."""
        group = self._known(name)
        pause = SharePause(_us(now), by, reason)
        return Decision(() if group.pause else (_paused(name, pause),), None)

    def resume(self, name: str) -> Decision[None]:
        """It delivers again, and the breaker begins to count."""
        if self._known(name).pause is None:
            return Decision((), None)
        waiting = len(self._known(name).waiting)
        return Decision((_paused(name, None),), None, self.called(name, waiting))

    def _known(self, name: str) -> ShareGroup:
        if (group := self._groups.get(name)) is None:
            raise GroupError(f"there is no share group {name!r}")
        return group

    def delete(self, name: str) -> Decision[bool]:
        """Takes the group away, a bounded part of it: whether there is more to take."""
        group = self._groups.get(name)
        if group is None:
            return Decision((), False)
        for share in group.partitions.values():
            if records := share.tombstones(TOMBSTONES_MAX):
                return Decision(tuple(records), True)
        paused = (_paused(name, None),) if group.pause is not None else ()
        return Decision((*paused, Record(_encode((SHARE, name)), None)), False)

    def forget_topics(self, there: Collection[bytes]) -> Iterator[tuple[str, Place]]:
        """Partitions of topics that are gone."""
        for name, group in self._groups.items():
            for place in group.partitions:
                if place[0] not in there:
                    yield name, place

    def drop(self, name: str, place: Place) -> Decision[bool]:
        """Takes one partition of a group away, a bounded part of it: whether there is more."""
        share = self.share(name, place)
        records = share.tombstones(TOMBSTONES_MAX) if share is not None else []
        return Decision(tuple(records), len(records) == TOMBSTONES_MAX)

    def share(self, name: str, place: Place) -> LoggedShare | None:
        """The state of a group in a partition, as the log has it."""
        group = self._groups.get(name)
        return group.partitions.get(place) if group is not None else None

    def _new_share(self, name: str, group: ShareGroup, place: Place) -> LoggedShare:
        """One that holds nothing yet."""
        policy = group.policy
        return LoggedShare(name, place, self._uniform, policy.limits(), policy.arrangement())


def _paused(name: str, pause: SharePause | None) -> Record:
    return Record(_encode((PAUSE, name)), None if pause is None else _encode(pause))


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def runs_of(pairs: Iterable[Sequence[int]]) -> Runs:
    return tuple((first, end) for first, end in pairs)
