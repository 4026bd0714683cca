"""Keeps only the newest record of each key, or of the partition, among those before a consumer.

For "key" it reads all of them and keeps only the newest record of each key so far, without Python
code per record. Memory is bounded. Where the keys themselves come to more than the
bound, the kept records go out, and the next poll goes on from there. Records without a key are all
kept. For "partition" the reader goes to the end at once and decodes one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from penstock.client.consumer.records import Chunk
from penstock.core.columns import BinaryColumn, Columns, NullColumn
from penstock.core.encode_columns import HeaderColumns, RecordColumns
from penstock.core.gather import Longs

LatestOnly = Literal["key", "partition"]

KEY_COST: Final = 128
"""Bytes that are reckoned for remembering one key, besides its record."""
_ROW_BITS: Final = 32
STEP_BACK: Final = 64

Fetch = Callable[[], list[Chunk]]


class _Kept(NamedTuple):
    """Rows of a chunk as they were numbered when it came, and the chunk of these rows alone."""

    rows: Longs
    chunk: Chunk


class NewestOfKeys:
    """Takes chunks in order and keeps the records that are the newest of their key.

    `newest`: the place of each key's newest record, number of its chunk and row in one int. A
    record without a key has that int itself as its key, which no key equals.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes | int, int] = {}
        self._kept: dict[int, _Kept] = {}
        self._count = 0
        self._bytes = 0
        self.seen = 0

    @property
    def nbytes(self) -> int:
        """Returns about how many bytes it holds."""
        return self._bytes + KEY_COST * len(self._newest)

    def add(self, chunk: Chunk) -> None:
        rows = np.arange(chunk.start, chunk.stop, dtype=np.int64)
        places = (rows + (self._count << _ROW_BITS)).tolist()
        self._newest.update(zip(_keys(chunk, places), places, strict=True))
        self._kept[self._count] = _Kept(rows, chunk)
        self._count += 1
        self.seen += len(rows)
        self._bytes += chunk.size

    def fills(self, chunks: Sequence[Chunk], bytes_max: int) -> bool:
        """Takes these in; returns whether the newest records alone come to about that many
        bytes."""
        for chunk in chunks:
            self.add(chunk)
        if self.nbytes <= bytes_max:
            return False
        self.thin()
        return self.nbytes > bytes_max // 2

    def thin(self) -> None:
        """Drops records that are not the newest."""
        if not self._kept:
            return
        places = np.fromiter(self._newest.values(), np.int64, len(self._newest))
        places.sort()
        numbers = np.array(list(self._kept), np.int64)
        edges = np.searchsorted(places, numbers << _ROW_BITS).tolist()
        kept: dict[int, _Kept] = {}
        for number, start, stop in zip(
            numbers.tolist(), edges, [*edges[1:], len(places)], strict=True
        ):
            if start < stop:
                rows, chunk = self._kept[number]
                left = places[start:stop] - (number << _ROW_BITS)
                kept[number] = _Kept(left, pick(chunk, np.searchsorted(rows, left)))
        self._kept = kept
        self._bytes = sum(entry.chunk.size for entry in kept.values())

    def chunks(self) -> list[Chunk]:
        """Returns the newest records, after `thin`."""
        return [entry.chunk for entry in self._kept.values()]


def _keys(chunk: Chunk, places: list[int]) -> Sequence[bytes | int]:
    """Returns the key of each row; where there is none, its place."""
    keys = chunk.keys
    if isinstance(keys, NullColumn):
        return places
    found: list[bytes | int | None] = [*keys.to_list()]
    if keys.valid is not None:
        for row in np.flatnonzero(~keys.valid).tolist():  # as `to_list` does
            found[row] = places[row]
    return found  # type: ignore[return-value]


def pick(chunk: Chunk, rows: Longs) -> Chunk:
    """Returns these rows of a chunk (counted from its first), ending where the chunk ends."""
    if len(rows) == len(chunk):
        return chunk
    columns, head = chunk.columns, chunk.columns.head
    rows = rows + chunk.start
    headers = columns.header_columns
    found = RecordColumns(
        columns.values,
        columns.keys if isinstance(columns.keys, BinaryColumn) else None,
        columns.timestamps - head.base_timestamp if columns.constant_timestamp is None else None,
        None if headers is None else HeaderColumns(*headers),
        columns.work,
    ).take(rows)
    size = found.values.nbytes + (0 if found.keys is None else found.keys.nbytes)
    picked = Columns(
        head._replace(
            record_count=len(rows),
            length=size,
            raw_body_length=size,
            last_offset_delta=chunk.next_offset - 1 - head.base_offset,
        ),
        found.values,
        NullColumn(len(rows)) if found.keys is None else found.keys,
        (columns.offsets[rows] - head.base_offset).astype(np.int32),
        found.timestamps,
        None if found.headers is None else (*found.headers,),
        found.work,
    )
    return Chunk(chunk.topic, chunk.partition, picked)


def newest_of_keys(fetch: Fetch, is_at_end: Callable[[], bool], bytes_max: int) -> NewestOfKeys:
    """Reads until the end, or until the newest records come to more than `bytes_max`."""
    newest = NewestOfKeys()
    while not is_at_end():
        found = fetch()
        if not found:
            break
        if newest.fills(found, bytes_max):
            break
    newest.thin()
    return newest


def newest_of_partition(
    fetch: Fetch, seek: Callable[[int], None], is_at_end: Callable[[], bool], start: int, end: int
) -> Chunk | None:
    """Returns the last record from `start` to `end`. The last offsets may have no record
    (compaction, marks of transactions): then it looks further and further back."""
    step = 1
    while True:
        at = max(start, end - step)
        seek(at)
        last: Chunk | None = None
        while not is_at_end():
            found = fetch()
            if not found:
                break
            last = found[-1]
        if last is not None:
            return last.cut(last.stop - 1, last.stop)
        if at == start:
            return None
        step *= STEP_BACK
