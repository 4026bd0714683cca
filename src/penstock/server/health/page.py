"""Metrics as text, in the format that Prometheus reads (version 0.0.4).

This module writes line by line, without the objects of a client library. A thousand partitions are
17,000 lines, which take that library a tenth of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.server.health.families import FAMILIES

SERIES_MAX: Final = 100_000
"""Lines of one page. Further lines are left out and counted."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**values: object) -> str:
    """`topic="orders",partition="3"`, to be used for many lines."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())


class Page:
    """Lines of one scrape, family by family, in the order of `FAMILIES`."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._count = 0
        self.omitted = 0

    def add(self, name: str, value: float, where: str = "") -> None:
        """One line. `where` comes from `labels`."""
        self.rows(name, ((where, value),))

    def rows(self, name: str, rows: Iterable[tuple[str, float]]) -> None:
        """A line for each pair of labels and value."""
        assert name in FAMILIES, name
        found = [
            f"{name}{{{where}}} {value}\n" if where else f"{name} {value}\n"
            for where, value in rows
        ]
        room = SERIES_MAX - self._count
        if len(found) > room:
            self.omitted += len(found) - room
            del found[room:]
        self._count += len(found)
        self._lines.setdefault(name, []).extend(found)

    def histogram(
        self,
        name: str,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        where: str = "",
    ) -> None:
        """`counts` are those of each bucket alone, as `Histogram` has them."""
        assert name in FAMILIES, name
        comma, braces = (f"{where},", f"{{{where}}}") if where else ("", "")
        so_far, found = 0, []
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            so_far += count
            edge = "+Inf" if bound == math.inf else f"{float(bound):g}"
            found.append(f'{name}_bucket{{{comma}le="{edge}"}} {so_far}\n')
        found += [f"{name}_sum{braces} {total}\n", f"{name}_count{braces} {so_far}\n"]
        self._count += len(found)
        self._lines.setdefault(name, []).extend(found)

    def text(self) -> bytes:
        parts = []
        for name, family in FAMILIES.items():
            lines = self._lines.get(name)
            if lines:
                parts.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
                parts += lines
        return "".join(parts).encode()
