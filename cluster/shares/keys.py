"""Which records of a partition have one key, so that they are given one after the other.

Keys are known by hashes of 64 bits, which workers tell with the offsets; 0: it has none. Two keys
of one hash wait for each other, and nothing else comes of it. The first record of a key that is not
final is its head; the others are behind it. All of it follows from the hashes of records that are
not final and from their order, so that a log or a snapshot makes it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.cluster.shares.runs import Run, Runs
from penstock.cluster.shares.window import BLOCK
from penstock.core.errors import ConfigError

HASH_BYTES: Final = 8
NONE: Final = 0
_NOBODY: Final[list[int]] = []


def hashes_of(data: bytes) -> array[int]:
    """Little-endian hashes of a message. Raises `ConfigError` for what is none."""
    if len(data) % HASH_BYTES:
        raise ConfigError(f"{len(data)} bytes of hashes: not a multiple of {HASH_BYTES}")
    return array("Q", data)


class HashColumn:
    """A hash for each record that is not final, in blocks of offsets. One whose hashes are all gone
    is dropped."""

    __slots__ = ("_blocks", "_left")

    def __init__(self) -> None:
        self._blocks: dict[int, array[int]] = {}
        self._left: dict[int, int] = {}

    def put(self, first: int, hashes: array[int]) -> None:
        """From `first` on."""
        for number, at, piece in _pieces(first, hashes):
            there = len(piece) - piece.count(NONE)
            if there and number not in self._blocks:
                self._blocks[number] = array("Q", bytes(HASH_BYTES * BLOCK))
                self._left[number] = 0
            if there:
                self._blocks[number][at : at + len(piece)] = piece
                self._left[number] += there

    def of(self, runs: Iterable[Run]) -> list[int]:
        """The hash of each offset, in order."""
        found: list[int] = []
        for number, at, end in _parts(runs):
            block = self._blocks.get(number)
            found += block[at:end] if block is not None else [NONE] * (end - at)
        return found

    def take(self, runs: Iterable[Run]) -> list[int]:
        """The same, and they are not there any more."""
        found: list[int] = []
        for number, at, end in _parts(runs):
            block = self._blocks.get(number)
            if block is None:
                found += [NONE] * (end - at)
                continue
            piece = block[at:end]
            found += piece
            block[at:end] = array("Q", bytes(HASH_BYTES * (end - at)))
            self._left[number] -= len(piece) - piece.count(NONE)
            if not self._left[number]:
                del self._blocks[number], self._left[number]
        return found

    def columns(self) -> list[tuple[int, bytes]]:
        """Number and hashes of each block, ascending."""
        return [(number, block.tobytes()) for number, block in sorted(self._blocks.items())]

    @classmethod
    def of_columns(cls, columns: Iterable[tuple[int, bytes]]) -> HashColumn:
        """Returns the one that `columns` was taken of."""
        made = cls()
        for number, data in columns:
            made.put(number * BLOCK, array("Q", data))
        return made

    def items(self) -> Iterator[tuple[int, int]]:
        """Yields (offset, hash) of all that have one, ascending."""
        for number, block in sorted(self._blocks.items()):
            yield from ((number * BLOCK + at, it) for at, it in enumerate(block) if it)


class KeyOrder:
    """Heads of keys, and who is behind them: `count` records."""

    __slots__ = ("_behind", "column", "count")

    def __init__(self) -> None:
        self.column = HashColumn()
        self.count = 0
        self._behind: dict[int, list[int]] = {}

    @classmethod
    def of(cls, column: HashColumn) -> KeyOrder:
        """Returns that of records whose hashes are these."""
        made = cls()
        made.column = column
        for offset, key in column.items():
            made._add(offset, key)
        return made

    def begin(self, first: int, hashes: array[int]) -> list[int]:
        """Records from `first` on are known by these hashes. Offsets of those that are behind
        others."""
        self.column.put(first, hashes)
        fresh = dict.fromkeys(hashes, _NOBODY)
        if len(fresh) == len(hashes) and self._behind.keys().isdisjoint(fresh):
            fresh.pop(NONE, None)
            self._behind.update(fresh)
            return []
        pairs = enumerate(hashes, first)
        return [offset for offset, key in pairs if key and self._add(offset, key)]

    def _add(self, offset: int, key: int) -> bool:
        """Whether it is behind another one."""
        queue = self._behind.get(key)
        if queue is None:
            self._behind[key] = _NOBODY
            return False
        if not queue:
            self._behind[key] = [offset]
        else:
            queue.append(offset)
        self.count += 1
        return True

    def end(self, runs: Iterable[Run]) -> list[int]:
        """These records, heads all of them, hold nobody back any more. Offsets that are heads
        now."""
        found = []
        for key in self.column.take(runs):
            if not key:
                continue
            if queue := self._behind[key]:
                found.append(queue.pop(0))
            else:
                del self._behind[key]
        self.count -= len(found)
        return found

    def next_count(self, runs: Iterable[Run]) -> int:
        """How many records become heads once these end."""
        if not self.count:
            return 0
        return sum(bool(key and self._behind.get(key)) for key in self.column.of(runs))


def single_runs(offsets: Iterable[int]) -> Runs:
    """Single offsets, in any order, as runs."""
    found: list[Run] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def _parts(runs: Iterable[Run]) -> Iterator[tuple[int, int, int]]:
    """Yields block, and from where to where in it, of each piece of the runs."""
    for first, end in runs:
        while first < end:
            number, at = divmod(first, BLOCK)
            upto = min(BLOCK, at + end - first)
            yield number, at, upto
            first += upto - at


def _pieces(first: int, hashes: array[int]) -> Iterator[tuple[int, int, array[int]]]:
    """Yields block, place in it, and the hashes for there."""
    done = 0
    for number, at, upto in _parts([(first, first + len(hashes))]):
        yield number, at, hashes[done : done + upto - at]
        done += upto - at
