"""The share group machine: the workers that have records of one partition, and their outcomes.

**Theory.** Many workers share a partition, each record with one of them at a time. A lease belongs
to a member for as long as that lives: no clock takes a record from who works on it, unless the
group has a `max_lease`, for handlers that never return. The coordinator decides about the
answers of members and keeps them in its log, not beside the records (decision 0081). A lease has a
number that is never used again, so a late answer of a former holder is stale and changes nothing.

| state | event | then |
|---|---|---|
| new | `begin` | ready, or skipped where it is no work |
| new | `tell`: its key or tenant | ready, or behind the one before it of its key |
| behind | the one before it is final or condemned | ready |
| ready | `lease` | leased, delivered once more |
| leased | `accept`, also with a transaction | done |
| leased | `claim`, of a dedup id that another record has | done |
| leased | `release`, or `keep_only` without its lease | ready, this delivery does not count |
| leased | `delay` | waiting, this delivery does not count |
| leased | `fail` | waiting, or ready without a delay; condemned at `max_deliveries` |
| leased | `reject` | condemned |
| leased | `leave`: its member is gone | suspect; condemned at `max_deliveries` |
| leased | `expire`: longer than `max_lease`, not extended | ready; or condemned, as above |
| suspect | `lease` | leased alone, delivered once more |
| waiting | `wake`, once it is due | ready |
| condemned | `bury`: its dead letter is written | dead |
| any but new | `seek` | new, or below the floor |

A record that ends its worker each time is delivered `max_deliveries` times and is condemned then.
Nobody knows which of several records it was. So the records of a worker that is gone are delivered
one by one, each to a member that has no other. Only a record that ends this member, too, is
condemned.

In a group with an order a record is behind while another of its key, at a lower offset, is neither
final nor condemned. So of a key one is leased at a time, the next one only after it, and whatever
holds that one up holds up the key: a backoff, a due time, a worker that takes long. In a group with
turns `lease` gives the ready records of the tenants that have the fewest leased (`fairness`).

Records that wait are outside the window (`shares.waiting`): however many there are, what is ready
is found as soon. Those that are due come back into it, a bounded number at once.

The shell keeps two rules. It gives an answer, also that of `lease`, only after the coordinator's
log acknowledged its deltas (in a cluster: committed them). It tells `begin` of offsets that readers
of committed records see, and of no others. States, words and the numbers of deliveries are
those of Kafka's share groups (KIP-932), with leases by process in place of locks by time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.cluster.shares import records as rec
from penstock.cluster.shares.answers import LeaseAnswered, LeaseGranted, ShareDecision
from penstock.cluster.shares.keys import HASH_BYTES, single_runs
from penstock.cluster.shares.limits import ShareLimits
from penstock.cluster.shares.peek import PeekedRecord, peeked
from penstock.cluster.shares.runs import (
    OFFSET_MAX,
    Run,
    Runs,
    checked,
    count,
    joined,
    packed,
    without,
)
from penstock.cluster.shares.state import (
    NOT_ARRANGED,
    Arrangement,
    FailedDelivery,
    ShareLease,
    ShareSnapshot,
    ShareState,
    StoredSnapshot,
)
from penstock.cluster.shares.waiting import WaitingRun, packed_dues, with_dues
from penstock.cluster.shares.window import (
    BEHIND,
    CONDEMNED,
    DEAD,
    DELIVERIES_MAX,
    DONE,
    LEASED,
    READY,
    STATES,
    SUSPECT,
    WAITING,
)
from penstock.core.errors import ConfigError, ResourceLimitError
from penstock.core.work import TIME_MAX

MEMBER_BYTES_MAX: Final = 200
EXPIRED_MAX: Final = 60
"""Deltas of one decision about leases that are too old."""


class SharePartition:
    """One group in one partition. Calls decide; `replay` alone changes what is so.

    `uniform`: draws the jitter of a wait, from 0 to what it is given. Raises `ConfigError` for what
    nobody may ask, and `ResourceLimitError`, by name, for what is too much.
    """

    def __init__(
        self,
        start: int | ShareSnapshot,
        uniform: Callable[[float, float], float],
        limits: ShareLimits | None = None,
        arrangement: Arrangement = NOT_ARRANGED,
        runs: Mapping[int, WaitingRun] | None = None,
    ) -> None:
        """`runs`: those that a snapshot names. Raises ValueError where one is missing."""
        self.limits = limits or ShareLimits()
        self._state = (
            ShareState.of(start, runs or {})
            if isinstance(start, ShareSnapshot)
            else ShareState(start, arrangement)
        )
        self._uniform = uniform

    def replay(self, delta: rec.Delta) -> None:
        self._state.replay(delta)

    def snapshot(self) -> ShareSnapshot:
        return self._state.snapshot()

    def snapshot_beside(self, numbers: Iterator[int]) -> StoredSnapshot:
        """Also for a log that has the runs with a number; others get the next of these there."""
        return self._state.snapshot_beside(numbers)

    # --- what is so ---
    @property
    def floor(self) -> int:
        """All below it is done, dead or skipped. Many that wait are known by the lowest of those
        they came with, so that it may be lower than it could."""
        waiting = self._state.waiting.offset_min
        floor = self._state.window.floor
        return floor if waiting is None else min(waiting, floor)

    @property
    def frontier(self) -> int:
        """From here on all is new."""
        return self._state.window.frontier

    def counts(self) -> dict[str, int]:
        """Records that are ready, waiting, leased and condemned."""
        return {**self._state.window.counts(), STATES[WAITING]: len(self._state.waiting)}

    def oldest_ready(self) -> int | None:
        """The first offset that waits for a worker."""
        window = self._state.window
        found = [runs[0][0] for it in (READY, SUSPECT) if (runs := window.in_state(it, 1))]
        return min(found, default=None)

    def next_due_us(self) -> int | None:
        """When the first record that waits is due."""
        return self._state.waiting.first_due_us

    def next_wake_us(self) -> int | None:
        """When `wake` has something to do. None: never, or not before something is taken."""
        return self.next_due_us() if self._state.window.room else None

    def members(self) -> dict[str, int]:
        """How many records each member has to answer for."""
        found: dict[str, int] = {}
        for lease in self._state.leases.values():
            found[lease.member] = found.get(lease.member, 0) + lease.left
        return found

    def condemned(self, count_max: int) -> Runs:
        """The first records that are to become dead letters."""
        return self._state.window.in_state(CONDEMNED, count_max) if self._state.condemned else ()

    def deliveries(self, offset: int) -> int:
        """How often a record that is not final was delivered."""
        return next(times for times, _ in self._state.window.by_deliveries([(offset, offset + 1)]))

    def failures(self, offset: int) -> Sequence[FailedDelivery]:
        """The newest failures of a record that is not final, oldest first."""
        return tuple(self._state.failures.get(offset, ()))

    def peek(self, state: str, first: int, count_max: int) -> list[PeekedRecord]:
        """Records in that state ("": in any) from an offset on, at most so many."""
        return peeked(self._state, state, first, count_max)

    # --- delivering ---
    def begin(self, end: int, skipped: Iterable[Sequence[int]] = ()) -> ShareDecision[int]:
        """Records up to `end` may be delivered, `skipped` left out. How many those are."""
        window = self._state.window
        left_out = checked(skipped, self.limits.runs_max)
        if end < window.frontier or any(
            first < window.frontier or last > end for first, last in left_out
        ):
            raise ConfigError(
                f"offsets {window.frontier} to {end} cannot be begun with {left_out} left out"
            )
        if end == window.frontier:
            return ShareDecision((), 0)
        if end > self._begun_max:
            if len(self._state.waiting) >= self.limits.waiting_max:
                raise ResourceLimitError(
                    f"waiting_max: {len(self._state.waiting)} records wait until they are due, and "
                    f"{self.limits.waiting_max} may; none is begun before some of them are"
                )
            raise ResourceLimitError(
                f"blocks_max: {self.limits.blocks_max} blocks of records are begun and not done; "
                f"the first record that is not is at offset {window.floor}"
            )
        fresh = end - window.frontier - count(left_out)
        return ShareDecision((rec.Begun(end, packed(left_out)),), fresh)

    def lease(
        self, now_us: int, member: str, count_max: int, runs_max: int | None = None
    ) -> ShareDecision[LeaseGranted | None]:
        """At most so many ready records for this member, in at most so many runs: see
        `ShareWindow.next_ready`, and `FairTurns` for a group with turns."""
        if count_max < 1 or not 0 < len(member.encode()) <= MEMBER_BYTES_MAX:
            raise ConfigError(f"{count_max} records for member {member!r}: neither may be empty")
        window = self._state.window
        is_alone = bool(self._state.suspects)
        if is_alone:
            runs = window.in_state(SUSPECT, 1)
        elif self._state.turns is not None:
            runs_max = runs_max or self.limits.runs_max
            picked = self._state.turns.next_ones(count_max)
            runs = single_runs(picked)
            runs = runs if len(runs) <= runs_max else single_runs(picked[:runs_max])
        else:
            runs = window.next_ready(
                count_max, runs_max or self.limits.runs_max, self._state.numbers
            )
        if not runs:
            return ShareDecision((), None)
        number = self._state.numbers + 1
        delivered = tuple(
            (min(before + 1, DELIVERIES_MAX), run) for before, run in window.by_deliveries(runs)
        )
        return ShareDecision(
            (rec.Leased(number, member, now_us, packed(runs), is_alone),),
            LeaseGranted(number, runs, delivered),
        )

    @property
    def suspects(self) -> int:
        """Records that may have ended a worker. While there are any `lease` gives one of them,
        which only a member that has nothing else is to get."""
        return self._state.suspects

    def not_held(self, member: str, lease: int, runs: Iterable[Sequence[int]]) -> Runs:
        """Those of these offsets that the member does not have by that lease."""
        if not self.is_of(member, lease):
            return checked(runs, self.limits.runs_max)
        return self._held(lease, runs)[1]

    def is_of(self, member: str, lease: int) -> bool:
        """Whether it has something to answer for by that lease."""
        known = self._state.leases.get(lease)
        return known is not None and known.member == member

    def holds(self, member: str) -> bool:
        """Whether it has something to answer for."""
        return any(lease.member == member for lease in self._state.leases.values())

    def is_alone(self, member: str) -> bool:
        """Whether it has a record that may have ended a worker: it is to get nothing else."""
        return any(it.is_alone and it.member == member for it in self._state.leases.values())

    def acquire(
        self, now_us: int, member: str, count_max: int, end: int, runs_max: int | None = None
    ) -> ShareDecision[LeaseGranted | None]:
        """`lease`, which begins with records up to `end` as far as others do not suffice."""
        window = self._state.window
        deltas, granted = self.lease(now_us, member, count_max, runs_max)
        if self._state.suspects or self._state.arrangement != NOT_ARRANGED:
            return ShareDecision(deltas, granted)
        missing = count_max - (count(granted.runs) if granted else 0)
        upto = min(end, window.frontier + missing, self._begun_max)
        if upto <= window.frontier:
            return ShareDecision(deltas, granted)
        fresh = (window.frontier, upto)
        runs = joined([*(granted.runs if granted else ()), fresh])
        number = self._state.numbers + 1
        before = granted.deliveries if granted else ()
        return ShareDecision(
            (rec.Begun(upto), rec.Leased(number, member, now_us, packed(runs))),
            LeaseGranted(number, runs, (*before, (1, fresh))),
        )

    def available(self, end: int, count_max: int) -> int:
        """Records up to `end` that could be leased now, counted up to so many."""
        ready = count(self._state.window.in_state(READY, count_max))
        return min(count_max, ready + max(0, min(end, self._begun_max) - self.frontier))

    @property
    def _begun_max(self) -> int:
        """How far `begin` may go now."""
        window = self._state.window
        if len(self._state.waiting) >= self.limits.waiting_max:
            return window.frontier
        return window.begun_max(self.limits.blocks_max)

    @property
    def is_full(self) -> bool:
        """Whether nothing may be begun before something is done."""
        return min(self._begun_max, self._told_max) <= self.frontier

    @property
    def _told_max(self) -> int:
        """How far `tell` may go now."""
        if self._state.arrangement == NOT_ARRANGED:
            return OFFSET_MAX
        ahead = self._state.window.count(READY, SUSPECT, BEHIND)
        return self.frontier + max(0, self.limits.ahead_max - ahead)

    # --- order and turns ---
    @property
    def arrangement(self) -> Arrangement:
        """Order and turns of the records from the frontier on."""
        return self._state.arrangement

    def arrange(self, arrangement: Arrangement) -> ShareDecision[None]:
        """Another one from now on. Records that were begun before have no order and no tenants."""
        if arrangement == self.arrangement:
            return ShareDecision((), None)
        return ShareDecision((rec.Arranged(*arrangement),), None)

    def tell(self, first: int, keys: bytes, tenants: bytes, end: int) -> ShareDecision[int]:
        """Records from `first` on have these hashes. Those below `end` may be delivered that were
        not begun with, as far as there is room. How many those are."""
        order, fair = self.arrangement
        parts = [data for wanted, data in ((order, keys), (fair, tenants)) if wanted]
        sizes = {len(data) for data in parts}
        if len(sizes) > 1 or any(size % HASH_BYTES for size in sizes):
            raise ConfigError(
                f"{len(keys)} and {len(tenants)} bytes of hashes of keys and tenants from offset "
                f"{first} on: not {HASH_BYTES} for each record"
            )
        begun = self.frontier
        told = first + max(sizes, default=0) // HASH_BYTES
        upto = min(told, end, self._begun_max, self._told_max)
        if not first <= begun < upto:
            return ShareDecision((), 0)
        part = slice(HASH_BYTES * (begun - first), HASH_BYTES * (upto - first))
        fresh = rec.Begun(upto, [], keys[part] if order else b"", tenants[part] if fair else b"")
        return ShareDecision((fresh,), upto - begun)

    # --- answering for a lease ---
    def accept(self, lease: int, runs: Iterable[Sequence[int]]) -> ShareDecision[LeaseAnswered]:
        """They are done."""
        held, stale = self._held(lease, runs)
        return self._settled(lease, DONE, held, stale)

    def release(self, lease: int, runs: Iterable[Sequence[int]]) -> ShareDecision[LeaseAnswered]:
        """They were not begun with: others get them, and this delivery does not count."""
        held, stale = self._held(lease, runs)
        return self._settled(lease, self._back(lease), held, stale, uncounted=True)

    def delay(
        self, now_us: int, lease: int, runs: Iterable[Sequence[int]], due_us: int | Sequence[int]
    ) -> ShareDecision[LeaseAnswered]:
        """They are not due before that time, or each run before its own: they wait, and this
        delivery does not count."""
        asked = checked(runs, self.limits.runs_max)
        dues = [due_us] * len(asked) if isinstance(due_us, int) else due_us
        if len(dues) != len(asked) or not all(0 <= due <= TIME_MAX for due in dues):
            raise ConfigError(
                f"due_us: {len(dues)} times for {len(asked)} runs, each from 0 to {TIME_MAX}"
            )
        held, stale = self._held(lease, asked)
        settled, back, later = 0, list[Run](), list[tuple[Run, int]]()
        for run, due in with_dues(asked, dues, held):
            settled += run[1] - run[0]
            if due <= now_us:
                back.append(run)
            else:
                later.append((run, due))
        deltas, _ = self._settled(lease, self._back(lease), joined(back), (), uncounted=True)
        if later:
            postponed = packed(joined(run for run, _ in later))
            deltas = (*deltas, rec.Postponed(lease, packed_dues(later), postponed, True))
        return ShareDecision(deltas, LeaseAnswered(settled, stale))

    def reject(
        self, now_us: int, lease: int, runs: Iterable[Sequence[int]], reason: str
    ) -> ShareDecision[LeaseAnswered]:
        """No further delivery would help: they become dead letters."""
        held, stale = self._held(lease, runs)
        told = self._told(now_us, lease, held, reason)
        deltas, answer = self._settled(lease, CONDEMNED, held, stale)
        return ShareDecision((*told, *deltas), answer._replace(condemned=answer.settled))

    def fail(
        self,
        now_us: int,
        lease: int,
        runs: Iterable[Sequence[int]],
        reason: str,
        delay: float | None = None,
    ) -> ShareDecision[LeaseAnswered]:
        """This delivery failed. They come again after `delay` seconds; None: after a time that
        doubles with each delivery, drawn between 0 and that."""
        if delay is not None and not 0.0 <= delay <= self.limits.delay_max:
            raise ConfigError(
                f"delay: {delay!r} is not between 0 and delay_max, {self.limits.delay_max} seconds"
            )
        held, stale = self._held(lease, runs)
        deltas, condemned, again = self._failed(now_us, lease, held, reason)
        for deliveries, waiting in again.items():
            wait = self._backoff(deliveries) if delay is None else delay
            if wait == 0.0:
                deltas.append(rec.Settled(lease, READY, packed(waiting)))
                continue
            due_us = now_us + int(wait * 1e6)
            deltas.append(rec.Postponed(lease, [due_us], packed(waiting)))
        return ShareDecision(
            tuple(deltas), LeaseAnswered(count(held), stale, condemned=count(condemned))
        )

    def extend(
        self, now_us: int, lease: int, runs: Iterable[Sequence[int]], seconds: float
    ) -> ShareDecision[LeaseAnswered]:
        """Their worker is still at it: its lease does not end for so many seconds."""
        if not 0.0 < seconds <= self.limits.extend_max:
            raise ConfigError(
                f"seconds: {seconds!r} is not above 0, and up to {self.limits.extend_max:g}"
            )
        held, stale = self._held(lease, runs)
        until = now_us + int(seconds * 1e6)
        is_bound = bool(held and self.limits.max_lease)
        deltas = (rec.Extended(lease, until, packed(held)),) if is_bound else ()
        return ShareDecision(deltas, LeaseAnswered(count(held), stale))

    def leave(self, now_us: int, member: str, reason: str) -> ShareDecision[LeaseAnswered]:
        """The member is gone: what it had goes to others at once."""
        deltas: list[rec.Delta] = []
        settled = dead = 0
        for number, lease in self._state.leases.items():
            if lease.member != member:
                continue
            held = self._state.window.held(lease.runs, LEASED, number)
            dead += self._taken(now_us, number, held, reason, SUSPECT, deltas)
            settled += count(held)
        return ShareDecision(tuple(deltas), LeaseAnswered(settled, (), dead))

    def keep_only(self, member: str, leases: Collection[int]) -> ShareDecision[int]:
        """The member knows of these leases alone: what else it was given it never got, so that it
        is ready and this delivery does not count. How many records those are."""
        deltas: list[rec.Delta] = []
        settled = 0
        for number, lease in self._state.leases.items():
            if lease.member == member and number not in leases:
                held = self._state.window.held(lease.runs, LEASED, number)
                deltas.append(rec.Settled(number, self._back(number), packed(held), uncounted=True))
                settled += count(held)
        return ShareDecision(tuple(deltas), settled)

    # --- what time and operators do ---
    def first_end_us(self) -> int | None:
        """When `expire` may have something to do, or later where the oldest lease was extended."""
        oldest = next(iter(self._state.leases.values()), None)
        return None if oldest is None or not self.limits.max_lease else self._end_us(oldest)

    def _end_us(self, lease: ShareLease) -> int:
        return lease.at_us + int(self.limits.max_lease * 1e6)

    def expire(self, now_us: int) -> ShareDecision[LeaseAnswered]:
        """Of leases that are too old others get what nobody asked more time for, a bounded part of
        it. Each of these deliveries counts."""
        deltas: list[rec.Delta] = []
        settled = dead = 0
        for number, lease in self._state.leases.items() if self.limits.max_lease else ():
            if self._end_us(lease) > now_us or len(deltas) >= EXPIRED_MAX:
                break
            held = self._state.window.held(lease.runs, LEASED, number)
            for until, runs in lease.extended:
                held = without(held, runs) if until > now_us else held
            reason = f"no answer for max_lease, {self.limits.max_lease:g} s"
            dead += self._taken(now_us, number, held, reason, READY, deltas)
            settled += count(held)
        return ShareDecision(tuple(deltas), LeaseAnswered(settled, (), dead))

    def wake(self, now_us: int) -> ShareDecision[int]:
        """Makes records ready that are due by now, a bounded part of them; answers with their
        number."""
        room = self._state.window.room
        if woken := self._state.waiting.due(now_us, room):
            return ShareDecision((rec.Woken(woken),), woken)
        return ShareDecision((), 0)

    def bury(self, runs: Iterable[Sequence[int]]) -> ShareDecision[int]:
        """Their dead letters are written. How many of them were condemned."""
        condemned = self._state.window.held(checked(runs, self.limits.runs_max), CONDEMNED, 0)
        if not condemned:
            return ShareDecision((), 0)
        return ShareDecision((rec.Settled(0, DEAD, packed(condemned)),), count(condemned))

    def seek(self, start: int) -> ShareDecision[None]:
        """The group begins with this offset; all leases and waits are void."""
        return ShareDecision((rec.Sought(start),), None)

    # --- shared by the above ---
    def _held(self, lease: int, runs: Iterable[Sequence[int]]) -> tuple[Runs, Runs]:
        """Returns the part of `runs` that the lease holds, and the rest."""
        asked = checked(runs, self.limits.runs_max)
        held = self._state.window.held(asked, LEASED, lease) if lease in self._state.leases else ()
        return held, without(asked, held)

    def _back(self, lease: int) -> int:
        """Returns the next state of its records that were not begun with."""
        known = self._state.leases.get(lease)
        return SUSPECT if known is not None and known.is_alone else READY

    def _settled(
        self, lease: int, state: int, held: Runs, stale: Runs, *, uncounted: bool = False
    ) -> ShareDecision[LeaseAnswered]:
        deltas = (rec.Settled(lease, state, packed(held), uncounted),) if held else ()
        freed = self._freed(held) if state >= CONDEMNED else 0
        return ShareDecision(deltas, LeaseAnswered(count(held), stale, freed=freed))

    def _freed(self, over: Runs) -> int:
        """How many records are ready once these are over."""
        return 0 if self._state.keys is None else self._state.keys.next_count(over)

    def _told(self, now_us: int, lease: int, held: Runs, reason: str) -> tuple[rec.Delta, ...]:
        if not held:
            return ()
        cut = reason.encode(errors="replace")[: self.limits.reason_bytes_max]
        member = self._state.leases[lease].member
        return (rec.DeliveryFailed(member, now_us, cut.decode(errors="ignore"), packed(held)),)

    def _taken(
        self, now_us: int, lease: int, held: Runs, reason: str, state: int, deltas: list[rec.Delta]
    ) -> int:
        """Takes these from a member that gave no answer, by further deltas. How many of them are
        condemned; the others have this state."""
        told, condemned, again = self._failed(now_us, lease, held, reason)
        deltas += told
        if back := joined(sorted(run for runs in again.values() for run in runs)):
            deltas.append(rec.Settled(lease, state, packed(back)))
        return count(condemned)

    def _failed(
        self, now_us: int, lease: int, held: Runs, reason: str
    ) -> tuple[list[rec.Delta], Runs, dict[int, Runs]]:
        """The log's part of a delivery that failed, the records condemned by it, and the others."""
        deltas = list(self._told(now_us, lease, held, reason))
        condemned, again = self._by_fate(held)
        if condemned:
            deltas.append(rec.Settled(lease, CONDEMNED, packed(condemned)))
        return deltas, condemned, again

    def _by_fate(self, held: Runs) -> tuple[Runs, dict[int, Runs]]:
        """Returns the runs that had their last delivery; and the others by number of deliveries."""
        condemned: list[Run] = []
        again: dict[int, list[Run]] = {}
        most = self.limits.max_deliveries
        for deliveries, run in self._state.window.by_deliveries(held):
            if most and deliveries >= most:
                condemned.append(run)
            else:
                again.setdefault(deliveries, []).append(run)
        return joined(condemned), {times: joined(runs) for times, runs in again.items()}

    def _backoff(self, deliveries: int) -> float:
        longest = min(self.limits.backoff_min * 2.0 ** (deliveries - 1), self.limits.backoff_max)
        return self._uniform(0.0, longest)
