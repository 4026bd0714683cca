"""Records that wait for their time: delayed ones, and failed ones until they are tried again.

They are outside the window. A record costs 8 bytes once it is in a run:

    loose   a heap of up to `LOOSE_MAX` entries, where each new one goes
    runs    columns of entries in order, made of the loose ones when those are too many

An entry is due time, offset and number of deliveries. A run packs each into 64 bits, less its
smallest time and offset; entries that span more than that are two runs. A run never changes: it
is read from its beginning, and its first entries are let go. So a run is stored once, and a
snapshot only names how far it is read. Runs of which little is left go into the next one.

Which entries wait, and their order, depends on what was added and taken alone; how they are spread
over runs does not show. Imports no numpy: the node serves share groups.
"""

from __future__ import annotations

import heapq
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from penstock.cluster.shares.runs import Run, Runs, joined, without

LOOSE_MAX: Final = 1 << 13
"""Entries that are no run yet."""
SMALL_PART: Final = 8
"""A run of which less than such a part of `LOOSE_MAX` is left goes into the next one."""
SMALL_RUNS: Final = 8
"""So many of those go into one."""

_OFFSET_BITS: Final = 64
_DELIVERY_BITS: Final = 8
_DUE_SHIFT: Final = _OFFSET_BITS + _DELIVERY_BITS
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_DELIVERIES: Final = (1 << _DELIVERY_BITS) - 1
_HEAD: Final = struct.Struct("<QQBBI")
"""Smallest time, smallest offset, bits of offsets, bits of deliveries, entries."""


def entry(due_us: int, offset: int, deliveries: int) -> int:
    """As a number: entries come in the order of these."""
    return due_us << _DUE_SHIFT | offset << _DELIVERY_BITS | deliveries


class WaitingRecord(NamedTuple):
    due_us: int
    offset: int
    deliveries: int


def record_of(number: int) -> WaitingRecord:
    """Of an entry."""
    offset = number >> _DELIVERY_BITS & _OFFSET
    return WaitingRecord(number >> _DUE_SHIFT, offset, number & _DELIVERIES)


class WaitingRun:
    """Entries in order, of which the first `taken` are gone. `number`: by which the log has it; 0:
    it has it not."""

    __slots__ = ("_at", "_column", "_cut", "_head", "number")

    def __init__(self, head: tuple[int, int, int, int, int], column: array[int]) -> None:
        self.number = 0
        self._head = head
        self._column = column
        self._at = self._cut = 0  # in the column; and what was cut off before it

    @classmethod
    def made_of(cls, entries: Sequence[int]) -> Iterator[WaitingRun]:
        """Runs of these entries, which are in order: one, or as many as it takes."""
        if not entries:
            return
        due = entries[0] >> _DUE_SHIFT
        offsets = [number >> _DELIVERY_BITS & _OFFSET for number in entries]
        offset = min(offsets)
        offset_bits = (max(offsets) - offset).bit_length()
        bits = max(number & _DELIVERIES for number in entries).bit_length()
        shift = offset_bits + bits
        if ((entries[-1] >> _DUE_SHIFT) - due).bit_length() + shift > 64:
            half = len(entries) // 2
            yield from cls.made_of(entries[:half])
            yield from cls.made_of(entries[half:])
            return
        column = array("Q", [
            ((number >> _DUE_SHIFT) - due) << shift | (at - offset) << bits | number & _DELIVERIES
            for number, at in zip(entries, offsets, strict=True)
        ])  # fmt: skip
        yield cls((due, offset, offset_bits, bits, len(column)), column)

    def __len__(self) -> int:
        return len(self._column) - self._at

    @property
    def taken(self) -> int:
        return self._cut + self._at

    @property
    def offset_min(self) -> int:
        """No offset of it is below."""
        return self._head[1]

    def __iter__(self) -> Iterator[int]:
        return map(self._entry, self._column[self._at :])

    @property
    def first(self) -> int:
        """Its first entry; there is one."""
        return self._entry(self._column[self._at])

    def _entry(self, packed: int) -> int:
        due, offset, offset_bits, bits, _ = self._head
        return entry(
            due + (packed >> offset_bits + bits),
            offset + (packed >> bits & (1 << offset_bits) - 1),
            packed & (1 << bits) - 1,
        )

    def due(self, now_us: int, count_max: int) -> int:
        """How many of its entries are due by now, at most so many."""
        due, _, offset_bits, bits, _ = self._head
        later = (now_us + 1 - due) << offset_bits + bits
        if later <= 0:
            return 0
        most = min(self._at + count_max, len(self._column))
        return bisect_left(self._column, later, self._at, most) - self._at

    def take(self) -> None:
        """Its first entry is gone."""
        self.take_up_to(self.taken + 1)

    def take_up_to(self, taken: int) -> None:
        """So many are gone, from its beginning on. Raises ValueError for what it never had, or has
        given back to the memory."""
        at = taken - self._cut
        if not 0 <= at <= len(self._column):
            raise ValueError(f"{taken} entries of a run of {self._head[4]} cannot be gone")
        self._at = at
        if at >= LOOSE_MAX // SMALL_PART and 2 * at >= len(self._column):
            self._column = self._column[at:]
            self._cut, self._at = taken, 0

    def data(self) -> bytes:
        """All that is left of it, as `runs_in` reads it."""
        due, offset, offset_bits, bits, _ = self._head
        left = self._column[self._at :]
        return _HEAD.pack(due, offset, offset_bits, bits, len(left)) + left.tobytes()


