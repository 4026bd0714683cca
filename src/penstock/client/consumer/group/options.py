"""The options of a group's consumer, checked before anything is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from penstock.client.validation import check_callable, check_choice, check_range, check_text
from penstock.core.errors import ConfigError
from penstock.ipc.coordination import NAMES_MAX

if TYPE_CHECKING:
    from penstock.client.consumer.group.rebalance import Listener

Guarantee = Literal[
    "at-most-once", "at-least-once", "exactly-once", "manual",
    "at_most_once", "at_least_once", "exactly_once",
]  # fmt: skip
GUARANTEES: Final[tuple[Guarantee, ...]] = (
    "at-most-once",
    "at-least-once",
    "exactly-once",
    "manual",
)
GROUP_NAME_MAX: Final = 200
_NAME: Final = re.compile(r"[\w.\-]+", re.ASCII)


def check_group_name(group: object) -> str:
    if not isinstance(group, str):
        raise TypeError(f"a group's name is str, not {type(group).__name__}: {group!r}")
    if not _NAME.fullmatch(group) or len(group) > GROUP_NAME_MAX:
        raise ConfigError(
            f"group {group!r}: a name has 1 to {GROUP_NAME_MAX} letters, digits, dots, dashes and "
            "underscores"
        )
    return group


def check_group_options(
    group: str,
    guarantee: str,
    topics: Sequence[str],
    pattern: str | None,
    commit_interval: float,
    session_timeout: float,
    processing_timeout: float | None,
    instance_id: str | None,
    listeners: Sequence[Listener | None],
) -> None:
    """Raises `ConfigError` naming option, value and what is allowed; TypeError for wrong types."""
    check_group_name(group)
    check_choice("guarantee", guarantee, GUARANTEES)
    if not topics and pattern is None:
        raise ConfigError(f"group {group!r}: name topics, or give a pattern")
    if len(topics) > NAMES_MAX:
        raise ConfigError(f"{len(topics)} topics; a member names {NAMES_MAX} at most")
    if instance_id is not None:
        check_text("instance_id", instance_id)
    for name, listener in zip(("on_assigned", "on_revoked", "on_lost"), listeners, strict=True):
        check_callable(name, listener)
    if pattern is not None:
        check_text("pattern", pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"pattern={pattern!r} is no regular expression: {error}") from error
    check_range("commit_interval", commit_interval, 0.001, 3600.0)
    check_range("session_timeout", session_timeout, 0.1, 86_400.0)
    if processing_timeout is not None:
        check_range("processing_timeout", processing_timeout, 0.1, 86_400.0)
