"""An exception at any line of what makes, ends or administers leaves nothing in the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from interrupts import living_trial as lives
from interrupts.living_trial import LivingTrial, Verb
from interrupts.rounds import line_by_line
from seeds import seed_of

from penstock.testing import Broker

STRUCK_MIN = 2

_numbers = itertools.count()

VERBS: tuple[Verb, ...] = (
    lives.client, lives.producer, lives.consumer, lives.member, lives.transactional, lives.stage,
    lives.admin, lives.requests, lives.topics,
)  # fmt: skip


@pytest.fixture(scope="module", params=["shm", "tcp"])
def node(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(writers=2, transport=request.param) as broker:
        yield broker


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_what_is_struck_while_it_is_made_or_ended_is_in_nobodys_way(
    node: Broker, verb: Verb
) -> None:
    trial = LivingTrial(node.connect, f"living-{next(_numbers)}")
    struck = line_by_line(trial, verb, seed_of(f"lines of {verb.__name__}"))
    if verb is lives.member:
        trial.group_has_all()
    trial.judge()
    assert struck >= STRUCK_MIN
