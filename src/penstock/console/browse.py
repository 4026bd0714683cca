"""Looks for records in a topic: from a place on, by key, by a field of JSON, by a condition in SQL.

Each look is bounded, in records, bytes and time; where it ends, the next one goes on. It belongs to
no group and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from penstock.client.admin.admin import found as find_topic
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.records import Chunk, Record
from penstock.client.consumer.span_scan import scanning
from penstock.console.link import ANSWER_SECONDS
from penstock.core import errors as er

RECORDS_SHOWN: Final = 50
PARTITIONS_MAX: Final = 64
"""Partitions that one look reads; with more, one is named."""
SCAN_RECORDS_MAX: Final = 500_000
SCAN_SECONDS: Final = 4.0
"""After so many records, or so long, a search tells how far it is."""
FETCH_BYTES: Final = 4 << 20
JSON_BYTES_MAX: Final = 1 << 20
"""Values above this are not searched for fields."""
CONDITION_SECONDS: Final = 4.0

Positions = Mapping[int, int]
Keep = Callable[[list[Chunk]], list[Record]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """A search. `start`: where each partition begins; None: the newest. `at`: where an earlier look
    ended, by partition. `key`: exactly this; `path` and `equals`: of a JSON value that field, as
    its text; `where`: a condition in SQL."""

    topic: str
    partition: int | None = None
    start: Offset | None = None
    at: Positions | None = None
    key: bytes | None = None
    path: str = ""
    equals: str = ""
    where: str = ""

    @property
    def has_filter(self) -> bool:
        return self.key is not None or bool(self.path) or bool(self.where)


@dataclass(slots=True)
class RecordsFound:
    """The result. `looked_at`: offsets passed; `left`: offsets behind that; `next`: where the next
    look begins; None: nothing is left. `partitions`: how many the topic has."""

    records: list[Record] = field(default_factory=list)
    looked_at: int = 0
    left: int = 0
    next: dict[int, int] | None = None
    partitions: int = 0
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)


def browse(client: Client, query: RecordQuery) -> RecordsFound:
    """Looks. Raises `UnknownTopicError`, `OffsetOutOfRangeError`, `ConfigError` for a wrong
    condition, ImportError for SQL without DuckDB."""
    keep = _keeper(query)
    with client.consumer(
        isolation="read_committed", on_out_of_range="earliest", prefetch_bytes=FETCH_BYTES,
        timeout=ANSWER_SECONDS,
    ) as consumer:  # fmt: skip
        count = _assign(consumer, client, query)
        found = RecordsFound(partitions=count)
        found.spans = _spans(consumer, query)
        places = {number: span[0] for number, span in found.spans.items()}
        _read(consumer, query, keep, found, places)
    left = {number: max(0, end - places[number]) for number, (_, end) in found.spans.items()}
    found.left = sum(left.values())
    found.looked_at = sum(places[number] - start for number, (start, _) in found.spans.items())
    found.next = places if found.left else None
    return found


def one_record(client: Client, topic: str, partition: int, offset: int) -> tuple[Record, int]:
    """The record at an offset, or the next one behind it, and the offset behind that. Raises
    `OffsetOutOfRangeError`."""
    query = RecordQuery(topic=topic, partition=partition, start=Offset.exact(offset))
    with client.consumer(
        isolation="read_uncommitted", prefetch_bytes=FETCH_BYTES, timeout=ANSWER_SECONDS
    ) as consumer:
        _assign(consumer, client, query)
        start, end = _bounds(consumer, topic, partition)
        if not start <= offset < end:
            raise er.OffsetOutOfRangeError(
                f"{topic}-{partition} has offsets {start} to {end - 1}, not {offset}"
                if end > start
                else f"{topic}-{partition} has no records"
            )
        span = {(topic, partition): (offset, end)}
        for chunks in scanning(consumer, span, ANSWER_SECONDS, 1):
            for chunk in chunks:
                for record in chunk.records():
                    return record, end
    raise er.OffsetOutOfRangeError(f"{topic}-{partition} has no record from {offset} on")


# --- where ----------------------------------------------------------------------------------------
def _assign(consumer: Consumer, client: Client, query: RecordQuery) -> int:
    """Assigns the partitions that are meant; how many the topic has."""
    with client.admin(timeout=ANSWER_SECONDS) as admin:
        count = len(find_topic(admin, query.topic).pages)
    if query.partition is not None:
        numbers = [query.partition]
        if query.partition >= count:
            raise er.UnknownTopicError(
                f"topic {query.topic!r} has partitions 0 to {count - 1}, not {query.partition}"
            )
    else:
        numbers = list(query.at) if query.at else list(range(min(count, PARTITIONS_MAX)))
        numbers = [number for number in numbers if number < count][:PARTITIONS_MAX]
    consumer.assign((query.topic, number) for number in numbers)
    return count


def _spans(consumer: Consumer, query: RecordQuery) -> dict[int, tuple[int, int]]:
    """By partition where to begin and end."""
    spans = {}
    names = consumer.assignment()
    quota = max(1, RECORDS_SHOWN // max(1, len(names)))
    for topic, number in names:
        start, end = _bounds(consumer, topic, number)
        if query.at is not None:
            begin = query.at.get(number, end)
        elif query.start is not None:
            consumer.seek(topic, number, query.start)
            begin = consumer.position(topic, number)
        else:
            begin = start if query.has_filter else end - quota
        spans[number] = min(max(begin, start), end), end
    return spans


def _bounds(consumer: Consumer, topic: str, number: int) -> tuple[int, int]:
    name = (topic, number)
    return consumer.beginning_offsets()[name], consumer.end_offsets()[name]


# --- reading --------------------------------------------------------------------------------------
def _read(
    consumer: Consumer, query: RecordQuery, keep: Keep, found: RecordsFound, places: dict[int, int]
) -> None:
    """Reads until the page is full, or a bound is reached; `places` moves on with it."""
    wanted = {(query.topic, number): span for number, span in found.spans.items()}
    quota = RECORDS_SHOWN
    if not query.has_filter:
        quota = max(1, RECORDS_SHOWN // max(1, len(wanted)))
        wanted = {name: (start, min(end, start + quota)) for name, (start, end) in wanted.items()}
    until = time.monotonic() + SCAN_SECONDS
    looked = 0
    for chunks in scanning(consumer, wanted, ANSWER_SECONDS):
        kept, room = keep(chunks), RECORDS_SHOWN - len(found.records)
        found.records += kept[:room]
        for chunk in chunks:
            places[chunk.partition] = max(places[chunk.partition], chunk.next_offset)
        for record in reversed(kept[room:]):
            places[record.partition] = record.offset
        looked += sum(map(len, chunks))
        is_full = len(found.records) >= RECORDS_SHOWN
        if is_full or looked >= SCAN_RECORDS_MAX or time.monotonic() >= until:
            return
    for (_, number), (_, end) in wanted.items():
        places[number] = max(places[number], end)


# --- filters --------------------------------------------------------------------------------------
def _keeper(query: RecordQuery) -> Keep:
    def keep(chunks: list[Chunk]) -> list[Record]:
        return [
            record
            for chunk in chunks
            for record in _with_key(chunk, query.key)
            if not query.path or field_is(record.value, query.path, query.equals)
        ]

    if not query.where:
        return keep
    from penstock.console.record_condition import RecordCondition

    condition = RecordCondition(query.where, CONDITION_SECONDS)

    def keep_by_condition(chunks: list[Chunk]) -> list[Record]:
        records = keep(chunks)
        return [records[row] for row in sorted(condition.matching(records))]

    return keep_by_condition


def _with_key(chunk: Chunk, wanted: bytes | None) -> Iterator[Record]:
    if wanted is None:
        yield from chunk.records()
        return
    for row, key in enumerate(chunk.keys.to_list(), chunk.start):
        if key == wanted:
            yield from chunk.cut(row, row + 1).records()


def field_is(value: bytes | None, path: str, equals: str) -> bool:
    """Whether that field of a JSON value has this text; "*" means any. `a.b.0` is the first item of
    `b` in `a`."""
    if value is None or len(value) > JSON_BYTES_MAX:
        return False
    *_, last = path.split(".")
    if not last.isdigit() and last.isascii() and last.encode() not in value:
        return False
    try:
        found: Any = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    for step in path.split("."):
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 9:
            if int(step) >= len(found):
                return False
            found = found[int(step)]
        else:
            return False
    if equals == "*":
        return True
    return (
        found == equals if isinstance(found, str) else msgspec.json.encode(found) == equals.encode()
    )
