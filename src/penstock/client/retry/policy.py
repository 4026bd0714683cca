"""`Retry`: how often, when and where a group tries records again that its handler failed at.

Owns the checks of these options.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.client.share.options import BACKOFF_MAX
from penstock.client.validation import check_integer, check_range, check_text, telling_options
from penstock.core.errors import ConfigError

RETRIES_MAX: Final = 255
LEVELS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How a group tries records again that its handler failed at; see `GroupConsumer.run`.

    max: how often, after the first time. Then the record becomes a dead letter.
    backoff: seconds before the first retry, the second, and so on, each longer than the one before;
        the last counts for all later ones, too. Each is a level, which has a topic of its own.
    topics: the name of these topics: "{topic}" is the record's, "{group}" the group's, "{level}"
        the number of the level, from 1 on.
    fatal: exceptions that no retry would mend: the record becomes a dead letter at once. So it does
        where its value cannot be decoded for the handler (`DecodeError`).
    dead_letters: the topic for what cannot be done; "{topic}" is the record's. None: nothing is
        kept of it.
    """

    max: int = 5
    backoff: tuple[float, ...] = (1.0, 10.0, 60.0, 600.0)
    topics: str = "{topic}.retry.{group}.{level}"
    fatal: tuple[type[Exception], ...] = ()
    dead_letters: str | None = "{topic}.dlq"

    def __post_init__(self) -> None:
        check_integer("max", self.max)
        check_range("max", self.max, 1, RETRIES_MAX)
        object.__setattr__(self, "backoff", _checked_backoff(self.backoff))
        object.__setattr__(self, "fatal", _checked_fatal(self.fatal))
        check_text("topics", self.topics)
        for part in ("{topic}", "{level}"):
            if part not in self.topics:
                raise ConfigError(
                    f"topics={self.topics!r} has no {part}: each level of each topic needs a retry "
                    'topic of its own, as "{topic}.retry.{group}.{level}" names them'
                )
        if self.dead_letters is not None:
            check_text("dead_letters", self.dead_letters)

    @property
    def levels(self) -> tuple[float, ...]:
        """The delays that are used: no more than there are retries."""
        return self.backoff[: self.max]

    def level_of(self, retry: int) -> int:
        """The level of the n-th retry, both from 1 on."""
        return min(retry, len(self.levels))


Retry.__init__ = telling_options("Retry()")(Retry.__init__)  # type: ignore[method-assign]


def _checked_backoff(given: object) -> tuple[float, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f"backoff={given!r} must be the seconds before the first retry, the second, and so on, "
            "as (1.0, 10.0, 60.0)"
        )
    delays = tuple(given)
    if not 1 <= len(delays) <= LEVELS_MAX:
        raise ConfigError(f"backoff={delays!r} must have 1 to {LEVELS_MAX} delays")
    for delay in delays:
        check_range("backoff", delay, 0.0, BACKOFF_MAX)
    if any(second <= first for first, second in pairwise(delays)):
        raise ConfigError(
            f"backoff={delays!r} must grow: each delay is longer than the one before it, and the "
            "last counts for all later retries"
        )
    return tuple(float(delay) for delay in delays)


def _checked_fatal(given: object) -> tuple[type[Exception], ...]:
    kinds = given if isinstance(given, tuple | list) else (given,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise TypeError(f"fatal={given!r} must be exceptions, as (ValueError, KeyError)")
    return tuple(kinds)
