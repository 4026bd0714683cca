"""The positions of a query, as Spark keeps them, and the ranges of a batch between two of them.

Positions travel as JSON through Spark's checkpoint, which compares them as text. So topics and
partitions are in order, and a partition that nothing is taken of keeps its entry unchanged.

    {"version": 1, "topics": {"orders": {"id": "5f..", "partitions": {
        "0": {"offset": 23, "epoch": 4}, "1": {"offset": 7, "epoch": 4, "begin": 0}}}}}

`offset` is the next to read, `epoch` the leader epoch in which the records before it were read
(rule 15). `begin`, in the end of a batch, is where that batch begins in this partition. It is there
where the start does not tell: in the first batch, in new partitions, behind what was lost. So a
batch that is planned again reads the same records, wherever "latest" lies by then.

Pure: no clock, no node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.errors import ConfigError, PenstockError

Partition = tuple[str, int]

VERSION: Final = 1
EPOCH_UNKNOWN: Final = -1


class DataLossError(PenstockError):
    """Records that the query was to read are not there any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in one partition, as a checkpoint keeps it."""

    offset: int
    epoch: int = EPOCH_UNKNOWN
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class StreamPositions:
    """Topic ids, and a place for each partition. `is_initial`: no batch ends here, the first one
    begins here."""

    ids: dict[str, str]
    places: dict[Partition, Place]
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the positions as Spark keeps them."""
        topics: dict[str, Any] = {
            name: {"id": self.ids[name], "partitions": {}} for name in sorted(self.ids)
        }
        for (topic, number), place in sorted(self.places.items()):
            entry = {"offset": place.offset, "epoch": place.epoch}
            if place.begin is not None:
                entry["begin"] = place.begin
            topics[topic]["partitions"][str(number)] = entry
        found: dict[str, Any] = {"version": VERSION, "topics": topics}
        return {**found, "initial": True} if self.is_initial else found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamPositions:
        """Raises `ConfigError` for what another source, or a later version, wrote."""
        try:
            if found["version"] != VERSION:
                raise ConfigError(
                    f"the checkpoint holds positions of version {found['version']}, this Penstock "
                    f"reads version {VERSION}: go on with the one that wrote it"
                )
            topics = found["topics"]
            return cls(
                {name: str(topic["id"]) for name, topic in topics.items()},
                {
                    (name, int(number)): Place(
                        int(entry["offset"]), int(entry["epoch"]), entry.get("begin")
                    )
                    for name, topic in topics.items()
                    for number, entry in topic["partitions"].items()
                },
                bool(found.get("initial", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the checkpoint holds no positions of Penstock ({error!r} is wrong with "
                f"{str(found)[:200]}): it is another source's; use a new checkpoint folder"
            ) from error


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `begin` to `end` of a partition of the topic with that id, and the leader epochs of
    the records before both."""

    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int
    begin_epoch: int = EPOCH_UNKNOWN
    end_epoch: int = EPOCH_UNKNOWN

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def ranges(start: StreamPositions, end: StreamPositions) -> list[Range]:
    """Returns the ranges of a batch from `start` to `end`, from these two alone."""
    found = []
    for name, place in sorted(end.places.items()):
        topic, number = name
        before = start.places.get(name) if start.ids.get(topic) == end.ids[topic] else None
        if place == before:
            continue
        begin, epoch = place.begin, EPOCH_UNKNOWN
        if before is not None and (begin is None or begin == before.offset):
            begin, epoch = before.offset, before.epoch
        if begin is None:
            raise ConfigError(
                f"{topic}-{number}: the checkpoint does not say where its batch begins"
            )
        if begin < place.offset:
            found.append(
                Range(topic, end.ids[topic], number, begin, place.offset, epoch, place.epoch)
            )
    return found


def lag(here: StreamPositions, there: StreamPositions) -> int:
    """Returns how many offsets, of all partitions, `here` is behind `there`."""
    return sum(
        max(0, place.offset - here.places[name].offset)
        for name, place in there.places.items()
        if name in here.places
    )
