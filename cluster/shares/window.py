"""The state of each record that a share group has begun with and not finished, by its offset.

**Layout.** Blocks of 4,096 offsets; one whose records are all finished is dropped. So a job that
takes an hour costs one block, however many records behind it are done meanwhile. A block has three
columns: the state (a byte), how often the record was delivered (a byte), and the number of the
lease or the wait that holds it. Everything works on slices of columns: no step per record.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from penstock.cluster.shares.returned import ReturnedRecord, ReturnedRecords
from penstock.cluster.shares.runs import Run, Runs, count, joined, without

BLOCK: Final = 4096
NEW, READY, SUSPECT, LEASED, CONDEMNED, BEHIND, WAITING, DONE, DEAD, SKIPPED = range(10)
"""`NEW`: not begun with. `SUSPECT`: ready, but it may have ended a worker. `CONDEMNED`: to become a
dead letter. `BEHIND`: ready once the one before it of its key is over. `WAITING`: outside the
window. The last three are final."""
STATES: Final = (
    "new", "ready", "suspect", "leased", "condemned", "behind", "waiting", "done", "dead", "skipped"
)  # fmt: skip
LEFT_FIRST: Final = WAITING
"""From this state on a record is not in the window any more."""
DELIVERIES_MAX: Final = 255
RETURNED_MAX: Final = 1 << 16
"""Records that are back from their wait and lie in no block: 300 bytes each."""
READY_MAX: Final = 4096
"""So many of them that nobody has yet: others that are due wait until those are taken."""

WIDE: Final = 64 * BLOCK
"""Offsets of one run of a request that are looked for block by block."""

_ONE_MORE: Final = bytes([*range(1, 256), DELIVERIES_MAX])
_ONE_LESS: Final = bytes([0, *range(255)])
_OF_STATE: Final = [re.compile(b"%c+" % state) for state in range(len(STATES))]
_LEFT: Final = re.compile(b"[%c-\xff]*" % LEFT_FIRST)
_EQUAL: Final = re.compile(rb"(.)\1*", re.DOTALL)


class Block:
    """`left`: records of it that are in the window."""

    __slots__ = ("deliveries", "holders", "left", "states")

    def __init__(self) -> None:
        self.states = bytearray(BLOCK)
        self.deliveries = bytearray(BLOCK)
        self.holders = array("Q", bytes(8 * BLOCK))
        self.left = BLOCK


class ShareWindow:
    """From `floor`, below which nothing is in it, to `frontier`, from which on all is new."""

    def __init__(self, start: int) -> None:
        self.frontier = start
        self._blocks: dict[int, Block] = {}  # ascending; one that is not there was left or is new
        self._returned = ReturnedRecords()  # where there is no block

    # --- what there is ---
    @property
    def floor(self) -> int:
        """The first offset that has not left it."""
        least = min(self._returned, default=self.frontier)
        for number, block in self._blocks.items():
            found = _LEFT.match(block.states)
            assert found is not None  # it matches nothing, too
            return min(number * BLOCK + found.end(), least)
        return least

    @property
    def room(self) -> int:
        """How many records may come back from their wait now."""
        ready = READY_MAX - self._returned.count(READY)
        return max(0, min(ready, RETURNED_MAX - len(self._returned)))

    def begun_max(self, blocks_max: int) -> int:
        """How far the frontier may go without more blocks than that."""
        first = self.frontier // BLOCK
        more = blocks_max - len(self._blocks)
        return (first + more + (first in self._blocks)) * BLOCK

    def counts(self) -> dict[str, int]:
        """How many records of the window are in each of its states."""
        return {STATES[state]: self.count(state) for state in range(READY, LEFT_FIRST)}

    def count(self, *states: int) -> int:
        """How many records of the window are in these states."""
        found = sum(it.states.count(one) for it in self._blocks.values() for one in states)
        return found + sum(map(self._returned.count, states))

    def in_state(self, state: int, count_max: int) -> Runs:
        """The first records that are in this state, at most so many."""
        found = self._in_blocks(state, count_max)
        if singles := self._returned.in_state(state, count_max):
            found = sorted([*found, *((offset, offset + 1) for offset in singles)])
        return _first(joined(found), count_max)

    def next_ready(self, count_max: int, runs_max: int, turn: int) -> Runs:
        """The ready records that are to be leased next, in at most so many runs. Those that waited
        come in the order in which they came back: by offset, some would wait for ever where more
        and more become due. The others come from the lowest offset on. Where there are more than
        enough of both, each has a half; `turn` tells who has the larger one."""
        most = min(count_max, runs_max)
        returned = self._returned.longest_in(READY, most)
        others = self._in_blocks(READY, count_max)
        half = (most + turn % 2) // 2
        returned = returned[: max(half, most - count(others))]
        others = others[: runs_max - len(returned)]
        others = [*_first(joined(others), count_max - len(returned))]
        return joined(sorted([*others, *((offset, offset + 1) for offset in returned)]))

    def _in_blocks(self, state: int, count_max: int) -> list[Run]:
        found: list[Run] = []
        left = count_max
        for number, block in self._blocks.items():
            if not left:
                break
            at = block.states.find(state)  # much faster than the search where it has none
            for run in _OF_STATE[state].finditer(block.states, at) if at >= 0 else ():
                first = number * BLOCK + run.start()
                end = min(number * BLOCK + run.end(), first + left)
                found.append((first, end))
                left -= end - first
                if not left:
                    break
        return found

    def listed(self, states: Iterable[int], first: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields offset, state, deliveries and holder of each record that is in one of these
        states, from an offset on."""
        wanted = bytes(states)
        singles = (
            (at, *one) for at in self._returned
            if at >= first and (one := self._returned[at]).state in wanted
        )  # fmt: skip
        yield from heapq.merge(singles, self._listed_in_blocks(wanted, first))

    def _listed_in_blocks(self, states: bytes, first: int) -> Iterator[tuple[int, int, int, int]]:
        pattern = re.compile(b"[%b]" % states)
        for number, block in self._blocks.items():
            base = number * BLOCK
            for found in pattern.finditer(block.states, max(0, first - base)):
                at = found.start()
                yield base + at, block.states[at], block.deliveries[at], block.holders[at]

    def held(self, runs: Iterable[Run], state: int, holder: int) -> Runs:
        """Returns the part of `runs` that is in this state by this lease or wait."""
        found: list[Run] = []
        for base, block, first, end in self._pieces(self._narrowed(tuple(runs))):
            if block is None:
                for offset in self._returned.between(base + first, base + end):
                    one = self._returned[offset]
                    if one.state == state and one.holder == holder:
                        found.append((offset, offset + 1))
                continue
            for run in _OF_STATE[state].finditer(block.states, first, end):
                at = run.start()
                holders = block.holders[at : run.end()]
                if holders.count(holder) == len(holders):
                    found.append((base + at, base + run.end()))
                    continue
                for other, equal in groupby(holders):
                    length = sum(1 for _ in equal)
                    if other == holder:
                        found.append((base + at, base + at + length))
                    at += length
        return joined(found)

    def by_deliveries(self, runs: Iterable[Run]) -> Iterator[tuple[int, Run]]:
        """How often each was delivered, run by run of equal ones."""
        for base, block, first, end in self._pieces(runs):
            if block is None:
                yield from self._returned.by_deliveries(base + first, base + end)
                continue
            for run in _EQUAL.finditer(block.deliveries, first, end):
                yield block.deliveries[run.start()], (base + run.start(), base + run.end())

    # --- what changes it ---
    def begin(self, end: int, skipped: Iterable[Run]) -> None:
        """All from the frontier to `end` is ready, but `skipped`, which is no work."""
        begun, self.frontier = (self.frontier, end), end
        for number in range(begun[0] // BLOCK, (end - 1) // BLOCK + 1):
            if number not in self._blocks:  # the first one may begin in its middle
                block = self._blocks[number] = Block()
                before = max(0, begun[0] - number * BLOCK)
                block.states[:before] = bytes([SKIPPED]) * before
                block.left -= before
        self.put([begun], READY)
        self.finish(skipped, SKIPPED)

    def lease(self, runs: Iterable[Run], lease: int) -> None:
        """Ready ones are delivered once more, by this lease."""
        runs = tuple(runs)
        self.put(runs, LEASED, lease)
        self._translate_deliveries(runs, _ONE_MORE)

    def uncount(self, runs: Iterable[Run]) -> None:
        """Their last delivery was none."""
        self._translate_deliveries(runs, _ONE_LESS)

    def take_back(self, offset: int, deliveries: int) -> None:
        """One that waited is ready, and was delivered so often."""
        block, at = self._blocks.get(offset // BLOCK), offset % BLOCK
        if block is None:
            self._returned.put(offset, ReturnedRecord(READY, deliveries, 0))
            return
        assert block.states[at] == WAITING, "it is in the window already"
        block.states[at], block.deliveries[at], block.holders[at] = READY, deliveries, 0
        block.left += 1

    def finish(self, runs: Iterable[Run], state: int) -> None:
        """Done, dead or no work, or waiting from now on. All of them are in the window."""
        for base, block, first, end in self._pieces(runs):
            if block is None:
                for offset in self._returned_all(base + first, base + end):
                    self._returned.take(offset)
                continue
            block.states[first:end] = bytes([state]) * (end - first)
            block.left -= end - first
            if not block.left:
                del self._blocks[base // BLOCK]

    def put(self, runs: Iterable[Run], state: int, holder: int = 0) -> None:
        """In a state of the window; `holder`: the lease that has them."""
        for base, block, first, end in self._pieces(runs):
            if block is None:
                for offset in self._returned_all(base + first, base + end):
                    times = self._returned[offset].deliveries
                    self._returned.put(offset, ReturnedRecord(state, times, holder))
                continue
            block.states[first:end] = bytes([state]) * (end - first)
            block.holders[first:end] = array("Q", [holder]) * (end - first)

    def _translate_deliveries(self, runs: Iterable[Run], table: bytes) -> None:
        for base, block, first, end in self._pieces(runs):
            if block is None:
                for offset in self._returned_all(base + first, base + end):
                    one = self._returned[offset]
                    self._returned.put(offset, one._replace(deliveries=table[one.deliveries]))
                continue
            block.deliveries[first:end] = block.deliveries[first:end].translate(table)

    def _returned_all(self, first: int, end: int) -> list[int]:
        """These offsets, which are in the window, and in no block."""
        found = self._returned.between(first, end)
        assert len(found) == end - first, "it has left the window already"
        return found

    def _pieces(self, runs: Iterable[Run]) -> Iterator[tuple[int, Block | None, int, int]]:
        """The offset of each block that the runs touch, the block, and where in it they do."""
        for first, end in runs:
            while first < end:
                number, at = divmod(first, BLOCK)
                length = min(end - first, BLOCK - at)
                yield number * BLOCK, self._blocks.get(number), at, at + length
                first += length

    def _narrowed(self, runs: Runs) -> Runs:
        """The part of runs of a request that lies where something of the window is: a worker may
        name any offsets, and each block that they touch is looked at."""
        if all(end - first <= WIDE for first, end in runs):
            return runs
        numbers = sorted({*self._blocks, *(offset // BLOCK for offset in self._returned)})
        there = joined((number * BLOCK, (number + 1) * BLOCK) for number in numbers)
        return without(runs, without(runs, there))

    # --- all of it, for a snapshot ---
    def columns(self) -> list[tuple[int, bytes, bytes, bytes]]:
        """Number, states, deliveries and holders (8 bytes each, little-endian) of each block."""
        return [
            (number, bytes(it.states), bytes(it.deliveries), it.holders.tobytes())
            for number, it in self._blocks.items()
        ]

    def singles(self) -> list[tuple[int, ReturnedRecord]]:
        """Records that lie in no block."""
        return [(offset, self._returned[offset]) for offset in self._returned.in_line()]

    @classmethod
    def of_columns(
        cls,
        frontier: int,
        columns: Iterable[tuple[int, bytes, bytes, bytes]],
        singles: Iterable[tuple[int, ReturnedRecord]],
    ) -> ShareWindow:
        """Returns the window of which `columns` and `singles` were taken."""
        made = cls(frontier)
        for number, states, deliveries, holders in columns:
            block = made._blocks[number] = Block()
            block.states[:], block.deliveries[:] = states, deliveries
            block.holders = array("Q", holders)
            block.left = sum(states.count(state) for state in range(LEFT_FIRST))
        for offset, record in singles:
            made._returned.put(offset, record)
        return made


def _first(runs: Runs, count_max: int) -> Runs:
    """The first offsets of these, at most so many."""
    found: list[Run] = []
    for first, end in runs:
        if count_max <= 0:
            break
        found.append((first, min(end, first + count_max)))
        count_max -= end - first
    return tuple(found)
