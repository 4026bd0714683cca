"""What producers and consumers wrote down while they ran, and what must follow from it.

A ledger is the JSON lines of one process, read from its pipe, so it outlives a kill -9. A line is
written before what it announces (`try`) and after what it states (`ack`, `saw`); a torn last line
counts as not written. Owns the judgement; never talks to a node.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from crash.record_contents import Cargo, sender_of

PROBLEMS_MAX = 20
"""Broken promises that are spelled out; a broken log breaks many at once."""


class Stored(NamedTuple):
    """One record as it stands in a log."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class StoredBatch(NamedTuple):
    """What the log says of a batch's sender."""

    base_offset: int
    next_offset: int
    producer_id: int
    epoch: int
    base_sequence: int


@dataclass(slots=True)
class StoredLog:
    """One partition as the audit read it."""

    topic: str
    partition: int
    batches: list[StoredBatch] = field(default_factory=list)
    records: list[Stored] = field(default_factory=list)

    @property
    def name(self) -> tuple[str, int]:
        return self.topic, self.partition


@dataclass(slots=True)
class ProducerLedger:
    """What one producer process tried and what it was promised."""

    cargo: Cargo
    tried: int = 0
    """Records below this number were, or may have been, handed to `send`."""
    acked: list[tuple[int, int, int | None]] = field(default_factory=list)
    """(number, partition, offset); no offset: accepted into shared memory only."""
    finished: bool = False
    """It flushed all it had and left by itself."""
    errors: list[str] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        entry = json.loads(line)
        if "try" in entry:
            self.tried = entry["try"]
        elif "ack" in entry:
            self.acked.extend(tuple(each) for each in entry["ack"])
        elif "done" in entry:
            self.finished = True
        elif "error" in entry:
            self.errors.append(entry["error"])
        else:
            raise AssertionError(f"no line of a producer ledger: {line!r}")


@dataclass(slots=True)
class ConsumerLedger:
    """What one consumer process saw: runs of offsets with a checksum over their records."""

    who: str
    starts: Mapping[tuple[str, int], int]
    saw: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """(topic, partition, first offset, offset behind the last, checksum)"""
    finished: bool = False
    errors: list[str] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        entry = json.loads(line)
        if "saw" in entry:
            self.saw.append(tuple(entry["saw"]))
        elif "done" in entry:
            self.finished = True
        elif "error" in entry:
            self.errors.append(entry["error"])
        else:
            raise AssertionError(f"no line of a consumer ledger: {line!r}")

    def positions(self) -> dict[tuple[str, int], int]:
        """Where it stands by its own account."""
        found = dict(self.starts)
        for topic, partition, _, following, _ in self.saw:
            found[topic, partition] = following
        return found


def checksum(key: bytes | None, value: bytes | None, before: int = 0) -> int:
    """Over a record's bytes, chained from record to record."""
    mark = b"%d %d " % (-1 if key is None else len(key), -1 if value is None else len(value))
    return crc32(value or b"", crc32(key or b"", crc32(mark, before)))


