"""What checkers find: a name, how often, and the evidence of the first few cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from histories.events import Ints

EVIDENCE_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of thing that must not be, with its first cases."""

    name: str
    count: int
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        shown = "".join(f"\n    {each}" for each in self.evidence)
        more = self.count - len(self.evidence)
        return f"{self.name}: {self.count}{shown}" + (f"\n    and {more} more" if more > 0 else "")


def found(name: str, rows: Ints, tell: Callable[[int], str]) -> Iterator[Anomaly]:
    """An anomaly if there are rows, each told in words."""
    if len(rows):
        yield Anomaly(name, len(rows), tuple(tell(int(row)) for row in rows[:EVIDENCE_MAX]))


def found_in(name: str, cases: list[str]) -> Iterator[Anomaly]:
    """An anomaly if there are cases, which are told already."""
    if cases:
        yield Anomaly(name, len(cases), tuple(cases[:EVIDENCE_MAX]))


def rows_where(mask: npt.NDArray[np.bool_]) -> Ints:
    return np.flatnonzero(mask).astype(np.int64)


def contains(sorted_unique: Ints, wanted: Ints) -> npt.NDArray[np.bool_]:
    """Which of `wanted` are there."""
    if not len(sorted_unique):
        return np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(sorted_unique, wanted), len(sorted_unique) - 1)
    return np.asarray(sorted_unique[at] == wanted, np.bool_)


def look_up(keys: Ints, values: Ints, wanted: Ints, missing: int) -> Ints:
    """`values[i]` where `keys[i]`, which are sorted and unique, is wanted; else `missing`."""
    if not len(keys):
        return np.full(len(wanted), missing, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], missing)
