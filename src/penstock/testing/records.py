"""Sends and reads records in one line each; every wait is bounded.

Each function takes its target as a `Broker`, a `Cluster`, a `Client` or a URL. It compares expected
and received records by rules that hold for any number of partitions. Records of one key keep their
order, and so do all in a topic of one partition; beyond that there is no order to expect.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.client.client import Client, connect
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.records import Record
from penstock.client.producer.delivery import Receipt
from penstock.testing.served import Served

Target = Served | Client | str
KeyedValue = tuple[bytes | None, bytes | None]
Wanted = bytes | None | KeyedValue
"""A value, or a key with a value. None is a tombstone."""

TURN: Final = 0.1
"""Seconds of one poll: the end of a log may be a transaction's, which brings no record."""
SHOWN: Final = 10
"""Records that a failure names of each kind."""


def produce(
    target: Target,
    topic: str,
    records: Iterable[Wanted],
    *,
    partition: int | None = None,
    timeout: float = 10.0,
) -> list[Receipt]:
    """Sends these values, or (key, value) pairs, and waits for all of them; returns their receipts
    in order.

    Raises what failed, and `PenstockTimeout` after `timeout` seconds.
    """
    with client_of(target) as client, client.producer(acks="all") as producer:
        deliveries = []
        for record in records:
            key, value = _split(record)
            deliveries.append(producer.send(topic, value, key=key, partition=partition))
        deadline = time.monotonic() + timeout
        producer.flush(timeout)
        left = max(0.0, deadline - time.monotonic())
        return [delivery.result(left) for delivery in deliveries]


def drain(
    target: Target,
    topic: str,
    *,
    count: int | None = None,
    start: Offset | str | int = "earliest",
    timeout: float = 10.0,
) -> list[Record]:
    """Returns the records of a topic: all that are there now, or with `count` at least so many,
    waited for.

    Raises AssertionError that says how many came when there are fewer after `timeout` seconds.
    """
    found, complaint = _gathered(target, topic, count, start, timeout)
    if complaint:
        raise AssertionError(complaint)
    return found


def _gathered(
    target: Target, topic: str, count: int | None, start: Offset | str | int, timeout: float
) -> tuple[list[Record], str]:
    """Returns the records that came, and where they are too few, how far it went."""
    with client_of(target) as client, client.consumer(topic, start=start) as consumer:
        ends = consumer.end_offsets()
        found: list[Record] = []
        deadline = time.monotonic() + timeout
        while True:
            at_end = all(consumer.position(*part) >= end for part, end in ends.items())
            if at_end and (count is None or len(found) >= count):
                return found, ""
            left = deadline - time.monotonic()
            if left <= 0:
                wanted = f"{count} records" if count is not None else f"all up to {ends}"
                return found, (
                    f"topic {topic!r} gave {len(found)} records within {timeout:g} s, not {wanted}"
                )
            found.extend(consumer.poll(timeout=min(left, TURN)))


def assert_records(
    target: Target, topic: str, expected: Sequence[Wanted], *, timeout: float = 10.0
) -> list[Record]:
    """Checks that these records are in the topic, each once, in the order that Penstock promises,
    and no other.

    Waits up to `timeout` seconds for as many. Where keys do not matter, values alone will do.
    Returns the records.
    """
    came, too_few = _gathered(target, topic, len(expected), "earliest", timeout)
    keyed = any(isinstance(each, tuple) for each in expected)
    wanted = [_split(each) for each in expected]
    found = [(record.key if keyed else None, record.value) for record in came]
    complaint = _difference(wanted, found)
    if not complaint and not too_few:
        partitions = {record.partition for record in came}
        complaint = _disorder(wanted, found, whole=len(partitions) <= 1)
    if too_few:
        raise AssertionError(f"{too_few}: {complaint}" if complaint else too_few)
    if complaint:
        raise AssertionError(f"topic {topic!r}: {complaint}")
    return came


def _difference(wanted: list[KeyedValue], found: list[KeyedValue]) -> str:
    missing, surplus = Counter(wanted), Counter(found)
    missing.subtract(found)
    surplus.subtract(wanted)
    parts = []
    for word, counts in (("missing", +missing), ("not expected", +surplus)):
        if counts:
            parts.append(f"{counts.total()} {word}: {_shown(list(counts.elements()))}")
    return "; ".join(parts)


def _disorder(wanted: list[KeyedValue], found: list[KeyedValue], *, whole: bool) -> str:
    """Returns the first place where the order is another one: of all, or of each key."""
    for key in [None] if whole else dict.fromkeys(key for key, _ in wanted if key is not None):
        expected = [each for each in wanted if whole or each[0] == key]
        came = [each for each in found if whole or each[0] == key]
        for place, (one, other) in enumerate(zip(expected, came, strict=True)):
            if one != other:
                where = f"record {place}" if whole else f"record {place} of key {key!r}"
                return f"{where} is {_shown([other])}, expected was {_shown([one])}"
    return ""


def _shown(records: Sequence[KeyedValue]) -> str:
    texts = [repr(value) if key is None else f"{key!r}: {value!r}" for key, value in records]
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _split(record: Wanted) -> KeyedValue:
    return record if isinstance(record, tuple) else (None, record)


@contextmanager
def client_of(target: Target) -> Iterator[Client]:
    """Yields a client of it; one that was given is left open."""
    if isinstance(target, Client):
        yield target
        return
    with target.connect() if isinstance(target, Served) else connect(target) as client:
        yield client
