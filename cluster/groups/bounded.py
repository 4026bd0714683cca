"""A decision about many groups, as much of it as one batch of the log takes.

Owns that bound. The next decision takes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.cluster.decisions import Record

RECORDS_MAX: Final = 2000
RECORD_BYTES: Final = 16
"""Most bytes that a record takes beside its key and value."""


class Bounded:
    """`records` taken so far, up to about `nbytes_max` and `RECORDS_MAX`."""

    def __init__(self, nbytes_max: int) -> None:
        self._left = nbytes_max
        self.records: list[Record] = []

    def take(self, records: Sequence[Record]) -> bool:
        """Take all of these, or none where that is too much. The first are never too much: what one
        group needs is not divided."""
        size = size_of(records)
        if self.records and (size > self._left or len(self.records) >= RECORDS_MAX):
            return False
        self._left -= size
        self.records += records
        return True


def size_of(records: Iterable[Record]) -> int:
    """About how much of a batch they take."""
    return sum(len(key) + len(value or b"") + RECORD_BYTES for key, value in records)
