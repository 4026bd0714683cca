"""The state of each record that a share group has begun with and not finished, by its offset.

**Layout.** Blocks of 4,096 offsets; one whose records are all finished is dropped. So a job that
takes an hour costs one block, however many records behind it are done meanwhile. A block has three
columns: the state (a byte), how often the record was delivered (a byte), and the number of the
lease or the wait that holds it. Everything works on slices of columns: no step per record.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from penstock.cluster.shares.runs import Run, Runs, joined

BLOCK: Final = 4096
NEW, READY, SUSPECT, WAITING, LEASED, CONDEMNED, BEHIND, DONE, DEAD, SKIPPED = range(10)
"""`NEW`: not begun with. `SUSPECT`: ready, but it may have ended a worker. `CONDEMNED`: to become a
dead letter. `BEHIND`: ready once the one before it of its key is over. The last three are final."""
STATES: Final = (
    "new", "ready", "suspect", "waiting", "leased", "condemned", "behind", "done", "dead", "skipped"
)  # fmt: skip
FINAL_FIRST: Final = DONE
DELIVERIES_MAX: Final = 255

_ONE_MORE: Final = bytes([*range(1, 256), DELIVERIES_MAX])
_ONE_LESS: Final = bytes([0, *range(255)])
_OF_STATE: Final = [re.compile(b"%c+" % state) for state in range(len(STATES))]
_FINAL: Final = re.compile(b"[%c-\xff]*" % FINAL_FIRST)
_EQUAL: Final = re.compile(rb"(.)\1*", re.DOTALL)


class Block:
    """`left`: records of it that are not final."""

    __slots__ = ("deliveries", "holders", "left", "states")

    def __init__(self) -> None:
        self.states = bytearray(BLOCK)
        self.deliveries = bytearray(BLOCK)
        self.holders = array("Q", bytes(8 * BLOCK))
        self.left = BLOCK


class ShareWindow:
    """From `floor`, below which all is final, to `frontier`, from which on all is new."""

    def __init__(self, start: int) -> None:
        self.frontier = start
        self._blocks: dict[int, Block] = {}  # ascending; one that is not there is final or new

    # --- what there is ---
    @property
    def floor(self) -> int:
        """The first offset that is not final."""
        for number, block in self._blocks.items():
            found = _FINAL.match(block.states)
            assert found is not None  # it matches nothing, too
            return min(number * BLOCK + found.end(), self.frontier)
        return self.frontier

    def begun_max(self, blocks_max: int) -> int:
        """How far the frontier may go without more blocks than that."""
        first = self.frontier // BLOCK
        more = blocks_max - len(self._blocks)
        return (first + more + (first in self._blocks)) * BLOCK

    def counts(self) -> dict[str, int]:
        """How many records of the window are in each state that is not final."""
        found = dict.fromkeys(STATES[READY:FINAL_FIRST], 0)
        for block in self._blocks.values():
            for state in range(READY, FINAL_FIRST):
                found[STATES[state]] += block.states.count(state)
        return found

    def count(self, *states: int) -> int:
        """How many records are in these states."""
        return sum(it.states.count(one) for it in self._blocks.values() for one in states)

    def in_state(self, state: int, count_max: int) -> Runs:
        """The first records that are in this state, at most so many."""
        found: list[Run] = []
        for number, block in self._blocks.items():
            at = block.states.find(state)  # much faster than the search where it has none
            for run in _OF_STATE[state].finditer(block.states, at) if at >= 0 else ():
                first = number * BLOCK + run.start()
                end = min(number * BLOCK + run.end(), first + count_max)
                found.append((first, end))
                count_max -= end - first
                if not count_max:
                    return joined(found)
        return joined(found)

    def held(self, runs: Iterable[Run], state: int, holder: int) -> Runs:
        """Returns the part of `runs` that is in this state by this lease or wait."""
        found: list[Run] = []
        for base, block, first, end in self._pieces(runs):
            if block is None:
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
            assert block is not None
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

    def finish(self, runs: Iterable[Run], state: int) -> None:
        """Done, dead or no work. None of them is final yet."""
        for base, block, first, end in self._pieces(runs):
            assert block is not None, "it is final already"
            block.states[first:end] = bytes([state]) * (end - first)
            block.left -= end - first
            if not block.left:
                del self._blocks[base // BLOCK]

    def put(self, runs: Iterable[Run], state: int, holder: int = 0) -> None:
        """In a state that is not final; `holder`: the lease or the wait that has them."""
        for _, block, first, end in self._pieces(runs):
            assert block is not None, "it is final already"
            block.states[first:end] = bytes([state]) * (end - first)
            block.holders[first:end] = array("Q", [holder]) * (end - first)

    def _translate_deliveries(self, runs: Iterable[Run], table: bytes) -> None:
        for _, block, first, end in self._pieces(runs):
            assert block is not None, "it is final already"
            block.deliveries[first:end] = block.deliveries[first:end].translate(table)

    def _pieces(self, runs: Iterable[Run]) -> Iterator[tuple[int, Block | None, int, int]]:
        """The offset of each block that the runs touch, the block, and where in it they do."""
        for first, end in runs:
            while first < end:
                number, at = divmod(first, BLOCK)
                length = min(end - first, BLOCK - at)
                yield number * BLOCK, self._blocks.get(number), at, at + length
                first += length

    # --- all of it, for a snapshot ---
    def columns(self) -> list[tuple[int, bytes, bytes, bytes]]:
        """Number, states, deliveries and holders (8 bytes each, little-endian) of each block."""
        return [
            (number, bytes(it.states), bytes(it.deliveries), it.holders.tobytes())
            for number, it in self._blocks.items()
        ]

    @classmethod
    def of_columns(
        cls, frontier: int, columns: Iterable[tuple[int, bytes, bytes, bytes]]
    ) -> ShareWindow:
        """Returns the window of which `columns` was taken."""
        made = cls(frontier)
        for number, states, deliveries, holders in columns:
            block = made._blocks[number] = Block()
            block.states[:], block.deliveries[:] = states, deliveries
            block.holders = array("Q", holders)
            block.left = sum(states.count(state) for state in range(FINAL_FIRST))
        return made
