"""Members of a share group that asked for records and got none: they are called, and have a share.

All of it is volatile: a coordinator that takes over knows nobody who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PLENTY: Final = 2000
"""Records that are there for all: nobody counts further, and nobody has a share."""


class WaitingMembers:
    """In the order in which they began to wait."""

    __slots__ = ("_called", "_members", "_shared")

    def __init__(self) -> None:
        self._members: dict[str, None] = {}
        self._called: set[str] = set()
        """Those that were called, and have not asked since."""
        self._shared = ""
        """The member that left something to others, who have not come for it yet."""

    def __len__(self) -> int:
        return len(self._members)

    def asked(self, member: str, *, waits: bool) -> None:
        """It has got records, or waits for some."""
        self._called.discard(member)
        if waits:
            self._members[member] = None
        else:
            self._members.pop(member, None)

    def forget(self, member: str) -> None:
        self._called.discard(member)
        self._members.pop(member, None)

    def call(self, most: int, but: str | None) -> frozenset[str]:
        """So many of them at most, `but` not this one: they are not called again until they ask."""
        found = [member for member in self._members if member != but][:most]
        for member in found:
            del self._members[member]
        self._called.update(found)
        return frozenset(found)

    def part_for(self, member: str, count_max: int, count: Callable[[int], int]) -> int:
        """The part of `count_max` records for a member while others wait: as many for each of them.
        `count`: how many records there are, up to a number.

        Asked again before any other came, it gets all: others may be busy with something else.
        """
        others = len((self._members.keys() | self._called) - {member})
        if not others or count_max < 2 or self._shared == member:
            self._shared = ""
            return count_max
        enough = min(count_max * (others + 1), PLENTY)
        there = count(enough)
        if there == enough:
            return count_max
        part = max(1, -(-there // (others + 1)))
        self._shared = member if part < there else ""
        return part
