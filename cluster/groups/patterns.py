"""Regular expressions for topic names, kept from holding the node up.

Python's `re` backtracks: a short expression can take for ever on a short name. What could is
refused here by its form: repeats of repeats or of choices, or too many choices in one expression;
and what hides such a form: comments, and the flag by which blanks count for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.core.errors import ConfigError

PATTERN_CHARACTERS_MAX: Final = 200
REPEATS_MAX: Final = 3
"""Each may end anywhere in a name: four take 30 ms for one of 100 characters."""
BRANCHES_MAX: Final = 16
"""Ways through an expression; with `REPEATS_MAX` repeats a quarter of them."""
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
    repeats, choices = 0, 1
    groups = [_Group()]  # that are open
    closed = _Group()  # what the token before ended
    for place, token in enumerate(tokens):
        if token == "?" and place and tokens[place - 1] == "(":
            if _hides(tokens[place + 1 :]):
                return "a comment, or the flag x, hides what is repeated"
            continue
        if token in "*+?" or (token[0] == "{" and len(token) > 2):
            if closed.repeats:
                return "a repeat of a repeat"
            if closed.chooses and token != "?":
                return "a repeat of a choice"
            if token != "?":
                repeats += 1
            elif tokens[place - 1] not in ("*", "+", "?"):
                choices *= 2
            for group in groups:
                group.repeats = True
            continue
        closed = _Group()
        if token == "(":
            groups.append(_Group())
        elif token == ")":
            closed = groups.pop()
            choices *= closed.branches
        elif token == "|":
            groups[-1].branches += 1
            for group in groups:
                group.chooses = True
    choices *= groups[0].branches
    if repeats > REPEATS_MAX:
        return f"more than {REPEATS_MAX} repeats"
    ways = BRANCHES_MAX if repeats < REPEATS_MAX else BRANCHES_MAX // 4
    return f"more than {ways} ways through it" if choices > ways else None


@dataclass(slots=True)
class _Group:
    """Of an expression: whether anything in it is repeated, or a choice; its own branches."""

    repeats: bool = False
    chooses: bool = False
    branches: int = 1


def _hides(tokens: list[str]) -> bool:
    """Whether what follows `(?` makes text mean nothing: these rules would read it all the same."""
    for token in tokens:
        if token in ("x", "#"):
            return True
        if not (token.isalpha() or token == "-"):
            return False
    return False


@lru_cache(maxsize=65_536)
def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern matches the whole name."""
    return not topic.startswith(RESERVED_PREFIX) and re.fullmatch(pattern, topic) is not None
