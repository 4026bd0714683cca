"""Records that waited and are back, one by one.

They may lie anywhere below the frontier, where a block of the window for each would cost 40 KB. So
each has an entry of its own here, as long as there is no block where it lies. Owns those entries,
and the order in which they became ready; knows no blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from penstock.cluster.shares.runs import Run


class ReturnedRecord(NamedTuple):
    """As the columns of a block have it."""

    state: int
    deliveries: int
    holder: int


class ReturnedRecords:
    """By offset."""

    def __init__(self) -> None:
        self._records: dict[int, ReturnedRecord] = {}
        self._of_state: dict[int, dict[int, None]] = {}
        """Offsets in the order in which they came to that state."""

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, offset: int) -> ReturnedRecord:
        return self._records[offset]

    def __iter__(self) -> Iterator[int]:
        """All offsets, ascending."""
        return iter(sorted(self._records))

    def between(self, first: int, end: int) -> list[int]:
        """Those of these offsets that are here, ascending."""
        if end - first == 1:  # by far the most are neighbours of none
            return [first] if first in self._records else []
        if end - first <= len(self._records):
            return [offset for offset in range(first, end) if offset in self._records]
        return sorted(offset for offset in self._records if first <= offset < end)

    def count(self, state: int) -> int:
        return len(self._of_state.get(state, ()))

    def in_state(self, state: int, count_max: int) -> list[int]:
        """The lowest offsets in this state, at most so many."""
        return heapq.nsmallest(count_max, self._of_state.get(state, ()))

    def longest_in(self, state: int, count_max: int) -> list[int]:
        """Those that are in this state for longest, at most so many."""
        return list(islice(self._of_state.get(state, ()), count_max))

    def in_line(self) -> Iterator[int]:
        """All offsets, those of each state in its order: for who makes the same of them."""
        return chain.from_iterable(self._of_state[state] for state in sorted(self._of_state))

    def put(self, offset: int, record: ReturnedRecord) -> None:
        """It is here, as this."""
        if (before := self._records.get(offset)) is not None:
            del self._of_state[before.state][offset]
        self._records[offset] = record
        self._of_state.setdefault(record.state, {})[offset] = None

    def take(self, offset: int) -> ReturnedRecord:
        """It is here no more."""
        record = self._records.pop(offset)
        del self._of_state[record.state][offset]
        return record

    def by_deliveries(self, first: int, end: int) -> Iterator[tuple[int, Run]]:
        """How often each of these offsets was delivered, all of which are here."""
        for offset in self.between(first, end):
            yield self._records[offset].deliveries, (offset, offset + 1)
