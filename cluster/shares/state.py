"""The state of a share group in one partition. Only `ShareState.replay` changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.cluster.shares import records as rec
from penstock.cluster.shares.dedup_ids import IdsSnapshot
from penstock.cluster.shares.fairness import FairTurns
from penstock.cluster.shares.keys import HashColumn, KeyOrder, hashes_of, single_runs
from penstock.cluster.shares.returned import ReturnedRecord
from penstock.cluster.shares.runs import Runs, count, joined, unpacked, without
from penstock.cluster.shares.waiting import (
    WaitingRecords,
    WaitingRun,
    entry,
    named_runs,
    record_of,
)
from penstock.cluster.shares.window import (
    BEHIND,
    CONDEMNED,
    DEAD,
    LEASED,
    LEFT_FIRST,
    READY,
    SUSPECT,
    WAITING,
    ShareWindow,
)

if TYPE_CHECKING:
    from penstock.cluster.shares.duplicates import KnownIds

FAILURES_KEPT: Final = 5
"""Failures of a record that its dead letter tells: the newest ones."""
FAILURES_MAX: Final = 10_000
"""Records whose failures are kept; of others only the number of deliveries is known."""
EXTENSIONS_MAX: Final = 64
"""Different ends that the records of one lease have; with more, the soonest two become one."""


class ShareLease(msgspec.Struct, frozen=True, array_like=True):
    """`runs`: what it was given; `left`: how many of those it has still to answer for. `is_alone`:
    its member works on nothing else. `extended`: (until, runs), apart from each other: what does
    not end before that time, however old the lease is."""

    member: str
    at_us: int
    runs: Runs
    left: int
    is_alone: bool = False
    extended: tuple[tuple[int, Runs], ...] = ()


class FailedDelivery(msgspec.Struct, frozen=True, array_like=True):
    """One entry in the story of a dead letter."""

    member: str
    at_us: int
    reason: str


class Arrangement(NamedTuple):
    """`order`: "key", or "" for none. `fair`: "key" or "header:NAME", or ""."""

    order: str = ""
    fair: str = ""


NOT_ARRANGED: Final = Arrangement()


class ShareSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """All of a state. `blocks`, `singles`: see `ShareWindow`. `waiting`: records that wait, but for
    those in `runs`: the number of each run that the log has beside the snapshot, and how far it is
    read. `keys`, `tenants`: see `HashColumn.columns`. `ids`: None where there are none."""

    frontier: int
    numbers: int
    blocks: list[tuple[int, bytes, bytes, bytes]]
    singles: list[tuple[int, ReturnedRecord]]
    leases: dict[int, ShareLease]
    failures: dict[int, list[FailedDelivery]]
    waiting: bytes
    runs: list[tuple[int, int]]
    arrangement: Arrangement = NOT_ARRANGED
    keys: list[tuple[int, bytes]] = []
    tenants: list[tuple[int, bytes]] = []
    ids: IdsSnapshot | None = None


class StoredSnapshot(NamedTuple):
    """A snapshot for a log, and the runs of it that the log has not yet, by number."""

    snapshot: ShareSnapshot
    fresh: dict[int, bytes]


class ShareState:
    """`numbers`: the last one that a lease has. `condemned`, `suspects`: how many records are.
    `waiting`: those outside the window. `keys`, `turns`: where it is arranged by them."""

    def __init__(self, start: int, arrangement: Arrangement = NOT_ARRANGED) -> None:
        self.numbers = 0
        self.arrangement = arrangement
        self._ids: KnownIds | None = None
        self._begin(start)

    def _begin(self, start: int) -> None:
        self.window = ShareWindow(start)
        self.leases: dict[int, ShareLease] = {}
        self.waiting = WaitingRecords()
        self.failures: dict[int, list[FailedDelivery]] = {}
        self.condemned = self.suspects = 0
        self._arrange(HashColumn(), HashColumn())

    def _arrange(self, keys: HashColumn, tenants: HashColumn) -> None:
        """By these hashes of what is in the window."""
        self.keys = KeyOrder.of(keys) if self.arrangement.order else None
        self.turns = FairTurns(tenants) if self.arrangement.fair else None
        if self.turns is not None:
            self.turns.ready(self.window.in_state(READY, self.window.frontier))
            self.turns.lease(self.window.in_state(LEASED, self.window.frontier))

    @classmethod
    def of(cls, snapshot: ShareSnapshot, runs: Mapping[int, WaitingRun]) -> ShareState:
        """The state that the snapshot was taken of. Raises ValueError where it is none, or names
        runs that are not among these."""
        made = cls(snapshot.frontier, snapshot.arrangement)
        made.numbers = snapshot.numbers
        made._ids = None if snapshot.ids is None else _known_ids(snapshot.ids)
        made.window = ShareWindow.of_columns(snapshot.frontier, snapshot.blocks, snapshot.singles)
        made.leases, made.failures = dict(snapshot.leases), dict(snapshot.failures)
        made.waiting = WaitingRecords(snapshot.waiting, [*named_runs(snapshot.runs, runs)])
        made.condemned, made.suspects = made.window.count(CONDEMNED), made.window.count(SUSPECT)
        made._arrange(HashColumn.of_columns(snapshot.keys), HashColumn.of_columns(snapshot.tenants))
        return made

    def snapshot(self) -> ShareSnapshot:
        """All of it, as it is now."""
        return self._snapshot(self.waiting.data(), [])

    def snapshot_beside(self, numbers: Iterator[int]) -> StoredSnapshot:
        """The same, for a log that has the runs with a number; others get the next of these."""
        image = self.waiting.image(numbers)
        return StoredSnapshot(self._snapshot(image.loose, image.runs), image.fresh)

    def _snapshot(self, waiting: bytes, runs: list[tuple[int, int]]) -> ShareSnapshot:
        return ShareSnapshot(
            self.window.frontier,
            self.numbers,
            self.window.columns(),
            self.window.singles(),
            dict(self.leases),
            dict(self.failures),
            waiting,
            runs,
            self.arrangement,
            [] if self.keys is None else self.keys.column.columns(),
            [] if self.turns is None else self.turns.column.columns(),
            None if self._ids is None else self._ids.snapshot(),
        )

    @property
    def ids(self) -> KnownIds:
        """The dedup ids that are known."""
        if self._ids is None:
            self._ids = _known_ids(None)
        return self._ids

    def replay(self, delta: rec.Delta) -> None:
        """Applies a delta. The result depends on the state and the delta alone."""
        window = self.window
        match delta:
            case rec.Begun():
                self._begun(delta)
            case rec.Leased():
                runs = unpacked(delta.runs)
                self.numbers = max(self.numbers, delta.lease)
                self.suspects -= count(runs) * delta.is_alone
                window.lease(runs, delta.lease)
                if self.turns is not None:
                    self.turns.lease(runs)
                self.leases[delta.lease] = ShareLease(
                    delta.member, delta.at_us, runs, count(runs), delta.is_alone
                )
            case rec.Settled():
                runs = unpacked(delta.runs)
                self.condemned += count(runs) * ((delta.state == CONDEMNED) - (delta.state == DEAD))
                self.suspects += count(runs) * (delta.state == SUSPECT)
                if delta.uncounted:
                    window.uncount(runs)
                if delta.state < LEFT_FIRST:
                    window.put(runs, delta.state)
                else:
                    window.finish(runs, delta.state)
                    self._forget_failures(runs)
                self._answered(delta.lease, runs)
                if delta.state == READY:
                    self._ready(runs)
                elif delta.state >= CONDEMNED:
                    self._over(runs)
            case rec.Postponed():
                runs = unpacked(delta.runs)
                if delta.uncounted:
                    window.uncount(runs)
                self.waiting.add(self._entries(runs, delta.dues))
                window.finish(runs, WAITING)
                self._answered(delta.lease, runs)
            case rec.DeliveryFailed():
                self._failed(delta)
            case rec.Extended():
                self._extended(delta)
            case rec.Woken():
                woken = [record_of(number) for number in self.waiting.take(delta.records)]
                for _, offset, deliveries in woken:
                    window.take_back(offset, deliveries)
                self._ready(single_runs(one.offset for one in woken))
            case rec.Sought():
                self._begin(delta.start)
                if self._ids is not None:
                    self._ids.forget_from(delta.start)
            case rec.IdsClaimed():
                self.ids.replay(delta)
            case rec.Arranged():
                window.put(window.in_state(BEHIND, window.frontier), READY)
                self.arrangement = Arrangement(delta.order, delta.fair)
                self._arrange(HashColumn(), HashColumn())

    def _begun(self, delta: rec.Begun) -> None:
        window, first, skipped = self.window, self.window.frontier, unpacked(delta.skipped)
        window.begin(delta.end, skipped)
        behind: Runs = ()
        if self.keys is not None and delta.keys:
            behind = single_runs(self.keys.begin(first, hashes_of(delta.keys)))
            window.put(behind, BEHIND)
        if self.turns is not None:
            self.turns.column.put(first, hashes_of(delta.tenants))
            self.turns.ready(without(without(((first, delta.end),), skipped), behind))

    def _ready(self, runs: Runs) -> None:
        if self.turns is not None:
            self.turns.ready(runs)

    def _over(self, runs: Runs) -> None:
        """They hold nobody back any more: final, or as good as that."""
        if self.keys is not None and (heads := single_runs(self.keys.end(runs))):
            self.window.put(heads, READY)
            self._ready(heads)
        if self.turns is not None:
            self.turns.column.take(runs)

    def _entries(self, runs: Runs, dues: list[int]) -> Iterator[int]:
        """The records of these runs, as they wait."""
        times = repeat(dues[0]) if len(dues) == 1 else accumulate(dues)
        for deliveries, (first, end) in self.window.by_deliveries(runs):
            for offset in range(first, end):
                yield entry(next(times), offset, deliveries)

    def _failed(self, delta: rec.DeliveryFailed) -> None:
        told = FailedDelivery(delta.member, delta.at_us, delta.reason)
        for first, end in unpacked(delta.runs):
            for offset in range(first, end):
                kept = self.failures.pop(offset, [])
                self.failures[offset] = [*kept[1 - FAILURES_KEPT :], told]
        while len(self.failures) > FAILURES_MAX:
            del self.failures[next(iter(self.failures))]

    def _extended(self, delta: rec.Extended) -> None:
        lease, runs = self.leases[delta.lease], unpacked(delta.runs)
        kept = [(until, without(others, runs)) for until, others in lease.extended]
        ends = sorted([*((until, left) for until, left in kept if left), (delta.until_us, runs)])
        if len(ends) > EXTENSIONS_MAX:
            (_, soonest), (until, next_one) = ends[:2]
            ends[:2] = [(until, joined(sorted((*soonest, *next_one))))]
        self.leases[delta.lease] = msgspec.structs.replace(lease, extended=tuple(ends))

    def _answered(self, lease: int, runs: Runs) -> None:
        if lease:
            if self.turns is not None:
                self.turns.end(runs)
            held = self.leases[lease]
            left = held.left - count(runs)
            if left:
                self.leases[lease] = msgspec.structs.replace(held, left=left)
            else:
                del self.leases[lease]

    def _forget_failures(self, runs: Runs) -> None:
        for first, end in runs if self.failures else ():
            if end - first <= len(self.failures):
                for offset in range(first, end):
                    self.failures.pop(offset, None)
            else:
                for offset in [it for it in self.failures if first <= it < end]:
                    del self.failures[offset]


def _known_ids(snapshot: IdsSnapshot | None) -> KnownIds:
    from penstock.cluster.shares.duplicates import KnownIds  # with numpy, which others do without

    return KnownIds(snapshot)
