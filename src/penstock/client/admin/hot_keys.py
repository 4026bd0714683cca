"""Finds the keys that make partitions hot, in the newest records of each.

Reads a bounded sample when somebody asks, and counts it with a bounded sketch: producers, writers
and readers pay nothing for it. Owns the sketch and the advice, and changes nothing.

The sketch is Space-Saving's (Metwally, Agrawal, El Abbadi 2005), fed with a batch's counts at a
time. Of n records and c counters, a key that has more than n / c is in it, and no count is more
than n / c above the truth; each count has its own bound of that error. It is cut down to c keys
only once it holds `ROOM` times as many: until then it is exact, and counted in C alone.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.client.admin.trim import chosen
from penstock.client.remote.address import Place
from penstock.client.validation import check_integer, check_range
from penstock.core import errors as er
from penstock.ipc import messages as ms

if TYPE_CHECKING:  # it needs numpy, which administration does without
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.partition_cursor import TopicPartition
    from penstock.client.consumer.span_scan import Span

COUNTERS: Final = 1000
"""Keys that a sketch counts: keys of over a thousandth of a partition's records are found."""
ROOM: Final = 8
"""Times its counters: keys that a sketch holds before it is cut down."""
SAMPLE: Final = 5_000
"""Newest offsets of a partition whose keys are counted, unless told otherwise."""
SAMPLE_MAX: Final = 1_000_000
SAMPLE_ALL_MAX: Final = 5_000_000
"""Offsets of all partitions of a call together: of many partitions fewer are read of each."""
SHOWN: Final = 5
SHOWN_MAX: Final = COUNTERS
BYTES_AT_ONCE: Final = 4 << 20
HOT_SHARE: Final = 0.1
"""Of a partition's records: a key from which on a busy partition has a hot key."""
HOT_LOAD: Final = 1.5
"""Times the mean of the topic's partitions: a partition that counts as busy."""


class KeySketch:
    """Counts the most frequent keys of a stream, with `counters` counters."""

    def __init__(self, counters: int = COUNTERS) -> None:
        self._size = counters
        self._counts: Counter[bytes | None] = Counter()
        self._errors: dict[bytes | None, int] = {}
        """Of keys that came after the first cut."""
        self._floor = 0
        """No key without a counter has come more often."""
        self.total = 0

    def add(self, keys: Sequence[bytes | None]) -> None:
        """Counts a batch of keys; None is a record without one."""
        self.total += len(keys)
        counts, floor = self._counts, self._floor
        if not floor:
            counts.update(keys)
        else:
            for key, count in Counter(keys).items():
                if key in counts:
                    counts[key] += count
                else:
                    counts[key] = floor + count
                    self._errors[key] = floor
        if len(counts) > self._size * ROOM:
            self._cut()

    def _cut(self) -> None:
        """Keeps the most frequent keys."""
        kept = self._counts.most_common(self._size + 1)
        self._floor = kept.pop()[1]
        self._counts = Counter(dict(kept))
        self._errors = {key: n for key, n in self._errors.items() if key in self._counts}

    def top(self, count: int) -> list[tuple[bytes | None, int, int]]:
        """The most frequent keys: key, count, and by how much the count may be too high."""
        found = self._counts.most_common(min(count, self._size))
        return [(key, seen, self._errors.get(key, 0)) for key, seen in found]


@dataclass(frozen=True, slots=True)
class HotKey:
    """A frequent key. `key` None: records without one. `records` of the sample, at most `error` too
    many; `share` of the partition's records."""

    key: bytes | None
    records: int
    error: int
    share: float


@dataclass(frozen=True, slots=True)
class HotPartition:
    """A partition by its newest records. `rate`: records a second, since the batch of the first of
    the `sampled` ones; `load`: its part of the topic's. `advice` is empty where nothing is hot."""

    topic: str
    partition: int
    sampled: int
    rate: float
    load: float
    keys: list[HotKey]
    advice: str = ""


