"""The topics of a group's retries: their names, and making those that are missing.

A retry topic has as many partitions, replicas and in-sync replicas as the topic it belongs to has
when it is made, and keeps records as long, and its delay on top. It is never compacted, for a
record of a key would take those before it along.
Levels that an earlier `Retry` had, and this one has not, are read until they are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.client.admin.admin import Admin, found
from penstock.client.admin.topic_config import TopicConfig
from penstock.client.retry.policy import LEVELS_MAX, Retry
from penstock.client.share.dead_letters import make_dead_letter_topic
from penstock.client.share.options import dead_letter_topics
from penstock.core import errors as er

_PLACES: Final = {"{topic}": ".+", "{group}": ".+", "{level}": "[0-9]+"}
_OF_SOURCE: Final = ("replication_factor", "min_insync_replicas", "durability", "retention")


class Level(NamedTuple):
    """The topic that a retry topic belongs to, and the number of its delay."""

    source: str
    number: int


class RetryTopics:
    """Of one group and what it reads. Raises `ConfigError` for names that cannot be."""

    def __init__(self, retry: Retry, group: str, sources: Sequence[str]) -> None:
        self._retry = retry
        self._group = group
        self.sources = tuple(sources)
        self.letters = dead_letter_topics(retry.dead_letters, sources)
        """Where the dead letters of each topic go; None: nowhere."""
        self.levels: dict[str, Level] = {}
        """By the name of the retry topic."""
        self.partitions: dict[str, int] = {}
        """Of each retry topic, once `make` has found it."""
        for source in sources:
            self._check_source(source)
            for number in range(1, LEVELS_MAX + 1):
                self._add(source, number)

    def name(self, source: str, number: int) -> str:
        parts = {"{topic}": source, "{group}": self._group, "{level}": str(number)}
        return re.sub("|".join(map(re.escape, parts)), lambda at: parts[at[0]], self._retry.topics)

    def _add(self, source: str, number: int) -> None:
        name, letters = self.name(source, number), (self.letters or {}).values()
        if name in self.levels or name in self.sources or name in letters:
            other = self.levels.get(name)
            what = f"level {other.number} of {other.source!r}" if other else "one that is read"
            what = "a topic of dead letters" if name in letters else what
            raise er.ConfigError(
                f"topics={self._retry.topics!r}: the retry topic {name!r} of {source!r}, level "
                f"{number}, would be {what}, too"
            )
        self.levels[name] = Level(source, number)

    def _check_source(self, source: str) -> None:
        pattern = re.escape(self._retry.topics)
        for part, form in _PLACES.items():
            pattern = pattern.replace(re.escape(part), form)
        if re.fullmatch(pattern, source):
            raise er.ConfigError(
                f"{source!r} is a retry topic by its name (topics={self._retry.topics!r}), and "
                "would get retry topics of its own: read the topic that it belongs to"
            )

    def make(self, admin: Admin) -> list[str]:
        """Makes what is missing. Returns the retry topics that are to be read."""
        there = set(admin.list_topics())
        for source in self.sources:
            made_of: TopicConfig | None = None
            for number in range(1, LEVELS_MAX + 1):
                name = self.name(source, number)
                if name not in there and number <= len(self._retry.levels):
                    made_of = made_of or self._like(admin, source)
                    self._make(admin, name, Level(source, number), made_of)
                if name in there or number <= len(self._retry.levels):
                    self._check(admin, name, number)
        for letters in sorted(set((self.letters or {}).values())):
            make_dead_letter_topic(admin, letters)
        return list(self.partitions)

    def _like(self, admin: Admin, source: str) -> TopicConfig:
        there = found(admin, source)
        same = {name: getattr(there.settings, name) for name in _OF_SOURCE}
        if there.settings.cleanup == "compact":
            same["retention"] = None  # which it does not apply
        return TopicConfig(partitions=len(there.pages), **same)

    def _make(self, admin: Admin, name: str, level: Level, like: TopicConfig) -> None:
        made_of = like
        if isinstance(like.retention, int | float):
            delay = self._retry.levels[level.number - 1]
            made_of = replace(like, retention=like.retention + delay)
        try:
            admin.create_topic(name, made_of, if_not_exists=True)
        except er.PenstockError as error:
            raise er.GroupError(
                f"the retry topic {name!r} of {level.source!r} is not there, and cannot be made: "
                f"{error}; create it, allow this client to, or name others by Retry(topics=...)"
            ) from error

    def _check(self, admin: Admin, name: str, number: int) -> None:
        there = found(admin, name)
        self.partitions[name] = len(there.pages)
        delay = self._retry.levels[self._retry.level_of(number) - 1]
        if there.settings.cleanup != "delete":
            raise er.ConfigError(
                f"the retry topic {name!r} has cleanup={there.settings.cleanup!r}, by which "
                "records of a key would go that wait for their retry: set cleanup='delete'"
            )
        kept = there.settings.retention
        if kept is not None and kept <= delay:
            raise er.ConfigError(
                f"the retry topic {name!r} keeps records for {kept:g} s (retention), and they wait "
                f"{delay:g} s there: keep them longer"
            )
