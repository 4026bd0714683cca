"""Regular expressions for topic names, kept from holding the node up.

Python's `re` backtracks: a short expression can take for ever on a short name. What could is
refused here by its form: repeats of repeats, or too many choices in one expression.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.core.errors import ConfigError

PATTERN_CHARACTERS_MAX: Final = 200
REPEATS_MAX: Final = 4
BRANCHES_MAX: Final = 16
RESERVED_PREFIX: Final = "__"
"""No pattern matches the node's own topics."""

_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", re.DOTALL)


def check_pattern(pattern: str) -> None:
    """Raise ConfigError for what is no regular expression, or one that might take long."""
    if not 0 < len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise ConfigError(
            f"a pattern for topics has 1 to {PATTERN_CHARACTERS_MAX} characters, this one "
            f"{len(pattern)}"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} is no regular expression: {error}") from None
    if why := _slow(pattern):
        raise ConfigError(
            f"the pattern {pattern!r} could take very long to match ({why}): name the topics, or "
            "write it with fewer repeats"
        )


def _slow(pattern: str) -> str | None:
    tokens = _TOKEN.findall(pattern)
    repeats, branches = 0, 0
    inside = [False]  # by open group: whether something is repeated in it
    closed = False  # whether the token before ended a group in which something is repeated
    for place, token in enumerate(tokens):
        if token == "?" and place and tokens[place - 1] == "(":
            continue
        if token in "*+?" or (token[0] == "{" and len(token) > 2):
            if closed:
                return "a repeat of a repeat"
            repeats += token != "?" or tokens[place - 1] not in ("*", "+", "?")
            inside = [True] * len(inside)
            continue
        closed = token == ")" and inside.pop()
        if token == "(":
            inside.append(False)
        branches += token == "|"
    if repeats > REPEATS_MAX:
        return f"more than {REPEATS_MAX} repeats"
    return f"more than {BRANCHES_MAX} branches" if branches >= BRANCHES_MAX else None


@lru_cache(maxsize=65_536)
def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern matches the whole name."""
    return not topic.startswith(RESERVED_PREFIX) and re.fullmatch(pattern, topic) is not None
