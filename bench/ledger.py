"""The account of every record: which came, from which producer, in which order; exact, and cheap
per record.

Values carry their number modulo the length of the sender's pool. Within one partition the records
of one producer come nearly in order. So the number itself follows from the one before it, as long
as no record is displaced by half a pool. A fault shows in the sums either way: at the end each
number of each producer must have been seen once.

Owns counting. Knows nothing of clients; works on arrays of stamps (the values' first 8 bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.bench.payload import NUMBER_MASK, PRODUCER_SHIFT
from penstock.core.errors import CorruptBatchError

Stamps = npt.NDArray[np.uint64]
Seen = npt.NDArray[np.uint8]

_head = itemgetter(slice(8))


def stamps_of(values: Sequence[bytes]) -> Stamps:
    """Returns the stamps of a list of values, taken without Python code per value."""
    return np.frombuffer(b"".join(map(_head, values)), "<u8")


def stamps_in_place(data: Any, offsets: npt.NDArray[np.int32]) -> Stamps:
    """Returns the stamps of a column of values of one width, which lie in `data` from `offsets[0]`
    on."""
    first, width = int(offsets[0]), int(offsets[1]) - int(offsets[0])
    if not bool((np.diff(offsets) == width).all()):
        raise CorruptBatchError("values of different sizes came where all were sent in one size")
    return np.ndarray((len(offsets) - 1,), "<u8", data, first, (width,))


@dataclass(frozen=True, slots=True)
class Book:
    """One consumer's part. `seen[p][n]`: how often record n of producer p came."""

    seen: list[Seen]
    received: int
    out_of_order: int
    foreign: int


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a run's records.

    `out_of_order`: records that came after a later one of the same producer in the same partition.
    `foreign`: records that no producer of the run can have sent."""

    received: int
    lost: int
    doubled: int
    out_of_order: int
    foreign: int

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order or self.foreign)


class Ledger:
    """One consumer's book. All consumers together expect `totals[p]` records of producer p."""

    def __init__(self, totals: Sequence[int], pool: int) -> None:
        self._pool = pool
        self.seen: list[Seen] = [np.zeros(total, np.uint8) for total in totals]
        self._cycles = [
            np.resize(np.arange(pool, dtype=np.uint64) | np.uint64(producer << PRODUCER_SHIFT),
                      2 * pool)
            for producer in range(len(totals))
        ]  # fmt: skip
        self._previous: dict[tuple[int, int], int] = {}
        self._highest: dict[tuple[int, int], int] = {}
        self.received = 0
        self.out_of_order = 0
        self.foreign = 0

    def add(self, partition: int, stamps: Stamps) -> None:
        """Books records in the order in which they came from a partition."""
        self.received += len(stamps)
        for start in range(0, len(stamps), self._pool):
            piece = stamps[start : start + self._pool]
            if not self._add_run(partition, piece):
                self._add_slowly(partition, piece)

    def _add_run(self, partition: int, stamps: Stamps) -> bool:
        """Books a piece that is one producer's unbroken run, going up; False where it is not."""
        first = int(stamps[0])
        producer, residue = first >> PRODUCER_SHIFT, first & NUMBER_MASK
        if producer >= len(self.seen) or residue >= self._pool:
            return False
        count = len(stamps)
        if not np.array_equal(stamps, self._cycles[producer][residue : residue + count]):
            return False
        where = (partition, producer)
        start = self._number(where, residue, len(self.seen[producer]))
        stop = start + count
        if start <= self._highest.get(where, -1) or stop > len(self.seen[producer]):
            return False
        self.seen[producer][start:stop] += 1
        self._previous[where] = self._highest[where] = stop - 1
        return True

    def _number(self, where: tuple[int, int], residue: int, total: int) -> int:
        """Returns the number nearest to the one before that leaves `residue`."""
        previous = self._previous.get(where)
        if previous is None or total <= self._pool:
            return residue
        step = (residue - previous) % self._pool
        return previous + (step if step <= self._pool // 2 else step - self._pool)

    def _add_slowly(self, partition: int, stamps: Stamps) -> None:
        producers = (stamps >> np.uint64(PRODUCER_SHIFT)).astype(np.int64)
        residues = (stamps & np.uint64(NUMBER_MASK)).astype(np.int64)
        known = (producers < len(self.seen)) & (residues < self._pool)
        self.foreign += int(np.count_nonzero(~known))
        for producer in np.unique(producers[known]).tolist():
            self._add_of(partition, producer, residues[known & (producers == producer)])

    def _add_of(self, partition: int, producer: int, residues: npt.NDArray[np.int64]) -> None:
        where = (partition, producer)
        seen = self.seen[producer]
        if len(seen) <= self._pool:
            numbers = residues
        else:
            first = self._number(where, int(residues[0]), len(seen))
            steps = np.diff(residues) % self._pool
            steps[steps > self._pool // 2] -= self._pool
            numbers = first + np.concatenate(([0], np.cumsum(steps)))
        before = self._highest.get(where, -1)
        tops = np.maximum.accumulate(np.concatenate(([before], numbers)))
        self.out_of_order += int(np.count_nonzero(numbers < tops[:-1]))
        self._previous[where] = int(numbers[-1])
        self._highest[where] = int(tops[-1])
        inside = (numbers >= 0) & (numbers < len(seen))
        self.foreign += int(np.count_nonzero(~inside))
        np.add.at(seen, numbers[inside], 1)

    def close(self) -> Book:
        """Returns the book at the end."""
        return Book(self.seen, self.received, self.out_of_order, self.foreign)


def settle(books: Sequence[Book]) -> Account:
    """Adds up all consumers' books."""
    lost = doubled = 0
    for parts in zip(*(book.seen for book in books), strict=True):
        total = np.zeros(len(parts[0]), np.uint32)
        for part in parts:
            total += part
        lost += int(np.count_nonzero(total == 0))
        doubled += int((total[total > 1] - 1).sum())
    return Account(
        sum(book.received for book in books),
        lost,
        doubled,
        sum(book.out_of_order for book in books),
        sum(book.foreign for book in books),
    )
