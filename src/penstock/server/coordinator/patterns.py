"""Matches the topics there are against a new pattern, without holding up the node.

A pattern may take milliseconds for each long name, and a group's decision asks about all of them
in one go. So they are asked beforehand, in slices with pauses between (`turns`), and remembered
(`groups.patterns.matches`). Owns the bound; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.cluster.groups.patterns import check_pattern, matches
from penstock.core.errors import ResourceLimitError
from penstock.server.coordinator.turns import PrincipalTurn

PATTERN_SECONDS_MAX: Final = 0.25
"""Seconds of processor time for one pattern and all topics."""


async def learn(turn: PrincipalTurn, pattern: str, names: Iterable[str]) -> None:
    """Finds out which of these topics the pattern matches. Raises ConfigError, and
    ResourceLimitError where that takes too long."""
    check_pattern(pattern)
    for name in list(names):
        matches(pattern, name)
        if turn.spent > PATTERN_SECONDS_MAX:
            raise ResourceLimitError(
                f"the pattern {pattern!r} takes more than {PATTERN_SECONDS_MAX:g} s to be "
                "matched with the topics there are (PATTERN_SECONDS_MAX): write it with "
                "fewer repeats, or name the topics"
            )
        await turn.rest()
