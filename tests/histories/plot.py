"""The lines of a run as whoever plants an anomaly into them sees them, and the table of planters.

A planter changes the lines of a run in place and says whether it found something to change. It
knows lines and nothing of the checkers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from histories.ideal import Lines

Planter = Callable[["Plot"], bool]
PLANTERS: list[tuple[str, Planter]] = []
"""Names of anomalies, each with the ways in which it may come about."""


def plants(name: str, into: list[tuple[str, Planter]] = PLANTERS) -> Callable[[Planter], Planter]:
    def add(planter: Planter) -> Planter:
        into.append((name, planter))
        return planter

    return add


class Plot:
    """The lines of a run, and what stands in them."""

    def __init__(self, lines: Lines, seed: int) -> None:
        self.lines = lines
        self.rng = random.Random(seed)
        self.acked: dict[int, tuple[str, int, int]] = {}
        self.sent: dict[int, tuple[str, int | None, int]] = {}
        self.acked_at: dict[int, int] = {}
        self.read: dict[int, set[str]] = defaultdict(set)
        self.committed: set[tuple[str, int]] = set()
        asked: set[tuple[str, int]] = set()
        aborted: set[tuple[str, int]] = set()
        self.hellos: dict[str, dict[str, Any]] = {}
        for who, line in self.every():
            kind = line["e"]
            if kind == "hello":
                self.hellos[who] = line
            elif kind == "sends":
                for value, _ in line["r"]:
                    self.sent[value] = (who, line.get("txn"), line["t"])
            elif kind == "acks":
                for value, *place in line["r"]:
                    self.acked[value] = tuple(place)
                    self.acked_at[value] = line["t"]
            elif kind == "ending" and line["commit"]:
                asked.add((who, line["n"]))
            elif kind == "ended":
                (self.committed if line["outcome"] == "committed" else aborted).add(
                    (who, line["n"])
                )
        for who, row in self.rows():
            for value in row[3]:
                self.read[value].add(who)
        everybody = {(who, n) for who, n, _ in self.sent.values() if n is not None}
        self.aborted = aborted | (everybody - asked)

    def every(self, kind: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        for who, mine in self.lines.items():
            for line in mine:
                if kind is None or line["e"] == kind:
                    yield who, line

    def rows(self, of: Callable[[str], bool] = lambda who: True) -> Iterator[tuple[str, list[Any]]]:
        for who, line in self.every("polls"):
            if of(who):
                for row in line["r"]:
                    yield who, row

    def txn(self, value: int) -> tuple[str, int] | None:
        who, number, _ = self.sent[value]
        return None if number is None else (who, number)

    def pick(self, found: Any) -> Any:
        """One of those, or None."""
        all_ = list(found)
        return self.rng.choice(all_) if all_ else None

    def drop(self, value: int, of: Callable[[str], bool] = lambda who: True) -> None:
        """Nobody (of these readers) read it."""
        for _, row in self.rows(of):
            while value in row[3]:
                at = row[3].index(value)
                for column in row[2:]:
                    if column is not None:
                        del column[at]

    def set_source(self, value: int, source: int) -> None:
        """That output was made of another input, for everybody."""
        for _, row in self.rows(lambda _: True):
            if value in row[3]:
                row[4][row[3].index(value)] = source

    def exchange(self, a: int, b: int) -> None:
        """Each stands where the other stood, for everybody."""
        other = {a: b, b: a}
        for _, line in self.every("acks"):
            for row in line["r"]:
                if row[0] in other:
                    row[1:] = self.acked[other[row[0]]]
        for _, row in self.rows():
            row[3][:] = [other.get(value, value) for value in row[3]]

    def group(self, guarantee: str) -> Callable[[str], bool]:
        return lambda who: self.hellos.get(who, {}).get("guarantee") == guarantee

    def is_plain(self, value: int) -> bool:
        return self.txn(value) is None

    def below(self, place: tuple[str, int, int]) -> bool:
        """Something behind this place was acknowledged and read, so that it is not the last."""
        return any(
            each[:2] == place[:2] and each[2] > place[2] and self.is_plain(value)
            for value, each in self.acked.items()
        )

    def insert(self, who: str, value: int, at: tuple[str, int, int], source: int = -1) -> bool:
        """Into the row in which that reader passed the place."""
        for _, row in self.rows(lambda each: each == who):
            if tuple(row[:2]) == at[:2] and row[2] and row[2][0] < at[2] < row[2][-1]:
                index = sum(offset < at[2] for offset in row[2])
                row[2].insert(index, at[2])
                row[3].insert(index, value)
                if row[4] is not None:
                    row[4].insert(index, source)
                return True
        return False
