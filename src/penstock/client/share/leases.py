"""Collects the leases of a worker and its answers, which `exchange` sends.

A lease holds offsets of one partition. Answers are lists that only grow, with how far they were
sent, so an interrupt or a lost connection loses none: at worst one is sent again, which the
coordinator takes for stale. Any thread may answer; the rest is for the thread that polls.

Owns the answers. Knows neither clocks nor the node.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.cluster.shares.runs import Run, Runs, count, joined, without
from penstock.ipc.sharing import (
    ANSWERS_MAX,
    DelayedRuns,
    ExtendedRuns,
    FailedRuns,
    LeaseAnswer,
    LeasedRecords,
)

logger = logging.getLogger("penstock.consumer")

RUNS_PER_REQUEST: Final = 1000
"""Runs of offsets that one request names at most, over all its answers."""
REASON_BYTES_PER_REQUEST: Final = 16_000
"""Bytes of reasons in one request; at least one reason goes."""
ACCEPTED, RELEASED, FAILED, REJECTED, DELAYED, EXTENDED, SKIPPED, EXPIRED, LOST = range(9)
_BY_WORKERS: Final = (RELEASED, FAILED, REJECTED, DELAYED)
"""Kinds of answers that say what became of jobs, beside `ACCEPTED`."""
_COUNTED: Final = ("acked", "released", "nacked", "rejected", "delayed", "extended")


class UnreadSpan(NamedTuple):
    """Leased offsets whose records are not read yet, all delivered equally often."""

    first: int
    end: int
    deliveries: int


class _Said(NamedTuple):
    """An answer other than `accepted` for single records. `delay`: seconds, of an extension too."""

    kind: int
    first: int
    end: int
    reason: str
    delay: float | None
    due_us: int = 0


class OpenLease:
    """A lease of a worker.

    `unread`: offsets still to be read. `left`: offsets that the coordinator has no answer for yet,
    as far as is known. `is_void`: nobody holds it any more. `stuck_since`: when a try to read on
    brought nothing first. `ends_at`: when others may have the records that were not extended
    (monotonic). `clock_us`: by how much the coordinator's clock is ahead of the monotonic one.
    """

    __slots__ = ("accepted", "accepted_sent", "clock_us", "ends_at", "is_void", "left", "name",
                 "number", "others", "others_sent", "stuck_since", "topic_id",
                 "unread")  # fmt: skip

    def __init__(self, topic: str, leased: LeasedRecords, ends_at: float, clock_us: int) -> None:
        self.ends_at, self.clock_us = ends_at, clock_us
        self.name: TopicPartition = (topic, leased.partition)
        self.topic_id = leased.topic_id
        self.number = leased.lease
        self.left: Runs = joined((first, end) for first, end in leased.runs)
        self.unread = tuple(
            UnreadSpan(first, end, deliveries) for deliveries, first, end in leased.deliveries
        )
        self.accepted: list[int] = []
        self.accepted_sent = 0
        self.others: list[_Said] = []
        self.others_sent = 0
        self.is_void = False
        self.stuck_since: float | None = None

    @property
    def is_unsent(self) -> bool:
        return len(self.accepted) > self.accepted_sent or len(self.others) > self.others_sent

    @property
    def unsent_records(self) -> int:
        """Records whose answers are not known to be with the coordinator."""
        others = (one for one in self.others[self.others_sent :] if one.kind in _BY_WORKERS)
        return len(self.accepted) - self.accepted_sent + sum(one.end - one.first for one in others)

    @property
    def unanswered(self) -> Runs:
        """Offsets without any answer, sent or not."""
        answered = [*runs_of(self.accepted[self.accepted_sent :])]
        answered += [
            (one.first, one.end)
            for one in self.others[self.others_sent :] if one.kind != EXTENDED
        ]  # fmt: skip
        return without(self.left, merged(answered))


class _Part(NamedTuple):
    """Part of a lease in a request: its answers up to these places, which name `runs`."""

    held: OpenLease
    accepted: int
    others: int
    runs: Runs


class Outgoing(NamedTuple):
    """Answers on their way."""

    answers: list[LeaseAnswer]
    parts: list[_Part]


NOTHING: Final = Outgoing([], [])


class OpenLeases:
    """Open leases of a worker. `waiting`: answers given since the last request, about."""

    def __init__(self, group: str, counts: dict[str, int], member_id: Callable[[], str]) -> None:
        self.group = group
        self.member_id = member_id
        self._counts = counts
        self._transacted: deque[tuple[OpenLease, Runs]] = deque()
        """Runs that transactions have done, until the thread that polls lets go of them."""
        for name in (*_COUNTED, "stale"):
            counts.setdefault(name, 0)
        self._held: dict[tuple[bytes, int, int], OpenLease] = {}
        self.waiting = 0
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._has_told = False
        self.extending: Callable[[], None] | None = None
        """Has what asks for more time sent soon, or now."""

    # --- what is held ---
    def __iter__(self) -> Iterator[OpenLease]:
        return iter([*self._held.values()])

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self, topic: str, leased: LeasedRecords, ends_at: float = float("inf"), clock_us: int = 0
    ) -> None:
        """It is this worker's. Told twice it is one lease."""
        key = (leased.topic_id, leased.partition, leased.lease)
        if key not in self._held:
            self._held[key] = OpenLease(topic, leased, ends_at, clock_us)

    def names(self) -> list[tuple[bytes, int, int]]:
        """All by topic id, partition and number."""
        return [*self._held]

    @property
    def records(self) -> int:
        """Offsets that are held and not answered for, as far as the coordinator knows."""
        return sum(count(held.left) for held in self._held.values())

    @property
    def unread(self) -> int:
        """Offsets that are leased and not read yet."""
        return sum(span.end - span.first for held in self._held.values() for span in held.unread)

    @property
    def is_unsent(self) -> bool:
        return any(held.is_unsent for held in self._held.values())

    def forget(self, name: TopicPartition | None = None) -> None:
        """They are nobody's any more, or those of one partition: answers that are later, or that
        the coordinator is not known to have, are stale."""
        for key, held in [*self._held.items()]:
            if name is None or held.name == name:
                held.is_void, held.unread = True, ()
                del self._held[key]
                if late := held.unsent_records:
                    self._is_stale(held, late)

    def release_all(self, *, accepts: bool = True) -> None:
        """Gives back what nobody has answered for; without `accepts` also what is done and was not
        sent yet: it may have come to nothing."""
        self.take_in()
        for held in self._held.values():
            if not accepts:
                del held.accepted[held.accepted_sent :]
            held.unread = ()
            for first, end in held.unanswered:
                self.answer(held, RELEASED, first, end)

    # --- answering, by any thread ---
    def accept(self, held: OpenLease, offset: int) -> None:
        held.accepted.append(offset)
        self._noted(held, ACCEPTED, 1)

    def answer(
        self, held: OpenLease, kind: int, first: int, end: int, reason: str = "",
        delay: float | None = None, due_us: int = 0,
    ) -> None:  # fmt: skip
        held.others.append(_Said(kind, first, end, reason, delay, due_us))
        self._noted(held, kind, end - first)

    def extend(self, held: OpenLease, offset: int, seconds: float) -> bool:
        """Asks for more time, now where `extending` says how. Whether it is held still, as far as
        is known."""
        self.answer(held, EXTENDED, offset, offset + 1, delay=seconds)
        if self.extending is not None and not held.is_void:
            self.extending()
        return not held.is_void and any(first <= offset < end for first, end in held.left)

    def transacted(self, held: OpenLease, runs: Runs) -> None:
        """A transaction that is committed has done these: the coordinator knows."""
        self._counts["acked"] += count(runs)
        self._transacted.append((held, runs))
        self.wake_up()

    @property
    def has_transacted(self) -> bool:
        """Whether `take_in` has something to do."""
        return bool(self._transacted)

    def skip(self, held: OpenLease, runs: Iterable[Run], kind: int = SKIPPED) -> None:
        """These offsets hold no record, or one that is `EXPIRED` or `LOST`: they are done, though
        nobody did them."""
        for first, end in runs:
            held.others.append(_Said(kind, first, end, "", None))
            self.waiting += 1

    def _noted(self, held: OpenLease, kind: int, records: int) -> None:
        if held.is_void:
            self._is_stale(held, records)
            return
        self._counts[_COUNTED[kind]] += records
        self.waiting += 1
        if self._wake is not None:
            self.wake_up()

    def _is_stale(self, held: OpenLease, records: int) -> None:
        self._counts["stale"] += records
        if not self._has_told:
            self._has_told = True
            logger.info(
                "group %s: answers for %d records of %s-%d came to nothing: their lease %d had "
                "ended; others have them, or had their answer (counted as stale, told once)",
                self.group, records, *held.name, held.number,
            )  # fmt: skip

    def wake_up(self) -> None:
        """Lets the thread that polls look again, where it sleeps."""
        with self._lock:
            if self._wake is not None:
                self._wake()

    def waking(self, wake: Callable[[], None] | None) -> None:
        """Calls this with each answer from now on; None: no more."""
        with self._lock:
            self._wake = wake

    # --- sending, by the thread that polls ---
    def take_in(self) -> None:
        """Lets go of what transactions have done."""
        while self._transacted:
            held, runs = self._transacted[0]
            self.let_go(held, runs)
            self._transacted.popleft()  # last: after an interrupt it is done again

    def outgoing(self) -> Outgoing:
        """Returns the answers to send next, as many as one request takes."""
        self.waiting = 0  # first: what comes meanwhile counts for the next one
        answers: list[LeaseAnswer] = []
        parts: list[_Part] = []
        room = _Room()
        for held in self:
            if not held.is_unsent:
                continue
            if len(answers) == ANSWERS_MAX or room.runs <= 0 or room.reason_bytes <= 0:
                self.waiting += 1
                break
            answer, part = _answered(held, room)
            answers.append(answer)
            parts.append(part)
            if held.accepted[part.accepted :] or held.others[part.others :]:
                self.waiting += 1
        return Outgoing(answers, parts) if answers else NOTHING

    def confirm(self, sent: Outgoing, stale: Sequence[Sequence[Run]]) -> None:
        """The coordinator has these; of each, `stale` changed nothing."""
        for part, late in zip(sent.parts, stale, strict=True):
            held = part.held
            if late:
                self._is_stale(held, count(late))
            # Set, and not counted on: after an interrupt all of it is done again.
            held.accepted_sent = max(held.accepted_sent, part.accepted)
            held.others_sent = max(held.others_sent, part.others)
            self.let_go(held, merged([*part.runs, *late]))

    def let_go(self, held: OpenLease, runs: Runs) -> None:
        """Nobody need answer for these any more."""
        held.left = without(held.left, runs)
        if not held.left:
            held.is_void = True
            self._held.pop((held.topic_id, held.name[1], held.number), None)