def look(
    socket: Place,
    topic: ms.TopicInfo,
    partitions: int | Sequence[int] | None,
    *,
    keys: int,
    sample: int,
    client_id: str,
    timeout: float,
) -> list[HotPartition]:
    """Reads the sample by a consumer of its own. Raises what reading raises."""
    from penstock.client.consumer.consumer import Consumer  # it needs numpy

    for name, value, most in (("keys", keys, SHOWN_MAX), ("sample", sample, SAMPLE_MAX)):
        check_integer(name, value)
        check_range(name, value, 1, most)
    numbers = chosen(topic, partitions)
    each = max(1, min(sample, SAMPLE_ALL_MAX // len(numbers)))
    with Consumer(
        socket, (topic.name,), client_id=client_id, on_out_of_range="earliest",
        prefetch_bytes=BYTES_AT_ONCE, timeout=timeout,
    ) as consumer:  # fmt: skip
        starts, ends = consumer.beginning_offsets(), consumer.end_offsets()
        now, found = time.time(), []
        for number in numbers:
            place = (topic.name, number)
            span = max(starts[place], ends[place] - each), ends[place]
            found.append(_read(consumer, place, span, keys, timeout, now))
    rates = sum(one.rate for one in found)
    loads = [one.rate / rates if rates else 0.0 for one in found]
    told = [replace(one, load=load) for one, load in zip(found, loads, strict=True)]
    return [replace(one, advice=advice(one, len(numbers), len(topic.pages))) for one in told]


def _read(
    consumer: Consumer, place: TopicPartition, span: Span, keys: int, timeout: float, now: float
) -> HotPartition:
    from penstock.client.consumer.span_scan import scanning

    sketch, first, since = KeySketch(), span[1], math.inf
    try:
        for chunks in scanning(consumer, {place: span}, timeout, span[1] - span[0]):
            for chunk in chunks:
                sketch.add(chunk.keys.to_list())
                # By whole batches, whose records are mostly of one time.
                first = min(first, chunk.columns.head.base_offset)
                since = min(since, int(chunk.columns.timestamps.min()))
    except er.OffsetOutOfRangeError:
        pass  # deleted just now: what was read is shown
    seconds = max(now - since / 1e6, 1e-3)
    total = sketch.total
    return HotPartition(
        *place, total, (span[1] - first) / seconds if total else 0.0, 0.0,
        [HotKey(key, count, error, count / total) for key, count, error in sketch.top(keys)],
    )  # fmt: skip


def advice(one: HotPartition, looked_at: int, partitions: int) -> str:
    """A sentence where one key makes a partition busier than the others, else nothing."""
    named = [key for key in one.keys if key.key is not None]
    if looked_at < 2 or not named or one.load * looked_at < HOT_LOAD:
        return ""
    hottest = named[0]
    if hottest.share < HOT_SHARE:
        return ""
    part = hottest.share * one.load
    parts = min(partitions, max(2, math.ceil(part * looked_at)))
    left = one.load - part + part / parts
    name = text_of(hottest.key)
    return (
        f"key {name!r} is {hottest.share:.0%} of {one.topic}-{one.partition}, which takes "
        f"{one.load:.0%} of the topic: spread={{{name!r}: {parts}}} on its producers, or suffixes "
        f"of the key ({name + '#0'!r} to {name + '#' + str(parts - 1)!r}), leave it about "
        f"{left:.0%}; its records are in order within each part alone then"
    )


def text_of(key: bytes | None) -> str:
    """A key as it is shown."""
    return "" if key is None else key.decode("utf-8", "backslashreplace")


def as_fields(one: HotPartition) -> Mapping[str, object]:
    """For JSON: keys as text, None for records without one."""
    keys = [
        {"key": None if key.key is None else text_of(key.key), "records": key.records,
         "error": key.error, "share": key.share}
        for key in one.keys
    ]  # fmt: skip
    return {
        "partition": one.partition, "sampled": one.sampled, "rate": one.rate, "load": one.load,
        "keys": keys, "advice": one.advice,
    }  # fmt: skip
