"""Rounds of a trial: struck at one point after the other, or by signals at random moments.

By default a test takes few points and few signals, chosen by a seed that it prints.
`PENSTOCK_INTERRUPTS=all` takes every point, `1/7` each seventh, and a number so many signals.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from interrupts.striking import ERRORS, Alarm, Blow, Interrupted, Strike
from seeds import tell

CHOSEN: Final = os.environ.get("PENSTOCK_INTERRUPTS", "")
POINTS: Final = 6
"""So many points of each verb are the share of the default suite."""
SIGNALS: Final = 150
SECONDS: Final = 20.0
"""The share of the default suite of each guarantee: so many signals, or seconds."""
MISSES_MAX: Final = 20
NEVER: Final = -1
TOLD_EVERY: Final = 10.0
"""Seconds between two lines about how far many signals are."""

Verb = Callable[[Any], object]


class Trial(Protocol):
    """`places`: where it was struck, and how often. `wrong`: what went wrong, in words."""

    places: Counter[str]
    wrong: list[str]

    def round(self, verb: Any, strike: Blow) -> int: ...


def line_by_line(trial: Trial, verb: Verb, seed: int, make: Callable[..., Any] = Strike) -> int:
    """Rounds, each struck at another point of a call; how many were struck. `make`: a `Strike`, or
    what else counts points."""
    chance = random.Random(seed)
    if CHOSEN == "all" or (CHOSEN.startswith("1/") and make is not Strike):  # it has few
        return _each(trial, verb, chance, 1, make)
    if CHOSEN.startswith("1/"):
        return _each(trial, verb, chance, int(CHOSEN[2:]), make)
    return _some(trial, verb, chance, make)


def _each(
    trial: Trial, verb: Verb, chance: random.Random, step: int, make: Callable[..., Any]
) -> int:
    """Until calls have no such point. What a call does depends on how far others are, so some calls
    are short."""
    struck = missed = 0
    for at in itertools.count(chance.randrange(step), step):
        if trial.round(verb, make(at, chance.choice(ERRORS))):
            struck, missed = struck + 1, 0
        else:
            missed += 1
            if missed > MISSES_MAX:
                break
    return struck


def _some(trial: Trial, verb: Verb, chance: random.Random, make: Callable[..., Any]) -> int:
    """A few points, of as many as the last call had that was not struck."""
    strike = make(NEVER, Interrupted)
    trial.round(verb, strike)
    points, struck = strike.points, 0
    for _ in range(POINTS):
        strike = make(chance.randrange(max(1, points)), chance.choice(ERRORS))
        if trial.round(verb, strike):
            struck += 1
        else:
            points = max(1, strike.points)
    return struck


def at_random(
    trial: Trial, verbs: Sequence[Verb], seed: int, what: str, make: type[Alarm] = Alarm
) -> int:
    """Rounds with signals at random moments; how many have struck."""
    chance = random.Random(seed)
    wanted = int(CHOSEN) if CHOSEN.isdigit() else SIGNALS
    began = told = time.monotonic()
    until = float("inf") if CHOSEN.isdigit() else began + SECONDS
    struck, alarm = 0, make(chance)
    while struck < wanted and (now := time.monotonic()) < until:
        struck += trial.round(lambda each: chance.choice(verbs)(each), alarm)
        if now - told > TOLD_EVERY:
            told = now
            tell(
                f"{what}: {struck} of {wanted} signals in {now - began:.0f} s, at "
                f"{len(trial.places)} places, {len(trial.wrong)} wrong"
            )
    tell(f"{what}: {struck} signals at {len(trial.places)} places, {len(trial.wrong)} wrong")
    return struck
