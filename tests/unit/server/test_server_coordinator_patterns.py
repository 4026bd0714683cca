"""Patterns that members bring: their form, and whose time matching them takes."""

from __future__ import annotations

import asyncio
import re

import pytest
from event_loops import run

from penstock.cluster.groups.patterns import check_pattern
from penstock.core.errors import ConfigError

SLOW = "a*a*a*b"
"""A pattern that takes as long as any that is allowed, on names of these letters."""


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)orders", "(?i:ORDERS)-eu", "(?u)o", "(?-i:o)",
        "[\u00c8-\U0010ffff]", "caf\u00e9", r"[\u0100-\U0010ffff]", r"\x41", r"\N{BULLET}",
        r"[\177]", r"(.*)(.*)\1x", r"(?P<a>.)(?P=a)", "(a)?(?(1)b|c)",
        "a{400000}", "a{1,201}", "a\n",
    ],
)  # fmt: skip
def test_a_form_that_costs_more_than_it_says_is_refused(pattern: str) -> None:
    """Flags and wide ranges take long to compile, references to groups long to match."""
    re.compile(pattern)
    with pytest.raises(ConfigError, match="pattern"):
        check_pattern(pattern)


def test_a_form_that_is_refused_is_not_compiled() -> None:
    """What is no expression at all is refused by its form where that is bad, too."""
    with pytest.raises(ConfigError, match="ASCII"):
        check_pattern("\u00e9(")


@pytest.mark.parametrize(
    "pattern",
    [
        r"orders\.(eu|us)\.[A-Za-z0-9_-]+", r"(?P<who>\w+)\.x", r"(?!internal).*", r"^a{2,200}$",
        r"\d+-\D*", r"(?<=a)b|(?<!a)c", r"[^\W_]+",
    ],
)  # fmt: skip
def test_forms_that_users_write_are_allowed(pattern: str) -> None:
    check_pattern(pattern)


def test_a_pattern_that_takes_long_lets_others_have_their_turn() -> None:
    from penstock.server.coordinator.patterns import Patterns

    turns = 0

    async def scene() -> None:
        nonlocal turns
        patterns = Patterns()
        names = [f"{'a' * 190}{number:04}" for number in range(60)]
        learning = asyncio.ensure_future(patterns.learn("bob", SLOW, names))
        while not learning.done():
            await asyncio.sleep(0)
            turns += 1
        await learning

    run(scene())
    assert turns > 20


def test_what_a_pattern_may_take_is_bounded_and_named() -> None:
    from penstock.core.errors import ResourceLimitError
    from penstock.server.coordinator.patterns import Patterns

    names = [f"{'a' * 190}{number:04}b" for number in range(5000)]
    with pytest.raises(ResourceLimitError, match="PATTERN_SECONDS_MAX"):
        run(Patterns().learn("bob", f"{SLOW}c", names))
    run(Patterns().learn("bob", "orders.*", names))
