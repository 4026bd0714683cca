"""Each attack of `make attacks`, for a moment, at one node: others are served, and nothing ends.

How long others wait is measured by `make attacks`, where nothing else runs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from attacks.loads import PAIRS
from attacks.site import ATTACKER, NEIGHBOUR, VICTIM, Site, served
from wire import Dealer

from penstock.ipc import layout as lo


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("attacks")) as site:
        yield site


@pytest.fixture(scope="module")
def victim(site: Site) -> Iterator[Dealer]:
    with site.dealer(VICTIM) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        yield dealer


SLOW = {"hostile patterns", "lists among many of others"}
"""Each costs the time that a pattern may take, or makes thousands of ids."""


@pytest.mark.parametrize(
    "pair", [pytest.param(it, marks=pytest.mark.slow) if it in SLOW else it for it in PAIRS]
)
def test_a_tenant_that_was_there_before_is_served_beside_an_attack(
    site: Site, victim: Dealer, pair: str
) -> None:
    attack, behaved = PAIRS[pair]
    for load in (attack(site, ATTACKER), behaved(site, NEIGHBOUR)):
        with contextlib.closing(load):
            steps = []
            for step in itertools.islice(load, 2):
                steps.append(step)
                assert victim.find(1, f"{VICTIM}.own").name == f"{VICTIM}.own"
            assert sum(steps) > 0, "the load did something"