class Verdict:
    """Broken promises, and how many records stood up to the check."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.records = 0
        self.acknowledged = 0
        self.consumed = 0

    def say(self, problem: str) -> None:
        self.problems.append(problem)

    def __str__(self) -> str:
        shown = self.problems[:PROBLEMS_MAX]
        more = len(self.problems) - len(shown)
        return "\n".join(shown) + (f"\n... and {more} more" if more else "")


def judge(
    logs: Sequence[StoredLog],
    producers: Sequence[ProducerLedger],
    consumers: Sequence[ConsumerLedger],
) -> Verdict:
    """Everything that logs and ledgers owe each other (invariants 2, 3, 4, 5)."""
    verdict = Verdict()
    by_name = {log.name: log for log in logs}
    for log in logs:
        _judge_batches(log, verdict)
    found = _judge_records(logs, {ledger.cargo.who: ledger for ledger in producers}, verdict)
    for ledger in producers:
        _judge_producer(ledger, by_name, found[ledger.cargo.who], verdict)
    for consumer in consumers:
        _judge_consumer(consumer, by_name, verdict)
    return verdict


def _judge_batches(log: StoredLog, verdict: Verdict) -> None:
    """Offsets contiguous from 0; each (producer id, epoch, sequence) once and in order."""
    expected = 0
    next_of: dict[int, tuple[int, int]] = {}
    for batch in log.batches:
        if batch.base_offset != expected:
            verdict.say(
                f"{log.name}: offset {expected} is followed by a batch at {batch.base_offset}"
            )
        expected = batch.next_offset
        epoch, sequence = next_of.get(batch.producer_id, (batch.epoch, 0))
        if batch.epoch > epoch:
            epoch, sequence = batch.epoch, 0
        if (batch.epoch, batch.base_sequence) != (epoch, sequence):
            verdict.say(
                f"{log.name} at {batch.base_offset}: producer {batch.producer_id} has epoch "
                f"{batch.epoch} sequence {batch.base_sequence} where {epoch}, {sequence} is due"
            )
        span = batch.next_offset - batch.base_offset
        next_of[batch.producer_id] = (batch.epoch, batch.base_sequence + span)
    if expected != len(log.records):
        verdict.say(f"{log.name}: {expected} offsets hold {len(log.records)} records")


Place = tuple[str, int, int]


def _judge_records(
    logs: Sequence[StoredLog], ledgers: Mapping[str, ProducerLedger], verdict: Verdict
) -> dict[str, dict[int, Place]]:
    """Each record is one that its sender sent, byte for byte, and there once. Where each one is."""
    found: dict[str, dict[int, Place]] = defaultdict(dict)
    for log in logs:
        for offset, stored in enumerate(log.records):
            place = (log.topic, log.partition, offset)
            try:
                who, number = sender_of(stored.value)
                ledger = ledgers[who]
            except (ValueError, KeyError):
                verdict.say(f"{place}: nobody sent {stored!r}"[:300])
                continue
            sent = ledger.cargo.record(number)
            if sent != (log.topic, log.partition, stored.key, stored.value, stored.headers):
                verdict.say(f"{place}: {stored!r} was sent as {sent!r}"[:600])
            if number >= ledger.tried:
                verdict.say(
                    f"{place}: {who} sent number {number} but announced {ledger.tried} only"
                )
            if number in found[who]:
                verdict.say(f"{who} number {number} stands at {found[who][number]} and {place}")
            found[who][number] = place
            verdict.records += 1
    return found


def _judge_producer(
    ledger: ProducerLedger,
    logs: Mapping[tuple[str, int], StoredLog],
    found: dict[int, Place],
    verdict: Verdict,
) -> None:
    who = ledger.cargo.who
    for error in ledger.errors:
        verdict.say(f"{who} failed: {error}")
    for number, partition, offset in ledger.acked:
        place = found.get(number)
        if place is None:
            verdict.say(
                f"{who} number {number} was acknowledged at {partition}:{offset} and is lost"
            )
        elif offset is not None and place[1:] != (partition, offset):
            verdict.say(
                f"{who} number {number} was acknowledged at {partition}:{offset}, is at {place}"
            )
    verdict.acknowledged += len(ledger.acked)
    # Of what went to one partition, a beginning is there: no hole, and in the order it was sent.
    highest: dict[tuple[str, int], tuple[int, int]] = {}
    missing: dict[tuple[str, int], int] = {}
    for number in range(ledger.tried):
        sent = ledger.cargo.record(number)
        name = (sent.topic, sent.partition)
        place = found.get(number)
        if place is None:
            missing.setdefault(name, number)
            continue
        if name in missing:
            verdict.say(
                f"{who}: number {number} is in {name} but {missing[name]}, sent before, is not"
            )
        before = highest.get(name)
        if before is not None and before[1] > place[2]:
            verdict.say(f"{who}: {name} has number {before[0]} behind {number} at {place[2]}")
        highest[name] = (number, place[2])
    if ledger.finished and missing:
        verdict.say(f"{who} left in good order, but of what it sent is missing {missing}")
    assert len(logs) >= len(highest)


def _judge_consumer(
    ledger: ConsumerLedger, logs: Mapping[tuple[str, int], StoredLog], verdict: Verdict
) -> None:
    """Every offset once, in order, without gaps, and the records that stand there."""
    at = dict(ledger.starts)
    for error in ledger.errors:
        verdict.say(f"{ledger.who} failed: {error}")
    for topic, partition, first, following, claimed in ledger.saw:
        name = (topic, partition)
        if first != at[name]:
            verdict.say(f"{ledger.who}: {name} went from offset {at[name]} to {first}")
        at[name] = following
        records = logs[name].records
        if following > len(records):
            verdict.say(f"{ledger.who}: {name} saw up to {following}, the log has {len(records)}")
            continue
        actual = 0
        for stored in records[first:following]:
            actual = checksum(stored.key, stored.value, actual)
        if actual != claimed:
            verdict.say(f"{ledger.who}: {name} {first} to {following} read otherwise than now")
        verdict.consumed += following - first
    if ledger.finished:
        for name, position in at.items():
            end = len(logs[name].records)
            if position != end:
                verdict.say(f"{ledger.who}: {name} ended at {position}, the log at {end}")


def whole_lines(buffer: bytearray) -> Iterator[bytes]:
    """Take the finished lines out of a buffer."""
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    yield from lines
