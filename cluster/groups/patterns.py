"""Regular expressions for topic names, kept from holding the node up.

Python's `re` backtracks: a short expression can take for ever on a short name. To compile one with
flags and wide ranges takes half a second. `check_pattern` refuses such expressions by their form,
before it compiles them:

- repeats of repeats or of choices, and too many choices;
- references to groups;
- flags, comments and characters by number, which hide such a form.

Names of topics are ASCII, and so are patterns.
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

COUNT_MAX: Final = 200
"""Of a counted repeat. No name is longer."""

_NUMBERED: Final = re.compile(r"(?:[^\\]|^)(?:\\\\)*\\[0-9xuUN]")
"""A character by its number or name, or a reference to a group."""
_OPENED: Final = re.compile(r"\(\?(?!:|P<|=|!|<=|<!)")
"""A `(?` that opens neither a group nor an assertion: a flag, a comment or a condition."""
_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", re.DOTALL)


def check_pattern(pattern: str) -> None:
    """Raise ConfigError for what is no regular expression, or one that might take long."""
    if not 0 < len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise ConfigError(
            f"a pattern for topics has 1 to {PATTERN_CHARACTERS_MAX} characters, this one "
            f"{len(pattern)}"
        )
    if not (pattern.isascii() and pattern.isprintable()):
        raise ConfigError(f"the pattern {pattern!r} is not allowed: write it in printable ASCII")
    if _NUMBERED.search(pattern) or _OPENED.search(pattern):
        raise ConfigError(
            f"the pattern {pattern!r} is not allowed: it has a flag, a comment, a condition, a "
            "reference to a group, or a character by its number; write it without"
        )
    if why := _slow(pattern):
        raise ConfigError(
            f"the pattern {pattern!r} could take very long to match ({why}): name the topics, or "
            "write it with fewer repeats"
        )
    try:
        re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} is no regular expression: {error}") from None


def _slow(pattern: str) -> str | None:
    tokens = _TOKEN.findall(pattern)
    repeats, choices = 0, 1
    groups = [_Group()]  # that are open
    closed = _Group()  # what the token before ended
    for place, token in enumerate(tokens):
        if token == "?" and place and tokens[place - 1] == "(":
            continue
        if token[0] == "{" and max(map(int, re.findall(r"\d+", token)), default=0) > COUNT_MAX:
            return f"a count over {COUNT_MAX}"
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
            if len(groups) == 1:
                return "a group that is closed and not open"
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


@lru_cache(maxsize=65_536)
def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern matches the whole name."""
    if topic.startswith(RESERVED_PREFIX):
        return False
    found = _compiled(pattern)
    return found is not None and found.fullmatch(topic) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """None: a member brought it to a version that read it in another way."""
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, ValueError):
        return None
