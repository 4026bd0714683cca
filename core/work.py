"""The sections for work queues: due and expiry times, priorities and dedup ids of records.

    due, expiry times    base int64, then int32[n] or int64[n] differences to it, -1 for none;
                         where all records have the same one, the base alone
    priorities           uint8[n], 255 for none; where all are the same, one byte
    dedup ids            validity, int32[n+1] offsets and bytes, as keys have them

A batch without any of them has no byte for it; one with some says so in its attributes. They follow
the block of a compressed body uncompressed, in a directory of their own. So a check of due times
expands nothing, and the bytes received bound its cost.

Owns the coding of these sections, and their bounds. Imports no numpy: writers check them. Never
decides about a record that is due.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeVar, overload

from penstock.core import header as hd
from penstock.core import plain
from penstock.core import sections as sc
from penstock.core.errors import CorruptBatchError

TIME_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999: above it a time is no datetime."""
PRIORITY_MAX: Final = 9
DEDUP_ID_BYTES_MAX: Final = 128

_BASE: Final = struct.Struct("<q")
_NO_TIME: Final = -1
_NO_PRIORITY: Final = 255
_PRIORITIES: Final = bytes((*range(PRIORITY_MAX + 1), _NO_PRIORITY))
_WIDTHS: Final = {sc.ENCODING_INT32: "i", sc.ENCODING_INT64: "q"}
_SECTIONS: Final = (
    sc.SECTION_DUE_TIMES,
    sc.SECTION_EXPIRY_TIMES,
    sc.SECTION_PRIORITIES,
    sc.SECTION_DEDUP_ID_OFFSETS,
)
T = TypeVar("T")

Packed = tuple[int, int, bytes]
"""A section: its id, its encoding, its bytes."""


class WorkFields(NamedTuple):
    """Of one record. Times in microseconds since the epoch; None for what it does not have."""

    due: int | None = None
    expires: int | None = None
    priority: int | None = None
    dedup_id: bytes | None = None

    @property
    def size(self) -> int:
        """The most that it adds to a body, in bytes."""
        return 24 + len(self.dedup_id or b"")


_NOTHING: Final = WorkFields()


class WorkColumns(NamedTuple):
    """Of n records; None for a column that no record uses."""

    due: Sequence[int | None] | None = None
    expires: Sequence[int | None] | None = None
    priorities: Sequence[int | None] | None = None
    dedup_ids: Sequence[bytes | None] | None = None

    @classmethod
    def of(cls, records: Iterable[WorkFields | None]) -> WorkColumns:
        return cls._make(map(_used, zip(*(each or _NOTHING for each in records), strict=True)))

    def sizes(self, count: int) -> Iterator[int]:
        """The most that each of `count` records adds to a body, in bytes."""
        return (24 + len(each or b"") for each in self.dedup_ids or repeat(None, count))

    def run(self, start: int, stop: int) -> WorkColumns:
        """These rows."""
        return WorkColumns._make(None if column is None else column[start:stop] for column in self)

    def take(self, rows: Iterable[int]) -> WorkColumns:
        """These rows in this order."""
        rows = list(rows)
        return WorkColumns._make(
            None if column is None else list(map(column.__getitem__, rows)) for column in self
        )


def _used(column: Sequence[T | None]) -> Sequence[T | None] | None:
    return None if column.count(None) == len(column) else column


# --- there ---
def packed(columns: WorkColumns) -> list[Packed]:
    """The sections of these columns; none where no record has anything."""
    found = []
    if (times := _packed_times(columns.due)) is not None:
        found.append((sc.SECTION_DUE_TIMES, *times))
    if (times := _packed_times(columns.expires)) is not None:
        found.append((sc.SECTION_EXPIRY_TIMES, *times))
    if columns.priorities is not None and _used(columns.priorities) is not None:
        numbers = bytes(_NO_PRIORITY if each is None else each for each in columns.priorities)
        if numbers.count(numbers[0]) == len(numbers):
            found.append((sc.SECTION_PRIORITIES, sc.ENCODING_CONSTANT, numbers[:1]))
        else:
            found.append((sc.SECTION_PRIORITIES, sc.ENCODING_PLAIN, numbers))
    if columns.dedup_ids is not None and _used(columns.dedup_ids) is not None:
        found += plain.column_sections(
            columns.dedup_ids,
            sc.SECTION_DEDUP_ID_VALIDITY,
            sc.SECTION_DEDUP_ID_OFFSETS,
            sc.SECTION_DEDUP_ID_BYTES,
        )
    return found


def _packed_times(column: Sequence[int | None] | None) -> tuple[int, bytes] | None:
    """Encoding and bytes of a column of times; None where there is none in it."""
    times = [time for time in column or () if time is not None]
    if column is None or not times:
        return None
    base, top = min(times), max(times)
    if base == top and len(times) == len(column):
        return sc.ENCODING_CONSTANT, _BASE.pack(base)
    encoding = sc.ENCODING_INT32 if top - base < 1 << 31 else sc.ENCODING_INT64
    deltas = (_NO_TIME if time is None else time - base for time in column)
    return encoding, _BASE.pack(base) + array(_WIDTHS[encoding], deltas).tobytes()


