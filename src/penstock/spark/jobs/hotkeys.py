"""`hot_keys`: finds keys that overload a partition, and plans how to spread them.

A key lives in one partition, so more partitions do not help one that takes more than a fair share:
it has to become several keys. The plan gives each such key suffixes (`ann#0`, `ann#1`, ...), chosen
by where the producers' partitioner puts them. It says what the partitions would hold then. Order
holds within a suffix only; a reader of a key reads all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.client.producer.partitioner import partition_of
from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.common import Say, read_topics, silent, told

COLUMNS: Final = "key BINARY, value BINARY, topic STRING, partition INT"
TOP: Final = 20
SEPARATOR: Final = "#"
TRIES_MAX: Final = 256
"""Suffixes that are looked at for a key: after so many, the best of them have to do."""
SKEW_FINE: Final = 1.1
"""No key is split below it."""

Place = tuple[str, int]
"""A suffix, and the partition that it leads to."""
Loads = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class KeyLoad:
    """The load of one key in one partition; `key` None: records without one."""

    key: bytes | None
    partition: int
    records: int
    bytes: int


Placed = tuple[KeyLoad, list[Place]]


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """A key that is to be split: its `suffixes`, and the partitions that these lead to. A producer
    takes them in turn."""

    key: str
    records: int
    share: float
    suffixes: list[str]
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class HotKeys:
    """The report on a topic. `skew` is the fullest partition over the mean of all, `planned_skew`
    what it would be with `plan`; `top` are the keys with the most records."""

    topic: str
    records: int
    keys: int
    partitions: dict[int, int]
    skew: float
    top: list[KeyLoad]
    plan: list[KeyPlan]
    planned: dict[int, int]
    planned_skew: float

    def as_json(self) -> dict[str, Any]:
        report = asdict(self)
        report["top"] = [{**asdict(load), "key": text(load.key)} for load in self.top]
        return report


def hot_keys(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    top: int = TOP,
    separator: str = SEPARATOR,
    keys: str | None = None,
    say: Say = silent,
) -> HotKeys:
    """Counts the records of each key of `topic`, and plans for those that crowd a partition.

    Args:
        top: keys that the report shows, and that a plan may split, at most.
        separator: the text between a key and its suffix.
        keys: the client's key file, which is to be found at that path on every host.
    """
    if top < 1:
        raise ConfigError(f"top={top}: at least one key is to be shown")
    node = NodeAddress(bootstrap, keys=keys)
    with told(f"counting the keys of {topic}"):
        frame = read_topics(spark, node, [topic], COLUMNS)
        loads, heavy, different = counted(frame, top)
    found = report(topic, loads, heavy, different, _partitions(node, topic), separator)
    say(f"{topic}: {found.keys:,} keys, the fullest partition has {found.skew:.2f} times the mean")
    return found


def _partitions(node: NodeAddress, topic: str) -> int:
    with node.connect("penstock-hot-keys") as client, client.admin() as admin:
        return len(admin.describe_topic(topic).partitions)


def counted(frame: DataFrame, top: int) -> tuple[dict[int, int], list[KeyLoad], int]:
    """Returns records of each partition, the heaviest keys with their partition, and the number of
    keys."""
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    by_key = frame.groupBy("partition", "key").agg(
        F.count("*").alias("records"), F.sum(size).alias("bytes")
    )
    by_key = by_key.persist()
    try:
        rows = by_key.groupBy("partition").agg(F.sum("records"), F.count("key")).collect()
        heavy = by_key.orderBy(F.desc("records"), "partition", "key").limit(top).collect()
    finally:
        by_key.unpersist()
    loads = [
        KeyLoad(None if row.key is None else bytes(row.key), row.partition, row.records, row.bytes)
        for row in heavy
    ]
    return {row[0]: row[1] for row in rows}, loads, sum(row[2] for row in rows)


# --- the plan -----------------------------------------------------------------------------------
def report(
    topic: str,
    records: Mapping[int, int],
    heavy: Sequence[KeyLoad],
    keys: int,
    partitions: int,
    separator: str = SEPARATOR,
) -> HotKeys:
    """Returns the report on counts, with its plan."""
    loads = {
        number: records.get(number, 0) for number in range(max([partitions - 1, *records]) + 1)
    }
    total = sum(loads.values())
    placed = plan_suffixes(loads, heavy, separator)
    plan = [
        KeyPlan(
            key=text(load.key),
            records=load.records,
            share=round(load.records / total, 4),
            suffixes=[separator + suffix for suffix, _ in places],
            partitions=[number for _, number in places],
        )
        for load, places in placed
    ]
    planned = {number: round(load) for number, load in _moved(loads, placed).items()}
    return HotKeys(
        topic, total, keys, loads, skew(loads), list(heavy), plan, planned, skew(planned)
    )


def plan_suffixes(loads: Loads, heavy: Sequence[KeyLoad], separator: str) -> list[Placed]:
    """Chooses which keys to split, and where their parts go. The heaviest part in the fullest
    partition gets one suffix more, as long as that evens the partitions out."""
    placed: dict[int, list[Place]] = {}
    able = [load.key is not None for load in heavy]
    while skew(now := _moved(loads, _all(heavy, placed))) > SKEW_FINE:
        fullest = max(now, key=lambda number: (now[number], -number))
        parts = {
            at: load.records / len(placed.get(at, [()]))
            for at, load in enumerate(heavy)
            if able[at] and fullest in _homes(load, placed.get(at))
        }
        if not parts:
            break
        at = max(parts, key=lambda number: (parts[number], -number))
        one_more = len(placed.get(at, [()])) + 1
        others = {number: places for number, places in placed.items() if number != at}
        rest = _moved(loads, _all(heavy, others))
        rest[heavy[at].partition] -= heavy[at].records
        places = spread(heavy[at].key or b"", rest, one_more, separator)
        tried = _moved(loads, _all(heavy, {**others, at: places}))
        able[at] = len(places) == one_more and _is_better(tried, now)
        if able[at]:
            placed[at] = places
    return _all(heavy, dict(sorted(placed.items())))


def spread(key: bytes, loads: Loads, parts: int, separator: str) -> list[Place]:
    """Returns so many suffixes that lead to different partitions, the emptiest first; fewer where
    no more are found."""
    found: dict[int, str] = {}
    for number in range(TRIES_MAX):
        suffix = str(number)
        home = partition_of(key + (separator + suffix).encode(), len(loads))
        found.setdefault(home, suffix)
    best = sorted(found, key=lambda number: (loads[number], number))[:parts]
    return [(found[number], number) for number in best]


def skew(loads: Mapping[int, float]) -> float:
    """Returns the fullest over the mean: 1.0 is even."""
    total = sum(loads.values())
    return round(max(loads.values()) * len(loads) / total, 3) if total else 1.0


def text(key: bytes | None) -> str:
    return "" if key is None else key.decode("utf-8", "backslashreplace")


def _all(heavy: Sequence[KeyLoad], placed: Mapping[int, list[Place]]) -> list[Placed]:
    return [(heavy[at], places) for at, places in placed.items()]


def _homes(load: KeyLoad, places: list[Place] | None) -> list[int]:
    return [load.partition] if places is None else [number for _, number in places]


def _moved(loads: Loads, placed: Sequence[Placed]) -> dict[int, float]:
    """Returns the records of partitions with these keys split."""
    moved: dict[int, float] = dict(loads)
    for load, places in placed:
        moved[load.partition] -= load.records
        for _, number in places:
            moved[number] += load.records / len(places)
    return moved


def _is_better(tried: Loads, now: Loads) -> bool:
    """Returns whether it is more even altogether, and the fullest no fuller. Parts only ever
    shrink, so this ends."""
    is_evener = sum(load * load for load in tried.values()) < sum(x * x for x in now.values())
    return is_evener and max(tried.values()) <= max(now.values())
