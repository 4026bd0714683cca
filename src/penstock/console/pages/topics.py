"""Topics: a list in pages, one topic with partitions and readers, and what an action changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.admin.admin import PartitionDescription, TopicDescription
from penstock.client.admin.groups import GroupDescription
from penstock.client.admin.hot_keys import HotPartition
from penstock.client.admin.trim import TrimResult
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionPlan, PageTable, table
from penstock.console.pages.records import preview
from penstock.operations import values
from penstock.operations.wording import counted, human_bytes

PARTITIONS_SHOWN: Final = 100
"""Partitions of a topic's page."""


@dataclass(frozen=True, slots=True)
class TopicReader:
    """A group that reads a topic. `until_lost`: seconds until retention would take records that it
    has not read; None: never, or not known."""

    group: str
    guarantee: str
    lag: int
    lag_seconds: float | None
    until_lost: float | None


@dataclass(frozen=True, slots=True)
class TopicPageModel:
    """One topic. `first`: the first of the `count` partitions that is shown, which are all of
    `total`, or only those that are `ill`; `readers_left`: groups not looked at."""

    name: str
    topic_id: str
    settings: tuple[tuple[str, str], ...]
    offsets: int
    nbytes: int
    partitions: tuple[Any, ...]
    count: int
    total: int
    ill: bool
    first: int
    is_clustered: bool
    readers: tuple[TopicReader, ...]
    readers_left: int
    disk_level: str

    @property
    def next(self) -> int | None:
        end = self.first + PARTITIONS_SHOWN
        return end if end < self.count else None


def topic_model(
    topic: TopicDescription, groups: Iterable[GroupDescription], first: int, readers_left: int = 0,
    *, ill: bool = False,
) -> TopicPageModel:  # fmt: skip
    """The page of a topic, from its `first` partition on, or of those that are not well."""
    parts = topic.partitions
    shown = [part for part in parts if not ill or is_ill(part)]
    first = min(first, max(0, len(shown) - 1))
    known = [(key, values.setting(key, value)) for key, value in topic.settings.items()]
    return TopicPageModel(
        topic.name, topic.topic_id, tuple(known),
        sum(max(0, part.high_watermark - part.log_start) for part in parts),
        sum(part.counters["bytes"] for part in parts),
        tuple(shown[first : first + PARTITIONS_SHOWN]), len(shown), len(parts), ill, first,
        any(part.replicas for part in parts), tuple(readers(topic, groups)), readers_left,
        topic.disk["level"],
    )  # fmt: skip


def is_ill(part: PartitionDescription) -> bool:
    """Whether it takes nothing, nobody leads it, or not all replicas are in sync."""
    is_led = part.leader is not None or not part.replicas
    return part.status != "online" or not is_led or len(part.isr) < len(part.replicas)


@dataclass(frozen=True, slots=True)
class HotPartitionRow:
    """The most frequent keys of a partition."""

    partition: int
    rate: float
    load: float
    advice: str
    keys: PageTable


def hot_rows(found: Iterable[HotPartition]) -> list[HotPartitionRow]:
    """Partitions with their keys, those with most load first."""
    return [
        HotPartitionRow(
            one.partition, one.rate, one.load, one.advice,
            table(
                ("Key", "Of the partition's records", "Records", "At most too many"),
                [(preview(key.key) or "none", f"{key.share:.1%}", key.records, key.error)
                 for key in one.keys],
            ),
        )
        for one in sorted(found, key=lambda one: -one.load)
    ]  # fmt: skip


def readers(topic: TopicDescription, groups: Iterable[GroupDescription]) -> Iterable[TopicReader]:
    """Groups with something of the topic, those with most lag first."""
    keeps = topic.settings.get("retention")
    found = []
    for group in groups:
        own = [one for one in group.partitions if one.topic == topic.name]
        if not own:
            continue
        ages = [one.lag_seconds for one in own if one.lag_seconds]
        oldest = max(ages, default=None)
        left = None if keeps is None or oldest is None else max(0.0, keeps - oldest)
        lag = sum(one.lag or 0 for one in own)
        found.append(TopicReader(group.group, group.guarantee, lag, oldest, left))
    return sorted(found, key=lambda one: -one.lag)


# --- actions --------------------------------------------------------------------------------------
def create_plan(url: str, name: str, partitions: int, settings: Mapping[str, Any]) -> ActionPlan:
    words: list[object] = ["topic", "create", name, "-p", partitions]
    for key, value in settings.items():
        words += ["-c", f"{key}={values.setting(key, value)}"]
    shown: list[tuple[object, ...]] = [(key, values.setting(key, value) or "the default")
                                       for key, value in settings.items()]  # fmt: skip
    return ActionPlan(
        f"Create topic {name}",
        (f"A new topic {name} with {counted(partitions, 'partition')}, without records.",),
        command(url, *words), "Create it", "/topics",
        table(("Setting", "Value"), shown) if shown else None,
    )  # fmt: skip


def alter_plan(url: str, topic: TopicDescription, changes: Mapping[str, Any]) -> ActionPlan:
    rows: list[tuple[object, ...]] = []
    for key, value in changes.items():
        before = values.setting(key, topic.settings.get(key)) or "the default"
        rows.append((key, before, values.setting(key, value) or "the default"))
    grows = changes.get("partitions")
    says = ["It holds at once; nothing is restarted."]
    if grows is not None:
        says.append("Records stay where they are; new records of a key may go elsewhere.")
    if {"retention", "retention_bytes"} & changes.keys():
        says.append("Shorter retention removes records for ever.")
    words = ["topic", "config", topic.name]
    words += [f"{key}={values.setting(key, value)}" for key, value in changes.items()
              if key != "partitions"]  # fmt: skip
    if grows is not None and len(changes) == 1:
        words = ["topic", "add-partitions", topic.name, str(grows)]
    return ActionPlan(
        f"Change topic {topic.name}", tuple(says), command(url, *words), "Change it",
        page_link("topic", name=topic.name), table(("Setting", "Now", "Then"), rows),
    )  # fmt: skip


def delete_plan(url: str, topic: TopicDescription, groups: Iterable[TopicReader]) -> ActionPlan:
    offsets = sum(max(0, part.high_watermark - part.log_start) for part in topic.partitions)
    says = [f"{counted(len(topic.partitions), 'partition')} with {offsets:,} offsets go for ever."]
    names = [each.group for each in groups]
    if names:
        says.append(f"Groups that read it: {', '.join(names[:20])}.")
    return ActionPlan(
        f"Delete topic {topic.name}", tuple(says), command(url, "topic", "delete", topic.name),
        "Delete it for ever", page_link("topic", name=topic.name),
    )  # fmt: skip


def trim_plan(
    url: str, name: str, before: str, partition: int | None, told: list[TrimResult],
    back: str, title: str, words: tuple[object, ...],
) -> ActionPlan:  # fmt: skip
    """The plan of all that removes the oldest records of `name` for ever."""
    records = sum(one.records for one in told)
    size = human_bytes(sum(one.nbytes for one in told))
    where = "all partitions" if partition is None else f"partition {partition}"
    says = (
        f"{counted(records, 'record')} before {before} in {where} of {name} go for ever ({size})."
    )
    rows: list[tuple[object, ...]] = [
        (one.partition, one.log_start_before, one.log_start, one.records, one.segments)
        for one in told
    ]
    return ActionPlan(
        title,
        (says,),
        command(url, *words), "Remove them for ever", back,
        table(("Partition", "Start", "Then", "Records", "Segments"), rows),
        is_empty=records == 0,
    )  # fmt: skip
