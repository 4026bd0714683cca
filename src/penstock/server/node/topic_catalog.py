"""The catalogue of topics: names, ids, pages and settings, and their file topics.json.

A change is decided as a new document, written and synced, and only then this object answers with
it. So an answer to a client survives a power cut. Owns which names, settings and pages are allowed.
Opens no partition and talks to nobody.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.core.errors import (
    ConfigError,
    DataFolderError,
    ResourceLimitError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.messages import TopicInfo, TopicSettings
from penstock.ipc.names import RESERVED_PREFIX, is_internal
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import (
    TOPICS_FILE,
    decode_document,
    encode_document,
    is_partition_folder,
)

CATALOG_SCHEMA: Final = 1
TOPIC_NAME_MAX: Final = 200
SEGMENT_BYTES_MIN: Final = 4096
SEGMENT_BYTES_MAX: Final = 1 << 40
DURATION_MAX: Final = 100 * 365 * 86_400.0
RETENTION_BYTES_MAX: Final = 1 << 62
REPLICAS_MAX: Final = 16

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_CHOICES: Final = {
    "durability": ("os", "interval", "fsync"),
    "timestamp_type": ("create", "append"),
    "cleanup": ("delete", "compact", "compact,delete"),
    "hold_for": ("nobody", "groups"),
}


class TopicRecord(msgspec.Struct, frozen=True):
    """A topic as topics.json keeps it. Partition k has page `pages[k]` of the state table."""

    name: str
    topic_id: str
    pages: list[int]
    settings: TopicSettings

    @property
    def info(self) -> TopicInfo:
        return TopicInfo(self.name, bytes.fromhex(self.topic_id), self.pages, self.settings)

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)

    def folder(self, data_folder: str, partition: int) -> str:
        return os.path.join(data_folder, f"{self.topic_id}-{partition}")


class CatalogDocument(msgspec.Struct, frozen=True):
    """topics.json. `deleting`: topics that are gone, whose folders may not be."""

    schema: int = CATALOG_SCHEMA
    topics: list[TopicRecord] = []
    deleting: list[TopicRecord] = []


class Catalog:
    """All topics of a node. `plan_*` decide a change, `write` makes it durable, `apply` true."""

    def __init__(self, path: str, storage: Storage, document: CatalogDocument) -> None:
        self._path = path
        self._storage = storage
        self._document = document
        self._index()

    @classmethod
    def open(cls, data_folder: str, storage: Storage) -> Catalog:
        path = os.path.join(data_folder, TOPICS_FILE)
        data = storage.read_file(path)
        if data is not None:
            document = decode_document(data, CatalogDocument, path, CATALOG_SCHEMA)
            _check_document(document, path)
            return cls(path, storage, document)
        if any(is_partition_folder(name) for name in storage.listdir(data_folder)):
            raise DataFolderError(
                f"{data_folder} has partitions but no {TOPICS_FILE}, which names them: bring it "
                "back from a copy of the folder, or move the partition folders away"
            )
        return cls(path, storage, CatalogDocument())

    def _index(self) -> None:
        self.topics = {topic.name: topic for topic in self._document.topics}
        self.names = {bytes.fromhex(topic.topic_id): name for name, topic in self.topics.items()}
        self.deleting = {topic.topic_id: topic for topic in self._document.deleting}

    @property
    def count(self) -> int:
        """The topics that users made."""
        return sum(not topic.is_internal for topic in self._document.topics)

    def find(self, name: str, *, to_delete: bool = False) -> TopicRecord:
        topic = self.topics.get(name)
        if topic is None:
            advice = (
                "nothing is deleted (`penstock topic list` shows those that there are)"
                if to_delete
                else f"create it first (`penstock topic create {name}`)"
            )
            raise UnknownTopicError(f"there is no topic {name!r} on this node: {advice}")
        return topic

    # --- decide ---
    def plan_create(
        self,
        name: str,
        settings: TopicSettings,
        config: NodeConfig,
        is_page_free: Callable[[int], bool],
    ) -> tuple[CatalogDocument, TopicRecord]:
        check_topic_name(name)
        check_settings(settings, config)
        if self.count >= config.topics_max:
            raise ResourceLimitError(
                f"the node has {self.count} topics, its bound topics_max: delete some, or start "
                "the node with a larger one"
            )
        return self._created(name, settings, config.partitions_max, is_page_free)

    def plan_internal(
        self, name: str, settings: TopicSettings, is_page_free: Callable[[int], bool]
    ) -> tuple[CatalogDocument, TopicRecord]:
        """A topic of the node's own, which no bound on those of users keeps out."""
        return self._created(name, settings, lo.PAGES_MAX, is_page_free)

    def _created(
        self,
        name: str,
        settings: TopicSettings,
        partitions_max: int,
        is_page_free: Callable[[int], bool],
    ) -> tuple[CatalogDocument, TopicRecord]:
        if name in self.topics:
            raise TopicExistsError(
                f"topic {name!r} exists with {len(self.topics[name].pages)} partitions: choose "
                "another name, or delete it first"
            )
        pages = self._pages(settings.partitions, partitions_max, is_page_free)
        topic = TopicRecord(name, os.urandom(16).hex(), pages, settings)
        return self._with(topics=[*self._document.topics, topic]), topic

    def plan_alter(
        self,
        name: str,
        settings: TopicSettings,
        config: NodeConfig,
        is_page_free: Callable[[int], bool],
    ) -> tuple[CatalogDocument, TopicRecord]:
        old = self.find(name)
        check_settings(settings, config)
        more = settings.partitions - len(old.pages)
        if more < 0:
            raise ConfigError(
                f"topic {name!r} has {len(old.pages)} partitions and cannot shrink to "
                f"{settings.partitions}: create another topic and copy"
            )
        pages = self._pages(more, config.partitions_max, is_page_free)
        topic = TopicRecord(name, old.topic_id, [*old.pages, *pages], settings)
        topics = [topic if known is old else known for known in self._document.topics]
        return self._with(topics=topics), topic

    def plan_delete(self, name: str) -> tuple[CatalogDocument, TopicRecord]:
        topic = self.find(name, to_delete=True)
        return (
            self._with(
                topics=[known for known in self._document.topics if known is not topic],
                deleting=[*self._document.deleting, topic],
            ),
            topic,
        )

    def plan_follow(
        self, topics: list[TopicRecord]
    ) -> tuple[CatalogDocument | None, list[TopicRecord]]:
        """Have exactly these topics, as a cluster has them; and those that are gone by that. None:
        it is so."""
        if topics == self._document.topics:
            return None, []
        kept = {topic.topic_id for topic in topics}
        gone = [topic for topic in self._document.topics if topic.topic_id not in kept]
        deleting = [*self._document.deleting, *gone]
        return self._with(topics=topics, deleting=deleting), gone

    def plan_forget(self, topic_id: str) -> CatalogDocument:
        """The folders of a deleted topic are gone."""
        left = [topic for topic in self._document.deleting if topic.topic_id != topic_id]
        return self._with(deleting=left)

    def _with(self, **changes: object) -> CatalogDocument:
        return msgspec.structs.replace(self._document, **changes)

    def _pages(
        self, count: int, partitions_max: int, is_page_free: Callable[[int], bool]
    ) -> list[int]:
        """The lowest free pages; neighbours belong to different writers."""
        live = {page for topic in self._document.topics for page in topic.pages}
        known = sum(len(topic.pages) for topic in self.topics.values() if not topic.is_internal)
        if known + count > partitions_max:
            raise ResourceLimitError(
                f"{count} more partitions would make {known + count} on this node, over its "
                f"bound partitions_max={partitions_max}: delete topics, ask for fewer, or start "
                "the node with a larger one"
            )
        taken = live.union(*(topic.pages for topic in self._document.deleting))
        pages: list[int] = []
        for page in range(lo.PAGES_MAX):
            if len(pages) == count:
                break
            if page not in taken and is_page_free(page):
                pages.append(page)
        if len(pages) < count:
            raise ResourceLimitError(
                f"only {len(pages)} of the {lo.PAGES_MAX} pages of the state table are free and "
                f"{count} are wanted: pages of topics that are being deleted come free by and by"
            )
        return pages

    # --- record, then replay ---
    def write(self, document: CatalogDocument) -> None:
        """Make a plan durable. Blocks on the device; nothing here changes yet."""
        self._storage.write_file_atomic(self._path, encode_document(document))

    def apply(self, document: CatalogDocument) -> None:
        """Make a written plan true."""
        self._document = document
        self._index()


