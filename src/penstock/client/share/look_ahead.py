"""Records that a worker of a group with an order, or with turns, reads ahead of its leases.

The coordinator begins with records whose keys and tenants it was told. A worker reads the records
that nobody has had, tells their hashes with its next acquire, and keeps the records: it mostly gets
some of these. It reads again those that were evicted, and those that others told.

Owns these records, within `bytes_max`, and their hashes. Fetches nothing by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk
from penstock.client.share.key_hashes import Hashes, header_hashes, key_hashes
from penstock.cluster.shares.policy import HEADER
from penstock.core.gather import Longs
from penstock.ipc.sharing import HASHES_BYTES_MAX, ShareSettings

HASH_BYTES: Final = 8
_NONE: Final = np.empty(0, np.int64)


class ToldPart(NamedTuple):
    """Hashes of the records of a partition from `first` on."""

    first: int
    keys: bytes
    tenants: bytes


@dataclass(slots=True, eq=False)
class ReadPiece:
    """Offsets `first` to `end`, with the rows of one chunk, which goes when it is evicted; those of
    a gap have none. `columns`: hashes of keys, and of tenants, by rows, which have `offsets`."""

    first: int
    end: int
    chunk: Chunk | None = None
    offsets: Longs | None = None
    columns: tuple[Hashes | None, Hashes | None] = (None, None)

    def hashes(self, which: int, first: int, end: int) -> Hashes:
        """Of these offsets of it."""
        found = np.zeros(end - first, np.uint64)
        column = self.columns[which]
        if column is not None and self.offsets is not None:
            low, high = np.searchsorted(self.offsets, (first, end))
            found[self.offsets[low:high] - first] = column[low:high]
        return found


@dataclass(slots=True)
class PartAhead:
    """`frontier`: nobody has had the records from there on. `end`: read so far. `pieces`: without
    room between them, up to `end`."""

    frontier: int
    end: int
    pieces: list[ReadPiece] = field(default_factory=list)

    def at(self, offset: int) -> int:
        """Which piece has that offset."""
        return bisect_right(self.pieces, offset, key=_first) - 1


def _first(piece: ReadPiece) -> int:
    return piece.first


class LookAhead:
    """Of a worker. `is_on`: whether its group has an order, or turns."""

    def __init__(self, settings: ShareSettings, bytes_max: int) -> None:
        self.is_on = bool(settings.order or settings.fair)
        self._has_keys = bool(settings.order)
        self._by_key = settings.fair == "key" and not settings.order
        name = settings.fair.removeprefix(HEADER) if settings.fair.startswith(HEADER) else ""
        self._header = name.encode()
        self._bytes_max = bytes_max
        self._parts: dict[TopicPartition, PartAhead] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._kept: deque[ReadPiece] = deque()
        self._bytes = 0
        columns = self._has_keys + bool(self._header or self._by_key)
        self.told_max = HASHES_BYTES_MAX // HASH_BYTES // max(columns, 1)
        """Records that one request tells of."""

    # --- reading ---
    def led(self, name: TopicPartition, epoch: int) -> None:
        """Its leader has this epoch. Another one may have other records there: what was read of the
        one before is read again."""
        if self._epochs.get(name, epoch) != epoch:
            self.forget(name)
        self._epochs[name] = epoch

    def expects(self, name: TopicPartition, frontier: int) -> int:
        """Nobody has had the records of it from there on. Returns where it is to be read on."""
        there = self._parts.get(name)
        if there is None or not there.frontier <= frontier <= there.end:
            self.forget(name)
            there = self._parts[name] = PartAhead(frontier, frontier)
        there.frontier = frontier
        while there.pieces and there.pieces[0].chunk is None and there.pieces[0].end <= frontier:
            del there.pieces[0]
        return there.end

    def wants(self, name: TopicPartition) -> bool:
        """Whether more of it is to be read."""
        return self.untold(name) < self.told_max

    def untold(self, name: TopicPartition) -> int:
        """Offsets that were read and that nobody has had."""
        there = self._parts.get(name)
        return 0 if there is None else there.end - there.frontier

    def is_at(self, name: TopicPartition, offset: int) -> bool:
        """Whether it is to be read on from there."""
        there = self._parts.get(name)
        return there is not None and there.end == offset

    def passed(self, name: TopicPartition, upto: int) -> None:
        """Records up to there cannot be read now: who is given them finds out why."""
        there = self._parts[name]
        there.pieces, there.end = [*there.pieces, ReadPiece(there.end, upto, None, _NONE)], upto

    def came(self, name: TopicPartition, chunks: Sequence[Chunk], upto: int) -> None:
        """These were read of it, up to that offset."""
        there = self._parts[name]
        pieces, at = [], there.end
        for chunk in chunks:
            first, end = chunk.row_offset(chunk.start), chunk.row_offset(chunk.stop - 1) + 1
            if first > at:
                pieces.append(ReadPiece(at, first))
            keys = key_hashes(chunk) if self._has_keys or self._by_key else None
            tenants = header_hashes(chunk, self._header) if self._header else None
            columns = (keys if self._has_keys else None, keys if self._by_key else tenants)
            pieces.append(ReadPiece(first, end, chunk, chunk.offsets, columns))
            at = end
        if upto > at:
            pieces.append(ReadPiece(at, upto))
        # In one go, for interrupts: what was not taken in is read again.
        there.pieces, there.end = there.pieces + pieces, max(at, upto)
        self._keep([piece for piece in pieces if piece.chunk is not None])

    def _keep(self, pieces: list[ReadPiece]) -> None:
        for piece in pieces:
            assert piece.chunk is not None
            self._kept.append(piece)
            self._bytes += piece.chunk.size
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            gone = self._kept.popleft()
            assert gone.chunk is not None
            self._bytes -= gone.chunk.size
            gone.chunk = None

    def forget(self, name: TopicPartition | None = None) -> None:
        """Lets go of what was read of it, or of all: it is read again."""
        names = [*self._parts] if name is None else [name]
        gone = {id(piece) for each in names if (it := self._parts.pop(each, None)) is not None
                for piece in it.pieces}  # fmt: skip
        self._kept = deque(piece for piece in self._kept if id(piece) not in gone)
        self._bytes = sum(piece.chunk.size for piece in self._kept if piece.chunk is not None)

    # --- telling ---
    def told(self, name: TopicPartition, count_max: int) -> ToldPart:
        """Hashes of the first records that nobody has had, at most so many."""
        there = self._parts[name]
        first, end = there.frontier, min(there.end, there.frontier + count_max)
        parts: tuple[list[Hashes], list[Hashes]] = ([], [])
        for piece in there.pieces[max(0, there.at(first)) :]:
            low, high = max(first, piece.first), min(end, piece.end)
            if low < high:
                for which, found in enumerate(parts):
                    found.append(piece.hashes(which, low, high))
        keys, tenants = (
            np.concatenate(found).astype("<u8").tobytes() if wanted and found else b""
            for wanted, found in zip(
                (self._has_keys, self._by_key or self._header), parts, strict=True
            )
        )
        return ToldPart(first, keys, tenants)

    # --- leased records ---
    def take(
        self, name: TopicPartition, first: int, end: int, count_max: int
    ) -> tuple[list[Chunk], int] | None:
        """The rows of these offsets, at most so many, and where that ends. None: the first of them
        is to be read again."""
        there = self._parts.get(name)
        if there is None or not there.pieces or not there.pieces[0].first <= first < there.end:
            return None
        chunks: list[Chunk] = []
        begun = first
        for piece in there.pieces[there.at(first) :]:
            if first >= end or count_max <= 0:
                break
            if piece.chunk is None:
                if piece.offsets is not None:
                    break  # it was evicted, or could not be read
                first = min(end, piece.end)
                continue
            columns = piece.chunk.columns
            low = max(piece.chunk.start, columns.first_at(first))
            high = min(piece.chunk.stop, columns.first_at(end), low + count_max)
            if low < high:
                chunks.append(piece.chunk.cut(low, high))
                count_max -= high - low
            stops = high < piece.chunk.stop
            first = min(end, piece.chunk.row_offset(high) if stops else piece.end)
        return (chunks, first) if first > begun else None
