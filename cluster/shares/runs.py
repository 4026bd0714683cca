"""Runs of offsets: pairs (first, end), ascending and apart; `end` is one beyond the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from penstock.core.errors import ConfigError

Run: TypeAlias = tuple[int, int]
Runs: TypeAlias = tuple[Run, ...]

OFFSET_MAX = 2**63 - 1


def checked(runs: Iterable[Sequence[int]], runs_max: int) -> Runs:
    """The runs of a request. Raises `ConfigError` unless they ascend, are apart and not empty."""
    found: list[Run] = []
    end = 0
    for run in runs:
        if len(run) != 2 or not end <= run[0] < run[1] <= OFFSET_MAX or len(found) == runs_max:
            raise ConfigError(
                f"offsets are named by at most {runs_max} ascending pairs (first, end) with room "
                f"between first and end: {list(run)!r} after {end} is none"
            )
        found.append((run[0], run[1]))
        end = run[1]
    return tuple(found)


def count(runs: Iterable[Run]) -> int:
    """How many offsets they hold."""
    return sum(end - first for first, end in runs)


def joined(runs: Iterable[Run]) -> Runs:
    """The same offsets in as few runs as there can be; `runs` ascend."""
    found: list[Run] = []
    for first, end in runs:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return tuple(found)


def packed(runs: Iterable[Run]) -> list[int]:
    """For a record: from the end of the one before to its first, its length, and so on."""
    found: list[int] = []
    before = 0
    for first, end in runs:
        found += (first - before, end - first)
        before = end
    return found


def unpacked(numbers: Sequence[int]) -> Runs:
    """Returns the runs that `packed` was given."""
    found: list[Run] = []
    end = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        first = end + gap
        end = first + length
        found.append((first, end))
    return tuple(found)


def without(runs: Runs, others: Runs) -> Runs:
    """The offsets of `runs` that are not in `others`."""
    found: list[Run] = []
    at = 0
    for first, end in runs:
        while first < end:
            while at < len(others) and others[at][1] <= first:
                at += 1
            taken_first, taken_end = others[at] if at < len(others) else (end, end)
            if first < taken_first:
                found.append((first, min(taken_first, end)))
            first = max(first, min(taken_end, end))
    return joined(found)
