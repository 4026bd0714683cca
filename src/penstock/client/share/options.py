"""The options of a share consumer, checked before anything is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.client.consumer.group.options import check_group_name
from penstock.client.session import as_topic
from penstock.client.validation import (
    PREFETCH_MIN,
    check_choice,
    check_integer,
    check_range,
    check_text,
)
from penstock.cluster.shares.policy import HEADER, HEADER_NAME_BYTES_MAX
from penstock.core.errors import ConfigError
from penstock.ipc.coordination import NAMES_MAX
from penstock.ipc.sharing import RECORDS_MAX, ShareSettings

DELIVERIES_MAX: Final = 255
BACKOFF_MAX: Final = 365 * 86_400.0
DEAD_SHARE_MIN: Final = 0.01
DEDUP_WINDOW_MIN: Final = 1.0
DEDUP_WINDOW_MAX: Final = 7 * 86_400.0
LEASE_MIN: Final = 0.1
"""Seconds: what is shorter would take records from who was just about to begin with them."""


def check_share_options(
    group: object,
    topics: Sequence[object],
    max_records: int,
    prefetch_bytes: int,
    ack_interval: float,
    session_timeout: float,
) -> list[str]:
    """The topics. Raises `ConfigError` naming option, value and what is allowed; TypeError for
    wrong types."""
    check_group_name(group)
    named = list(dict.fromkeys(as_topic(topic) for topic in topics))
    if not named:
        raise ConfigError(f"share group {group!r}: name topics")
    if len(named) > NAMES_MAX:
        raise ConfigError(f"{len(named)} topics; a member names {NAMES_MAX} at most")
    check_integer("max_records", max_records)
    check_range("max_records", max_records, 1, RECORDS_MAX)
    check_range("prefetch_bytes", prefetch_bytes, PREFETCH_MIN, 1 << 34)
    check_range("ack_interval", ack_interval, 0.0, 60.0)
    check_range("session_timeout", session_timeout, 0.1, 86_400.0)
    return named


def share_settings(
    max_deliveries: int | None,
    backoff: tuple[float, float],
    start: str,
    max_lease: float | None,
    dead_share: float | None,
    order: str | None,
    fair: str | None,
    dedup_window: float | None,
) -> ShareSettings:
    """As the coordinator is told. Raises `ConfigError`, TypeError."""
    if max_deliveries is not None:
        check_integer("max_deliveries", max_deliveries)
        check_range("max_deliveries", max_deliveries, 1, DELIVERIES_MAX)
    check_choice("start", start, ("earliest", "latest"))
    if not isinstance(backoff, tuple | list) or len(backoff) != 2:
        raise TypeError(f"backoff={backoff!r} must be a pair of seconds: (first, longest)")
    least, most = backoff
    check_range("backoff", least, 0.0, BACKOFF_MAX)
    check_range("backoff", most, least, BACKOFF_MAX)
    if max_lease is not None:
        check_range("max_lease", max_lease, LEASE_MIN, BACKOFF_MAX)
    if dead_share is not None:
        check_range("dead_share", dead_share, DEAD_SHARE_MIN, 1.0 - DEAD_SHARE_MIN)
    if order is not None:
        check_choice("order", order, ("key",))
    if fair is not None:
        _check_fair(fair)
    if dedup_window is not None:
        check_range("dedup_window", dedup_window, DEDUP_WINDOW_MIN, DEDUP_WINDOW_MAX)
    return ShareSettings(
        max_deliveries or 0, float(least), float(most), start, float(max_lease or 0.0),
        float(dead_share or 0.0), order or "", fair or "", float(dedup_window or 0.0),
    )  # fmt: skip


def _check_fair(given: str) -> None:
    check_text("fair", given)
    name = given.removeprefix(HEADER)
    if given != "key" and (name == given or not 0 < len(name.encode()) <= HEADER_NAME_BYTES_MAX):
        raise ConfigError(
            f"fair={given!r} must be 'key', or 'header:NAME' with the name of a header, of up to "
            f"{HEADER_NAME_BYTES_MAX} bytes, or None"
        )


def dead_letter_topics(given: object, topics: Sequence[str]) -> dict[str, str] | None:
    """Where the dead letters of each topic go; None: nowhere. Raises `ConfigError` for a topic that
    would be its own."""
    if given is None:
        return None
    check_text("dead_letters", given)
    found = {topic: str(given).replace("{topic}", topic) for topic in topics}
    for topic, name in found.items():
        if name in topics:
            raise ConfigError(
                f"dead_letters={given!r}: dead letters of {topic!r} would go to {name!r}, on which "
                "this consumer works itself, so what cannot be done would come for ever; name "
                'another topic, such as "{topic}.dlq"'
            )
    return found
