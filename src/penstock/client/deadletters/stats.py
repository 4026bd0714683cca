"""How many dead letters there are, of whom, why, and how old. Bounded, however many there are."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.deadletters.story import DeadLetter

NAMES_MAX: Final = 1000
"""Different groups, topics and reasons that are counted by name; others are counted as one."""
REASON_SHOWN: Final = 200
"""Characters of a reason, of its first line, by which it is counted."""
OTHERS: Final = "(others)"
AGES: Final = {"1h": 3600.0, "1d": 86_400.0, "7d": 604_800.0}
OLDER: Final = "older"


@dataclass(slots=True)
class DeadLetterStats:
    """`total`: all of them, and `replayed` of these were sent again. The others: `open`, with
    counts `by_topic`, `by_group`, `by_exception`, `by_reason` and `by_age` (up to 1h, 1d, 7d, and
    older). `damaged`: open ones without content. `value_bytes`: of their values. `oldest` and
    `newest`: seconds since the epoch, None where there are none. `foreign`: records that are no
    dead letters of ours."""

    total: int = 0
    replayed: int = 0
    open: int = 0
    damaged: int = 0
    foreign: int = 0
    value_bytes: int = 0
    oldest: float | None = None
    newest: float | None = None
    by_topic: dict[str, int] = field(default_factory=dict)
    by_group: dict[str, int] = field(default_factory=dict)
    by_exception: dict[str, int] = field(default_factory=dict)
    by_reason: dict[str, int] = field(default_factory=dict)
    by_age: dict[str, int] = field(default_factory=dict)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        now = time.time()
        for letter in letters:
            self.total += 1
            if letter.is_replayed:
                self.replayed += 1
                continue
            self.open += 1
            self.damaged += letter.is_damaged
            self.value_bytes += len(letter.value or b"")
            died_at = letter.record.timestamp / 1e6
            self.oldest = died_at if self.oldest is None else min(died_at, self.oldest)
            self.newest = died_at if self.newest is None else max(died_at, self.newest)
            first_line = letter.reason.partition("\n")[0][:REASON_SHOWN]
            _count(self.by_topic, letter.topic)
            _count(self.by_group, letter.group)
            _count(self.by_exception, letter.exception or "(none)")
            _count(self.by_reason, first_line or "(none)")
            _count(self.by_age, _age(now - died_at))


def _count(counts: dict[str, int], name: str) -> None:
    if name not in counts and len(counts) >= NAMES_MAX:
        name = OTHERS
    counts[name] = counts.get(name, 0) + 1


def _age(seconds: float) -> str:
    return next((name for name, bound in AGES.items() if seconds <= bound), OLDER)