def runs_in(data: bytes | memoryview) -> Iterator[WaitingRun]:
    """The runs that were put one behind the other. Raises ValueError for anything else."""
    at = 0
    while at < len(data):
        try:
            *head, count = _HEAD.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"no run of waiting records: {error}") from error
        at += _HEAD.size
        column = array("Q", bytes(data[at : at + 8 * count]))
        if len(column) != count or not count or head[2] + head[3] > 64:
            raise ValueError(f"a run of {count} waiting records ends after {len(column)}")
        at += 8 * count
        yield WaitingRun((head[0], head[1], head[2], head[3], count), column)


class WaitingImage(NamedTuple):
    """All that waits, for a log that has some of it. `runs`: number and how far it is read of each
    that the log has, or gets now (`fresh`, by number). `loose`: the rest."""

    loose: bytes
    runs: list[tuple[int, int]]
    fresh: dict[int, bytes]


class WaitingRecords:
    """The waiting records of a group in one partition, the soonest first."""

    def __init__(self, loose: bytes = b"", runs: Sequence[WaitingRun] = ()) -> None:
        self._loose = list(chain.from_iterable(runs_in(loose)))  # in order, which is a heap
        self._runs = [run for run in runs if len(run)]
        self._count = len(self._loose) + sum(map(len, self._runs))
        self._line_up()

    def _line_up(self) -> None:
        self._heads = [(run.first, run) for run in self._runs]
        heapq.heapify(self._heads)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """All entries, in order."""
        return heapq.merge(sorted(self._loose), *self._runs)

    @property
    def first_due_us(self) -> int | None:
        """When the first of them is due."""
        firsts = [*self._loose[:1], *(number for number, _ in self._heads[:1])]
        return min(firsts) >> _DUE_SHIFT if firsts else None

    @property
    def offset_min(self) -> int | None:
        """No offset that waits is below. It may be lower than the lowest: a run tells the lowest of
        those it began with."""
        loose = (record_of(number).offset for number in self._loose)
        return min(chain(loose, (run.offset_min for run in self._runs)), default=None)

    def due(self, now_us: int, count_max: int) -> int:
        """How many are due by now, at most so many. Looks at no others but those next to them."""
        least = entry(now_us + 1, 0, 0)
        found, places = 0, [0]
        while places and found < count_max:
            at = places.pop()
            if at < len(self._heads) and self._heads[at][0] < least:
                found += self._heads[at][1].due(now_us, count_max - found)
                places += (2 * at + 1, 2 * at + 2)
        places = [0]
        while places and found < count_max:
            at = places.pop()
            if at < len(self._loose) and self._loose[at] < least:
                found += 1
                places += (2 * at + 1, 2 * at + 2)
        return found

    # --- what changes it ---
    def add(self, entries: Iterable[int]) -> None:
        for number in entries:
            heapq.heappush(self._loose, number)
            self._count += 1
        if len(self._loose) >= LOOSE_MAX:
            self._pack()

    def _pack(self) -> None:
        """Makes a run of what is loose, and of runs of which little is left."""
        small = sorted((run for run in self._runs if len(run) < LOOSE_MAX // SMALL_PART), key=len)
        small = small[:SMALL_RUNS]
        gone = set(map(id, small))
        entries = sorted(chain(self._loose, *small))
        self._loose = []
        self._runs = [run for run in self._runs if id(run) not in gone]
        self._runs += WaitingRun.made_of(entries)
        self._line_up()

    def take(self, count: int) -> list[int]:
        """Takes out the first entries, so many: there are as many."""
        found = []
        heads, loose = self._heads, self._loose
        is_over = False
        for _ in range(count):
            if not heads or (loose and loose[0] < heads[0][0]):
                found.append(heapq.heappop(loose))
                continue
            number, run = heads[0]
            found.append(number)
            run.take()
            if len(run):
                heapq.heapreplace(heads, (run.first, run))
            else:
                heapq.heappop(heads)
                is_over = True
        self._count -= count
        if is_over:
            self._runs = [run for run in self._runs if len(run)]
        return found

    # --- for a log ---
    def data(self) -> bytes:
        """All of it, as `loose` takes it: the same for the same entries."""
        return b"".join(run.data() for run in WaitingRun.made_of([*self]))

    def image(self, numbers: Iterator[int]) -> WaitingImage:
        """All of it, for a log that has the runs with a number. Runs without one get the next of
        `numbers` there; here they keep none until that is replayed."""
        runs, fresh = [], {}
        for run in self._runs:
            number, taken = run.number, run.taken
            if not number:
                number, taken = next(numbers), 0
                fresh[number] = run.data()
            runs.append((number, taken))
        loose = b"".join(run.data() for run in WaitingRun.made_of(sorted(self._loose)))
        return WaitingImage(loose, runs, fresh)


def named_runs(
    names: Iterable[Sequence[int]], there: Mapping[int, WaitingRun]
) -> Iterator[WaitingRun]:
    """The runs that an image names. Raises ValueError for one that is not `there`."""
    for number, taken in names:
        if (run := there.get(number)) is None:
            raise ValueError(f"run {number} of waiting records is not there")
        run.take_up_to(taken)
        yield run


def with_dues(asked: Runs, dues: Sequence[int], held: Runs) -> Iterable[tuple[Run, int]]:
    """The part of the runs that is held, with their times."""
    if held == joined(asked):
        return zip(asked, dues, strict=True)
    return (
        (part, due)
        for run, due in zip(asked, dues, strict=True)
        for part in without((run,), without((run,), held))
    )


def packed_dues(later: Sequence[tuple[Run, int]]) -> list[int]:
    """As `Postponed` has them."""
    first = later[0][1]
    if all(due == first for _, due in later):
        return [first]
    each = [due for (start, end), due in later for _ in range(start, end)]
    return [first, *(due - before for before, due in pairwise(each))]
