"""Which dead letters are meant: partitions, single ones, a condition. Checked before reading."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.deadletters.story import DeadLetter, LetterPlace
from penstock.client.validation import check_integer, check_text
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client.deadletters.where import LetterFilter

ONLY_MAX: Final = 10_000
"""Single dead letters and ranges of them that one call names."""

Only = Iterable["DeadLetter | LetterPlace | tuple[int, range]"]
Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """`partitions`: None: all. `runs`: ascending offsets (first, end) by partition; None: all."""

    partitions: frozenset[int] | None = None
    runs: dict[int, list[Run]] | None = None
    filter: LetterFilter | None = None

    @classmethod
    def of(
        cls,
        partition: int | Sequence[int] | None = None,
        only: Only | None = None,
        where: str | None = None,
    ) -> LetterChoice:
        """Raises `ConfigError`, TypeError; ImportError without DuckDB where it is needed."""
        numbers = None
        if partition is not None:
            numbers = frozenset([partition] if isinstance(partition, int) else partition)
            for number in numbers:
                check_integer("partition", number)
        found = None
        if where is not None:
            check_text("where", where)
            from penstock.client.deadletters.where import LetterFilter

            found = LetterFilter(where)
        return cls(numbers, None if only is None else _runs(only), found)

    def span(self, partition: int, start: int, end: int) -> Run:
        """The offsets to read of a partition that goes from `start` to `end`; start >= end:
        nothing."""
        if self.partitions is not None and partition not in self.partitions:
            return start, start
        if self.runs is None:
            return start, end
        runs = self.runs.get(partition)
        if not runs:
            return start, start
        return max(start, runs[0][0]), min(end, runs[-1][1])

    def has(self, place: LetterPlace) -> bool:
        """Whether it is one of them, by where it is."""
        if self.runs is None:
            return True
        partition, offset = place
        runs = self.runs.get(partition, [])
        at = bisect_right(runs, (offset, 1 << 63)) - 1
        return at >= 0 and offset < runs[at][1]

    def matching(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those for which the condition is true."""
        if self.filter is None or not letters:
            return list(letters)
        rows = self.filter.matching(letters)
        return [letter for row, letter in enumerate(letters) if row in rows]


def _runs(only: Only) -> dict[int, list[Run]]:
    named: dict[int, list[Run]] = {}
    for count, one in enumerate(only):
        if count == ONLY_MAX:
            raise ConfigError(f"only= names {ONLY_MAX:,} dead letters or ranges at most")
        match one:
            case DeadLetter():
                partition, offset = one.place
                named.setdefault(partition, []).append((offset, offset + 1))
            case (int(partition), range() as span) if span.step == 1:
                named.setdefault(partition, []).append((span.start, span.stop))
            case (int(partition), int(offset)):
                named.setdefault(partition, []).append((offset, offset + 1))
            case _:
                raise TypeError(
                    f"only={one!r}: name dead letters, (partition, offset) or (partition, "
                    "range(first, end))"
                )
    return {partition: _joined(runs) for partition, runs in named.items()}


def _joined(runs: list[Run]) -> list[Run]:
    """Ascending and apart."""
    found: list[Run] = []
    for first, end in sorted(run for run in runs if run[0] < run[1]):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found
