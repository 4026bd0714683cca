"""Bounds and allowed values of requests about groups. An error names the field it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.cluster.groups.patterns import check_pattern
from penstock.cluster.groups.types import (
    AT_LEAST_ONCE,
    GUARANTEES,
    MANUAL,
    GroupLimits,
)
from penstock.core.errors import ConfigError, ResourceLimitError

NAME_CHARACTERS_MAX: Final = 200
PLACES_MAX: Final = 1000
"""Partitions that one request names."""
_MIXED: Final = frozenset({AT_LEAST_ONCE, MANUAL})


def check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise ConfigError(
            f"{what} {name[:250]!r} is not allowed: 1 to {NAME_CHARACTERS_MAX} characters that can "
            "be printed"
        )


def check_places(group: str, places: Sequence[object]) -> None:
    if len(places) > PLACES_MAX:
        raise ResourceLimitError(
            f"a request about group {group!r} names {len(places)} partitions, over {PLACES_MAX} "
            "(PLACES_MAX): send several"
        )


def check_subscription(
    group: str, topics: Sequence[str], pattern: str | None, limits: GroupLimits
) -> None:
    if not topics and pattern is None:
        raise ConfigError(f"a member of group {group!r} names topics, or a pattern for them")
    if len(topics) > limits.member_topics_max:
        raise ResourceLimitError(
            f"a member of group {group!r} names {len(topics)} topics, over "
            f"{limits.member_topics_max} (member_topics_max): use a pattern, or several groups"
        )
    for topic in topics:
        check_name("the topic", topic)
    if pattern is not None:
        check_pattern(pattern)


def check_timeouts(
    group: str, session: float, processing: float | None, limits: GroupLimits
) -> None:
    for name, value, highest in (
        ("session_timeout", session, limits.session_timeout_max),
        ("processing_timeout", processing, limits.processing_timeout_max),
    ):
        if value is not None and not 0 < value <= highest:
            raise ConfigError(
                f"{name}={value} of a member of group {group!r} is not allowed: more than 0, at "
                f"most {highest:g} s"
            )


def check_guarantee(group: str, guarantee: str) -> None:
    if guarantee not in GUARANTEES:
        raise ConfigError(
            f"guarantee {guarantee!r} of group {group!r} is none of {', '.join(GUARANTEES)}"
        )


def go_together(one: str, other: str) -> bool:
    """Whether members of these two guarantees may share a group."""
    return one == other or {one, other} <= _MIXED
