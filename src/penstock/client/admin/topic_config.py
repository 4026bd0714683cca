"""Reads the settings of a topic as users write them: the name and the type of each setting.

Owns the spelling. The node checks the allowed ranges (`server.node.topic_catalog`), since some
bounds are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal

from penstock.client.validation import meant, telling_options
from penstock.core.errors import ConfigError
from penstock.ipc.messages import TopicSettings

WHOLE: Final = (
    "partitions", "segment_bytes", "record_bytes_max", "retention_bytes", "replication_factor",
    "min_insync_replicas", "hold_bytes_max",
)  # fmt: skip
DURATIONS: Final = (
    "segment_age", "flush_interval", "retention", "min_compaction_lag", "delete_retention",
)  # fmt: skip
RATIOS: Final = ("min_dirty_ratio",)
WORDS: Final = ("durability", "timestamp_type", "cleanup", "hold_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of a topic. None: the node's default. Durations: seconds or a timedelta.

    partitions: how many logs; may grow later.
    segment_bytes: size at which a segment is sealed (default 1 GiB).
    segment_age: after how long it is sealed.
    durability: "os" leaves flushing to the system, "interval" syncs every `flush_interval` seconds,
        "fsync" acknowledges and shows records only once they are on stable storage.
    timestamp_type: "create" keeps the producer's timestamps, "append" shows the writer's.
    record_bytes_max: largest record accepted, in bytes.
    retention: how long records are kept, counted from their append; whole segments go. None: for
        ever.
    retention_bytes: how large each partition may grow before its oldest segments go. None: without
        bound.
    cleanup: "delete" applies retention; "compact" keeps the newest record of each key and no
        retention; "compact,delete" does both.
    min_compaction_lag: how long a record stays untouched by compaction (default 0).
    delete_retention: how long a tombstone (a null value) can be read after it was compacted
        (default 1 day).
    min_dirty_ratio: the share of a partition that must be new before it is compacted again
        (default 0.5).
    replication_factor: on how many brokers of a cluster each partition lies (default: 3, or as many
        as there are). `penstock cluster reassign` changes it later.
    min_insync_replicas: with fewer in-sync replicas nothing is committed (default: 2 of 3 and more,
        else 1).
    hold_for: "groups" keeps what a group has not finished, though retention would take it; "nobody"
        keeps nothing.
    hold_bytes_max: how large a partition may grow by that, in bytes (default 10 GiB).
    """

    partitions: int = 1
    segment_bytes: int | None = None
    segment_age: float | timedelta | None = None
    durability: Literal["os", "interval", "fsync"] = "os"
    flush_interval: float | timedelta | None = None
    timestamp_type: Literal["create", "append"] = "create"
    record_bytes_max: int | None = None
    retention: float | timedelta | None = None
    retention_bytes: int | None = None
    cleanup: Literal["delete", "compact", "compact,delete"] = "delete"
    min_compaction_lag: float | timedelta | None = None
    delete_retention: float | timedelta | None = None
    min_dirty_ratio: float | None = None
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    hold_for: Literal["nobody", "groups"] = "nobody"
    hold_bytes_max: int | None = None

    def settings(self) -> TopicSettings:
        """The same as it travels. Raises `ConfigError` for a value of the wrong type."""
        return TopicSettings(**travelling({name: getattr(self, name) for name in SETTABLE}))


TopicConfig.__init__ = telling_options("TopicConfig()")(TopicConfig.__init__)  # type: ignore[method-assign]


def config_of(given: TopicConfig | int | None, settings: Mapping[str, Any]) -> TopicConfig:
    """Returns the settings of a topic, from a config, a number of partitions, or names.

    Raises TypeError for both at once, `ConfigError` for names that there are not.
    """
    if not settings and isinstance(given, TopicConfig):
        return given
    if isinstance(given, TopicConfig) or (given is not None and "partitions" in settings):
        raise TypeError(
            "a topic is made of a TopicConfig or of settings by name, and not of both: "
            f"{given!r} and {', '.join(sorted(settings))}"
        )
    if given is not None:
        if not isinstance(given, int) or isinstance(given, bool):
            raise TypeError(
                f"config={given!r} must be a TopicConfig, or a number of partitions, not "
                f"{type(given).__name__}"
            )
        settings = {**settings, "partitions": given}
    _check_settable(settings)
    return TopicConfig(**settings)


def _check_settable(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(SETTABLE))
    if unknown:
        raise ConfigError(
            f"a topic has no setting {', '.join(unknown)}; {meant(unknown[0], SETTABLE)}"
        )


SETTABLE: Final = tuple(field.name for field in fields(TopicConfig))
assert set(SETTABLE) == {*WHOLE, *DURATIONS, *RATIOS, *WORDS}


def altered(known: TopicSettings, changes: Mapping[str, Any]) -> TopicSettings:
    """Settings with some of them changed. Raises `ConfigError` for names that there are not."""
    _check_settable(changes)
    kept = {field: getattr(known, field) for field in TopicSettings.__struct_fields__}
    return TopicSettings(**{**kept, **travelling(changes)})


def travelling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the types in which they travel: what the node could not even read is refused
    here, by name."""
    return {name: _travelling(name, value) for name, value in given.items()}


def _travelling(name: str, value: Any) -> Any:
    if value is None and name not in ("partitions", *WORDS):
        return None
    if name in WORDS:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}: write one of its words in quotes")
        parts = [part.strip() for part in value.split(",")]
        return ",".join(sorted(parts)) if name == "cleanup" else value
    if isinstance(value, timedelta) and name in DURATIONS:
        return value.total_seconds()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in WHOLE and not (is_number and isinstance(value, int)):
        raise ConfigError(f"{name} is {value!r}: write a whole number")
    if not is_number:
        kind = "seconds or a timedelta" if name in DURATIONS else "a number"
        raise ConfigError(f"{name} is {value!r}: write {kind}")
    return value
