"""Transactions as their records say: the only mutator is `replay`.

Three indexes are made of the values of the keys: the owners of producer ids, the transactions that
still miss markers, and the due times. One thing is in no record: the markers that are written, but
may not be on the device. A power cut takes that knowledge along with them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator

from penstock.cluster.decisions import Record
from penstock.cluster.transactions import records as rec
from penstock.cluster.transactions.answers import Marking
from penstock.cluster.transactions.ids import Ids
from penstock.cluster.transactions.limits import TransactionLimits
from penstock.cluster.transactions.records import Decided, Key, Place, Stage, Transactional, Value


class State:
    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self.transactional: dict[str, Transactional] = {}
        self.stages: dict[str, dict[str, Stage]] = {}
        self.decided: dict[str, Decided] = {}
        self._tables: dict[str, Collection[str]] = {
            rec.TRANSACTION: self.transactional, rec.STAGE: self.stages, rec.DECIDED: self.decided
        }  # fmt: skip
        self.ids = Ids()
        """All there are. Derived, as what follows is."""
        # An id whose epochs ran out has several producer ids while it misses markers.
        self._owners: dict[int, Key] = {}
        self._unmarked: dict[Key, None] = {}
        self._due: list[tuple[float, Key]] = []
        self._idle: list[tuple[float, Key]] = []
        self._written: dict[tuple[int, int], set[Place]] = {}

    def replay(self, record: Record) -> None:
        """Any record of the coordinator's log, in its order; twice is as good as once."""
        if (parsed := rec.parse(record)) is None:
            return
        key, value = parsed
        if (old := self.get(key)) is not None:
            self._forget(key, old)
        self._set(key, value)
        if value is not None:
            self._index(key, value)
        if self._written and old is not None:
            self._forget_written(old, value)

    def wrote(self, producer_id: int, epoch: int, place: Place) -> None:
        """A marker is in the log there: others may follow it, and nobody need wait for it."""
        key = self.owner(producer_id)
        if key is None or (value := self.get(key)) is None:
            return
        self._written.setdefault((producer_id, epoch), set()).add(place)
        if not self.is_marking(value):
            self._unmarked.pop(key, None)

    def _forget_written(self, old: Value, value: Value | None) -> None:
        left = set() if value is None else {who for who, _, _ in missing_of(value)}
        for who, _, _ in missing_of(old):
            if who not in left:
                self._written.pop(who, None)

    def get(self, key: Key) -> Value | None:
        match key:
            case (rec.TRANSACTION, name):
                return self.transactional.get(name)
            case (rec.STAGE, name, stage):
                return self.stages.get(name, {}).get(stage)
            case (rec.DECIDED, name):
                return self.decided.get(name)
        return None

    def _set(self, key: Key, value: Value | None) -> None:
        name = key[1]
        was_there = self._is_named(key)
        match key:
            case (rec.STAGE, _, stage):
                stages = self.stages.setdefault(name, {})
                stages.pop(stage, None)
                if isinstance(value, Stage):
                    stages[stage] = value
                if not stages:
                    del self.stages[name]
            case (rec.TRANSACTION, _):
                self.transactional.pop(name, None)
                if isinstance(value, Transactional):
                    self.transactional[name] = value
            case (rec.DECIDED, _):
                self.decided.pop(name, None)
                if isinstance(value, Decided):
                    self.decided[name] = value
        if (is_there := self._is_named(key)) != was_there:
            (self.ids.add if is_there else self.ids.remove)(name)

    def _is_named(self, key: Key) -> bool:
        """Whether the table of that key has anything of its id."""
        return key[1] in self._tables.get(key[0], ())

    # --- indexes ----------------------------------------------------------------------------------
    def _index(self, key: Key, value: Value) -> None:
        for producer_id in producers_of(value):
            self._owners[producer_id] = key
        if self.is_marking(value):
            self._unmarked[key] = None
        if (when := self._due_at(value)) is not None:
            insort(self._list_of(value), (when, key))

    def _forget(self, key: Key, value: Value) -> None:
        for producer_id in producers_of(value):
            self._owners.pop(producer_id, None)
        self._unmarked.pop(key, None)
        if (when := self._due_at(value)) is not None:
            found = self._list_of(value)
            del found[bisect_left(found, (when, key))]

    def _list_of(self, value: Value) -> list[tuple[float, Key]]:
        """Returns the list of time-outs, or of ids that nobody uses, for this value."""
        is_idle = isinstance(value, Transactional) and value.opened_at is None
        return self._idle if is_idle else self._due

    def _due_at(self, value: Value) -> float | None:
        match value:
            case Transactional(opened_at=float(opened_at), timeout=timeout):
                return opened_at + timeout
            case Transactional(endings=(), used_at=used_at):
                return used_at + self._limits.idle_max
            case Stage(commit=None, begun_at=begun_at):
                return begun_at + self._limits.stage_timeout
            case Decided(is_last=True, decided_at=decided_at):
                return decided_at + self._limits.stage_timeout
        return None

    # --- questions --------------------------------------------------------------------------------
    def owner(self, producer_id: int) -> Key | None:
        return self._owners.get(producer_id)

    def due(self, now: float, doubt: float) -> list[Key]:
        """Returns keys that timed out, oldest first, then ids that nobody used, for `doubt` seconds
        longer; `tick_max` at most."""
        most = self._limits.tick_max
        found = [key for when, key in self._due[:most] if when <= now]
        idle = self._idle[: most - len(found)]
        return [*found, *(key for when, key in idle if when + doubt <= now)]

    def deadline(self, doubt: float) -> float | None:
        found = [self._due[0][0]] if self._due else []
        return min([*found, self._idle[0][0] + doubt] if self._idle else found, default=None)

    def unmarked(self) -> Iterator[Marking]:
        for key in list(self._unmarked):
            if (value := self.get(key)) is not None:
                yield from self._markings_of(value)

    def is_marking(self, value: Value) -> bool:
        """Whether a marker of it is not written yet."""
        return any(True for _ in self._markings_of(value))

    def _markings_of(self, value: Value) -> Iterator[Marking]:
        """Yields the markers that may be sent. One that is not the oldest missing one of its id in
        a partition is held back. An ABORT that overtakes a COMMIT would close that transaction too,
        there alone."""
        older: set[Place] = set()
        for who, commit, places in missing_of(value):
            missing = places - self._written.get(who, set())
            if ready := missing - older:
                yield Marking(*who, commit, ready)
            older |= missing

    def values(self) -> dict[Key, Value]:
        """All there is, by key: what compaction leaves of the log."""
        found: dict[Key, Value] = {}
        for name, transactional in self.transactional.items():
            found[rec.TRANSACTION, name] = transactional
        for name, stages in self.stages.items():
            for stage, value in stages.items():
                found[rec.STAGE, name, stage] = value
        for name, decided in self.decided.items():
            found[rec.DECIDED, name] = decided
        return found


def producers_of(value: Value) -> set[int]:
    match value:
        case Transactional():
            return {value.producer_id, *(ending.producer_id for ending in value.endings)}
        case Stage():
            return {value.producer_id}
    return set()


def missing_of(value: Value) -> Iterator[tuple[tuple[int, int], bool, frozenset[Place]]]:
    """(producer id, epoch), outcome, and where the marker is not known to be on the device."""
    match value:
        case Transactional():
            for ending in value.endings:
                who = ending.producer_id, ending.epoch
                yield who, ending.commit, rec.unpack(ending.places)
        case Stage(commit=bool(commit)):
            yield (value.producer_id, value.producer_epoch), commit, rec.unpack(value.places)