# --- back ---
class TimeSection(NamedTuple):
    """Times of records: differences to a base, -1 for none. No differences: all have the base."""

    base: int
    deltas: array[int] | None


class TimeColumn(Sequence[int | None]):
    """The times of a batch, which become numbers where they are asked for: of a batch of a thousand
    a work queue may want one record."""

    __slots__ = ("_base", "_count", "_deltas")

    def __init__(self, section: TimeSection, count: int) -> None:
        self._base, self._deltas = section
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int | None]:
        return iter(self[:])

    @overload
    def __getitem__(self, rows: int) -> int | None: ...

    @overload
    def __getitem__(self, rows: slice) -> list[int | None]: ...

    def __getitem__(self, rows: int | slice) -> int | list[int | None] | None:
        if not isinstance(rows, slice):
            row = range(self._count)[rows]
            return self[row : row + 1][0]
        base = self._base
        if self._deltas is None:
            return [base] * len(range(*rows.indices(self._count)))
        return [None if delta < 0 else base + delta for delta in self._deltas[rows]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self[:]))


class WorkSections(NamedTuple):
    """The sections of a batch, every length and value checked, and nothing expanded yet."""

    due: TimeSection | None
    expires: TimeSection | None
    priorities: bytes | None
    dedup_ids: list[bytes | None] | None

    def columns(self, count: int) -> WorkColumns:
        """Of `count` records; not before another section has shown that there are so many."""
        priorities: list[int | None] | None = None
        if self.priorities is not None:
            numbers = self.priorities * (count if len(self.priorities) == 1 else 1)
            priorities = [None if each == _NO_PRIORITY else each for each in numbers]
        return WorkColumns(
            None if self.due is None else TimeColumn(self.due, count),
            None if self.expires is None else TimeColumn(self.expires, count),
            priorities,
            self.dedup_ids,
        )


def ends_of(deltas: array[int]) -> tuple[int, int]:
    """The least and the greatest."""
    return min(deltas), max(deltas)


def read_work(
    stored: bytes | memoryview,
    head: hd.BatchHeader,
    ends: Callable[[array[int]], tuple[int, int]] = ends_of,
) -> WorkSections:
    """The sections of a batch whose attributes say that it has some, out of its body as it is
    stored. `ends`: who has numpy finds them sooner. Raises `CorruptBatchError`."""
    body = stored if head.codec == hd.CODEC_NONE else plain.behind_block(stored)
    found, count = sc.directory(body), head.record_count
    if not count or not any(ident in found for ident in _SECTIONS):
        raise CorruptBatchError("a batch promises sections for work queues and lacks them")
    return WorkSections(
        _times(body, found, sc.SECTION_DUE_TIMES, count, ends),
        _times(body, found, sc.SECTION_EXPIRY_TIMES, count, ends),
        _priorities(body, found, count),
        _dedup_ids(body, found, count),
    )


def _times(
    body: hd.Buffer, found: sc.Directory, ident: int, count: int,
    ends: Callable[[array[int]], tuple[int, int]],
) -> TimeSection | None:  # fmt: skip
    if ident not in found:
        return None
    encoding, start, length = found[ident]
    width = {sc.ENCODING_CONSTANT: 0, sc.ENCODING_INT32: 4, sc.ENCODING_INT64: 8}.get(encoding)
    if width is None or length != _BASE.size + width * count:
        raise CorruptBatchError(
            f"section {ident} in encoding {encoding} holds {length} bytes for {count} records"
        )
    (base,) = _BASE.unpack_from(body, start)
    deltas, low, high = None, 0, 0
    if width:
        deltas = array(_WIDTHS[encoding], bytes(body[start + _BASE.size : start + length]))
        low, high = ends(deltas)
    if low < _NO_TIME or base < 0 or base + max(high, 0) > TIME_MAX:
        raise CorruptBatchError(
            f"section {ident} has times {low} to {high} microseconds from {base}, which is not "
            f"between 0 and {TIME_MAX}"
        )
    return TimeSection(base, deltas)


def _priorities(body: hd.Buffer, found: sc.Directory, count: int) -> bytes | None:
    if sc.SECTION_PRIORITIES not in found:
        return None
    encoding, start, length = found[sc.SECTION_PRIORITIES]
    wanted = {sc.ENCODING_CONSTANT: 1, sc.ENCODING_PLAIN: count}.get(encoding)
    numbers = bytes(body[start : start + length])
    if length != wanted or numbers.translate(None, _PRIORITIES):
        raise CorruptBatchError(
            f"priorities of {count} records in encoding {encoding} hold {length} bytes, or others "
            f"than 0 to {PRIORITY_MAX}"
        )
    return numbers


def _dedup_ids(body: hd.Buffer, found: sc.Directory, count: int) -> list[bytes | None] | None:
    if sc.SECTION_DEDUP_ID_OFFSETS not in found:
        return None
    idents = plain.column(
        body,
        found,
        sc.SECTION_DEDUP_ID_VALIDITY,
        sc.SECTION_DEDUP_ID_OFFSETS,
        sc.SECTION_DEDUP_ID_BYTES,
        count,
    )
    if not all(each is None or 0 < len(each) <= DEDUP_ID_BYTES_MAX for each in idents):
        raise CorruptBatchError(f"a dedup id has no byte, or over {DEDUP_ID_BYTES_MAX}")
    return idents
