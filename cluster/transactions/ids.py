"""The transactional ids, in order. Counting those of a namespace reads no ids of others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator


class Ids(Collection[str]):
    """Changed by `State` alone."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        """In how many tables each one is."""
        self._sorted: list[str] = []

    def add(self, name: str) -> None:
        """It is in one table more."""
        if name not in self._uses:
            insort(self._sorted, name)
        self._uses[name] = self._uses.get(name, 0) + 1

    def remove(self, name: str) -> None:
        """It is in one table less."""
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name], self._sorted[bisect_left(self._sorted, name)]

    def after(self, name: str) -> list[str]:
        """Those that sort after this one, in order."""
        first = bisect_left(self._sorted, name)
        return self._sorted[first + (name in self._uses) :]

    def in_namespace(self, namespace: str) -> int:
        """How many begin with it and a dot."""
        first = bisect_left(self._sorted, f"{namespace}.")
        return bisect_left(self._sorted, f"{namespace}/", first) - first  # "/" follows "."

    def __contains__(self, name: object) -> bool:
        return name in self._uses

    def __iter__(self) -> Iterator[str]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)
