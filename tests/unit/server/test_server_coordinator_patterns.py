"""Patterns that members bring: their form, and whose time matching them takes. And ids that one may
not see, which take time to be left out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from event_loops import run
from transaction_fixture import World

from penstock.cluster.groups.patterns import check_pattern
from penstock.core.errors import ConfigError, ResourceLimitError
from penstock.ipc import coordination as co
from penstock.server.coordinator.patterns import learn
from penstock.server.coordinator.transaction_requests import TransactionRequests
from penstock.server.coordinator.turns import PrincipalTurns

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
    names = [f"{'a' * 190}{number:04}" for number in range(60)]
    assert run(turns_beside(learning(SLOW, names))) > 20


def test_what_a_pattern_may_take_is_bounded_and_named() -> None:
    names = [f"{'a' * 190}{number:04}b" for number in range(5000)]
    with pytest.raises(ResourceLimitError, match="PATTERN_SECONDS_MAX"):
        run(learning(f"{SLOW}c", names))
    run(learning("orders.*", names))


async def learning(pattern: str, names: list[str]) -> None:
    async with PrincipalTurns().of("bob") as turn:
        await learn(turn, pattern, names)


async def turns_beside(work: Coroutine[Any, Any, Any]) -> int:
    """How often others have their turn while that goes on."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


def test_ids_that_one_may_not_see_are_looked_through_in_turns() -> None:
    """There may be thousands of others; a look at each takes a while, and shows nothing."""
    world = World()
    for number in range(500):
        world.init(f"acme.{number}")
    world.init("bob.own")

    def sees(_kind: str, name: str) -> bool:
        return sum(range(2000)) > 0 and name.startswith("bob.")

    life: Any = SimpleNamespace(machines=SimpleNamespace(transactions=world.machine), markers=None)
    nothing: Any = None
    requests = TransactionRequests(
        life, nothing, nothing, lambda: 0.0, 1.0, nothing, PrincipalTurns(), {}
    )
    client: Any = SimpleNamespace(permits=SimpleNamespace(sees=sees))
    answers: list[Any] = []

    async def listing() -> None:
        answers.append(await requests.answer(client, co.ListTransactions()))

    assert run(turns_beside(listing())) > 5
    [answer] = answers
    assert [each.transactional_id for each in answer.transactions] == ["bob.own"]


def test_requests_of_one_principal_wait_for_each_other() -> None:
    async def scene() -> None:
        turns = PrincipalTurns()
        async with turns.of("bob"):
            second = asyncio.ensure_future(turns.of("bob").__aenter__())
            async with turns.of("ann"):
                await asyncio.sleep(0)
            assert not second.done()
        await second

    run(scene())