class _Room:
    """Room that is left in a request."""

    def __init__(self) -> None:
        self.runs = RUNS_PER_REQUEST
        self.reason_bytes = REASON_BYTES_PER_REQUEST


def _answered(held: OpenLease, room: _Room) -> tuple[LeaseAnswer, _Part]:
    """The answer for one lease, as far as there is room."""
    upto = len(held.accepted)
    accepted = [*runs_of(held.accepted[held.accepted_sent : upto])]
    if len(accepted) > room.runs:
        upto = held.accepted_sent + room.runs
        accepted = [*runs_of(held.accepted[held.accepted_sent : upto])]
    room.runs -= len(accepted)
    by_kind: dict[tuple[int, str, float | None, int], list[Run]] = {}
    others = held.others_sent
    for one in held.others[others:]:
        if room.runs <= 0 or room.reason_bytes <= 0:
            break
        key = one.kind, one.reason, one.delay, one.due_us
        if key not in by_kind:
            by_kind[key] = []
            room.reason_bytes -= len(one.reason.encode())
        by_kind[key].append((one.first, one.end))
        room.runs -= 1
        others += 1
    named: dict[int, list[FailedRuns]] = {FAILED: [], REJECTED: []}
    plain: dict[int, list[Run]] = {RELEASED: [], SKIPPED: [], EXPIRED: [], LOST: []}
    delayed: list[DelayedRuns] = []
    extended: list[ExtendedRuns] = []
    everything: list[Run] = list(accepted)
    for (kind, reason, delay, due_us), given in by_kind.items():
        runs = [*merged(given)]
        if kind == EXTENDED:
            assert delay is not None
            extended.append(ExtendedRuns(runs, delay))
            continue
        everything += runs
        if kind in plain:
            plain[kind] = runs
        elif kind == DELAYED:
            delayed.append(DelayedRuns(runs, due_us))
        else:
            named[kind].append(FailedRuns(runs, reason, delay))
    answer = LeaseAnswer(
        held.topic_id, held.name[1], held.number, accepted, plain[RELEASED], named[FAILED],
        named[REJECTED], delayed, extended, plain[SKIPPED], plain[EXPIRED], plain[LOST],
    )  # fmt: skip
    return answer, _Part(held, upto, others, merged(everything))


def runs_of(offsets: Sequence[int]) -> Runs:
    """Single offsets, in any order and perhaps twice, as runs."""
    if not offsets:
        return ()
    if len(offsets) == 1:
        return ((offsets[0], offsets[0] + 1),)
    found = np.unique(np.array(offsets, np.int64))
    breaks = np.flatnonzero(np.diff(found) != 1)
    firsts = found[np.concatenate(([0], breaks + 1))]
    lasts = found[np.concatenate((breaks, [len(found) - 1]))]
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def merged(runs: Iterable[Run]) -> Runs:
    """Runs in any order, which may overlap, as runs that ascend and are apart."""
    found: list[Run] = []
    for first, end in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return tuple(found)