def check_topic_name(name: str) -> None:
    if not _TOPIC_NAME.fullmatch(name) or len(name) > TOPIC_NAME_MAX or name in (".", ".."):
        raise ConfigError(
            f"topic name {name[:250]!r} is not allowed: 1 to {TOPIC_NAME_MAX} characters of "
            "[a-zA-Z0-9._-], but not '.' or '..'"
        )
    if is_internal(name):
        raise ConfigError(
            f"topic name {name!r} is not allowed: names that begin with {RESERVED_PREFIX!r} are "
            "the node's own"
        )


def check_not_internal(name: str) -> None:
    """Refuse what users must not do to a topic of the node's own."""
    if is_internal(name):
        raise ConfigError(
            f"topic {name!r} is the node's own: nobody else may write to it, change, trim or "
            "delete it"
        )


def check_settings(settings: TopicSettings, config: NodeConfig) -> None:
    """Refuse what no partition could be opened with, naming the field and what is allowed."""
    _check_range("partitions", settings.partitions, 1, config.partitions_max)
    _check_range("segment_bytes", settings.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    _check_range("segment_age", settings.segment_age, 1.0, DURATION_MAX)
    _check_range("flush_interval", settings.flush_interval, 0.001, 3600.0)
    _check_range("record_bytes_max", settings.record_bytes_max, 1, config.batch_bytes_max)
    _check_range("retention", settings.retention, 1.0, DURATION_MAX)
    _check_range("retention_bytes", settings.retention_bytes, 1, RETENTION_BYTES_MAX)
    _check_range("hold_bytes_max", settings.hold_bytes_max, 1, RETENTION_BYTES_MAX)
    _check_range("min_compaction_lag", settings.min_compaction_lag, 0.0, DURATION_MAX)
    _check_range("delete_retention", settings.delete_retention, 0.0, DURATION_MAX)
    _check_range("min_dirty_ratio", settings.min_dirty_ratio, 0.0, 1.0)
    for field in ("replication_factor", "min_insync_replicas"):
        given = getattr(settings, field)
        if config.node_id is None and given not in (None, 1):
            raise ConfigError(
                f"{field} is {given!r}: this node is alone and has one copy of everything; more "
                "need a cluster (`penstock serve --node-id`)"
            )
        _check_range(field, given, 1, REPLICAS_MAX)
    for field, allowed in _CHOICES.items():
        given = getattr(settings, field)
        if given not in allowed:
            raise ConfigError(f"{field} is {given[:100]!r}: allowed are {', '.join(allowed)}")


def _check_range(field: str, given: float | None, low: float, high: float) -> None:
    if given is not None and not (math.isfinite(given) and low <= given <= high):
        raise ConfigError(f"{field} is {given!r}: allowed are {low:.15g}..{high:.15g}")


def _check_document(document: CatalogDocument, path: str) -> None:
    """Checks that a decoded document is a catalogue: a page with two owners would mix two logs."""
    complaint = None
    names = [topic.name for topic in document.topics]
    pages = [page for topic in document.topics for page in topic.pages]
    topics = [*document.topics, *document.deleting]
    if len(set(names)) != len(names):
        complaint = "a topic name is there twice"
    elif len(set(pages)) != len(pages):
        complaint = "a page belongs to two partitions"
    elif not all(0 <= page < lo.PAGES_MAX for page in _all_pages(topics)):
        complaint = f"a page is outside 0..{lo.PAGES_MAX - 1}"
    elif not all(is_partition_folder(f"{topic.topic_id}-0") for topic in topics):
        complaint = "a topic id is not 32 hexadecimal digits"
    if complaint is not None:
        raise DataFolderError(
            f"{path} cannot be right: {complaint}. Bring it back from a copy of the folder"
        )


def _all_pages(topics: Iterable[TopicRecord]) -> Iterable[int]:
    return (page for topic in topics for page in topic.pages)
