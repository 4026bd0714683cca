"""Topics and their settings, and what the node says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

from penstock import forks
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.session import Reply, Session

ATTACH_MAX: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What a topic is made of. None: the node's default.

    partitions: how many logs; may grow later.
    segment_bytes: size at which a segment is sealed (default 1 GiB).
    segment_age: seconds (or a timedelta) after which it is sealed.
    durability: "os" leaves flushing to the system, "interval" syncs every `flush_interval` seconds,
        "fsync" acknowledges and shows records only once they are on stable storage.
    timestamp_type: "create" keeps the producer's timestamps, "append" shows the writer's.
    record_bytes_max: largest record accepted, in bytes.
    """

    partitions: int = 1
    segment_bytes: int | None = None
    segment_age: float | timedelta | None = None
    durability: Literal["os", "interval", "fsync"] = "os"
    flush_interval: float | timedelta | None = None
    timestamp_type: Literal["create", "append"] = "create"
    record_bytes_max: int | None = None

    def settings(self) -> ms.TopicSettings:
        """The same as it travels."""
        travelling: dict[str, Any] = {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in asdict(self).items()
        }
        return ms.TopicSettings(**travelling)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as shared memory shows it."""

    partition: int
    writer: int
    status: str
    log_start: int
    durable: int
    high_watermark: int
    log_end: int
    leader_epoch: int
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, its settings and its partitions."""

    name: str
    topic_id: str
    settings: dict[str, Any]
    partitions: list[PartitionDescription]


class Admin:
    """Administers the topics of one node. Made by `Client.admin`. For one thread at a time."""

    def __init__(self, socket: Path, *, client_id: str = "", timeout: float = 15.0) -> None:
        self._timeout = timeout
        self._socket = socket
        self._client_id = client_id
        self._session = self._attach()
        self._closed = False
        self._forked = False
        forks.remember(self)

    def _attach(self) -> Session:
        return Session.attach(
            self._socket,
            lo.KIND_ADMIN,
            client_id=self._client_id,
            timeout=min(self._timeout, ATTACH_MAX),
        )

    def create_topic(self, name: str, config: TopicConfig | None = None) -> None:
        """Make a topic and open its partitions. Raises `TopicExistsError`, `ConfigError`."""
        settings = (config or TopicConfig()).settings()
        self._ask(ms.CreateTopic(name, settings), ms.TopicFound)

    def alter_topic(self, name: str, **changes: Any) -> None:
        """Change settings of a topic while it is in use (the fields of `TopicConfig`)."""
        known = self._find(name).settings
        settable = [field.name for field in fields(TopicConfig)]
        unknown = sorted(set(changes) - set(settable))
        if unknown:
            raise er.ConfigError(
                f"a topic has no setting {', '.join(unknown)}; there are {', '.join(settable)}"
            )
        changes = {
            key: value.total_seconds() if isinstance(value, timedelta) else value
            for key, value in changes.items()
        }
        kept = {field: getattr(known, field) for field in ms.TopicSettings.__struct_fields__}
        self._ask(ms.AlterTopic(name, ms.TopicSettings(**{**kept, **changes})), ms.TopicFound)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions. Keys of old records stay where they are."""
        self.alter_topic(name, partitions=total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises `UnknownTopicError`."""
        self._ask(ms.DeleteTopic(name), ms.Done)

    def list_topics(self) -> list[str]:
        """All topic names, sorted."""
        names: list[str] = []
        while True:
            answer = self._ask(ms.ListTopics(names[-1] if names else ""), ms.Topics)
            names += [topic.name for topic in answer.topics]
            if not answer.more:
                return names

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with the state of its partitions, read from shared memory."""
        info = self._find(name)
        partitions = [
            self._describe(number, self._session.page(page), page % self._session.writers)
            for number, page in enumerate(info.pages)
        ]
        settings = {field.name: getattr(info.settings, field.name) for field in fields(TopicConfig)}
        return TopicDescription(name, info.topic_id.hex(), settings, partitions)

    @staticmethod
    def _describe(number: int, page: StatePage, writer: int) -> PartitionDescription:
        return PartitionDescription(
            number,
            writer,
            lo.STATUS_NAMES.get(page.status, str(page.status)),
            page.log_start,
            page.durable,
            page.high_watermark,
            page.log_end,
            page.leader_epoch,
            page.counters(),
        )

    def describe_node(self) -> ms.NodeDescription:
        """The node's process, its writers and how much is attached to it."""
        return self._ask(ms.DescribeNode(), ms.NodeDescription)

    def _find(self, name: str) -> ms.TopicInfo:
        return self._ask(ms.FindTopic(name), ms.TopicFound).topic

    def _ask(self, message: msgspec.Struct, expect: type[Reply]) -> Reply:
        if self._forked:
            raise er.ForkedClientError(
                "this admin was made before fork(); make a new one in the child process"
            )
        if self._closed:
            raise er.ClosedError("this admin is closed")
        if self._session.farewell() is not None:  # the node went away: it may be back
            session = self._attach()
            self._session.close(polite=False)
            self._session = session
        return self._session.request(message, expect, self._timeout)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.close()
            forks.forget(self)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        self._forked = True
        if not self._closed:
            self._closed = True
            self._session.close(polite=False)
