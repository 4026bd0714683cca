"""The roles of the producer and consumer processes of a throughput run.

Both run two phases of the same code: a warm-up, and the one that counts. A phase ends with one
tombstone from every producer in every partition, sent behind its records. So consumers know when
they have everything without counting on a total.

The loops are written as a user would write them; other work (stamps, checks) is done in bulk.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, Literal

import numpy as np

from penstock.bench import payload
from penstock.bench.crew import Station
from penstock.bench.door import Door
from penstock.bench.ledger import Book, Ledger, Stamps, stamps_in_place, stamps_of
from penstock.bench.options import ThroughputOptions
from penstock.bench.usage import Usage
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.consumer.partition_cursor import Isolation
from penstock.client.consumer.records import Record
from penstock.client.options import ProducerOptions
from penstock.client.producer.delivery import BatchDelivery
from penstock.client.producer.producer import Producer
from penstock.client.transactions.producer import TransactionalProducer
from penstock.core.columns import BinaryColumn

Reader = Consumer | GroupConsumer

CHECK_EVERY: Final = 10_000
CHECK_BYTES: Final = 32 << 20
"""Of values that a consumer keeps until they are checked: more would be fresh memory each time."""
POLL_TIMEOUT: Final = 1.0
SEND_TIMEOUT: Final = 120.0
"""Seconds that records may be unacknowledged before a producer of a run fails."""


@dataclass(frozen=True, slots=True)
class RoleTask:
    """The member of a run that a process is."""

    options: ThroughputOptions
    door: Door
    topic: str
    index: int
    start: int | Literal["earliest"] = "earliest"
    """The offset where a consumer begins."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Clock readings are CLOCK_MONOTONIC in nanoseconds, the same for all processes."""

    begun: int
    sent: int
    acknowledged: int
    usage: Usage
    durability: str
    metrics: dict[str, int]


@dataclass(frozen=True, slots=True)
class Consumed:
    """`ended`: when the last record had been received and checked."""

    ended: int
    usage: Usage
    book: Book
    metrics: dict[str, int]


# --- producing ----------------------------------------------------------------------------------
def produce(task: RoleTask, station: Station) -> None:
    """Runs the role of a producer: reports when attached and when warm; then takes one order and
    returns one `Produced`."""
    options = task.options
    send = sender(options, task.index)
    with task.door.connect() as client, _producer(client, task) as producer:
        station.report()
        for records in (options.warmup_records, options.records_of(task.index)):
            station.await_order()
            gc.collect()
            gc.freeze()
            before = Usage.now()
            begun = time.monotonic_ns()
            send(producer, task.topic, records)
            with _transaction(producer):
                last = send_ends(producer, task.topic, options.partitions)
            sent = time.monotonic_ns()
            producer.flush(SEND_TIMEOUT)
            acknowledged = time.monotonic_ns()
            durability = last.result(SEND_TIMEOUT)[0].durability
            station.report(
                Produced(begun, sent, acknowledged, Usage.now().since(before), durability,
                         producer.metrics())
            )  # fmt: skip
        station.await_order()  # stay attached until the run is over


def _producer(client: Client, task: RoleTask) -> Producer:
    options = task.options
    given: ProducerOptions = {
        "linger": options.linger,
        "batch_bytes": options.batch_bytes,
        "compression": options.codec,
        "acks": options.acks,
        "block_timeout": SEND_TIMEOUT,
        "delivery_timeout": SEND_TIMEOUT,
    }
    if options.transaction_records:
        return client.producer(transactional_id=f"{task.topic}-{task.index}", **given)
    return client.producer(**given)


def _transaction(producer: Producer) -> AbstractContextManager[object]:
    if isinstance(producer, TransactionalProducer):
        return producer.transaction()
    return nullcontext()


def sender(options: ThroughputOptions, index: int) -> Callable[[Producer, str, int], None]:
    """Returns a function that sends so many records to a topic, all of them prepared."""
    pool = payload.make_pool(index, options.pool_values, options.size)
    keys = payload.make_keys(options.keys)
    if options.transaction_records:
        return partial(send_transactions, pool=pool, each=options.transaction_records)
    if options.api == "arrow":
        from penstock.bench import tables

        prepared = tables.tables_of(pool, keys, options.list_length)
        return partial(tables.send_tables, tables=prepared, keyed=bool(keys))
    if options.api == "batch":
        return partial(send_lists, pool=pool, keys=keys, length=options.list_length)
    return partial(send_each, pool=pool, keys=keys)


def send_each(
    producer: Producer, topic: str, records: int, *, pool: list[bytes], keys: list[bytes]
) -> None:
    """Sends with one `send` a record."""
    send = producer.send
    if keys:
        for value, key in zip(payload.cycled(pool, records), cycle(keys), strict=False):
            send(topic, value, key=key)
    else:
        for value in payload.cycled(pool, records):
            send(topic, value)


def send_transactions(
    producer: Producer, topic: str, records: int, *, pool: list[bytes], each: int
) -> None:
    """Sends with one `send` a record, `each` of them in a transaction."""
    send = producer.send
    values = payload.cycled(pool, records)
    for _ in range(0, records, each):
        with _transaction(producer):
            for value in islice(values, each):
                send(topic, value)


def send_lists(
    producer: Producer,
    topic: str,
    records: int,
    *,
    pool: list[bytes],
    keys: list[bytes],
    length: int,
) -> None:
    """Sends with one `send_batch` a list."""
    key_cycle = cycle(keys)
    for values in payload.lists_of(pool, length, records):
        if keys:
            producer.send_batch(topic, values, keys=list(islice(key_cycle, len(values))))
        else:
            producer.send_batch(topic, values)


def send_ends(producer: Producer, topic: str, partitions: int) -> BatchDelivery:
    """Sends a tombstone behind everything sent so far, in every partition."""
    for partition in range(partitions):
        last = producer.send_batch(topic, [None], partition=partition)
    return last


# --- consuming ----------------------------------------------------------------------------------
def consume(task: RoleTask, station: Station) -> None:
    """Runs the role of a consumer: reports when attached and when warm; then takes one order and
    returns one `Consumed`."""
    options = task.options
    partitions = options.partitions_of(task.index)
    ends = options.producers * len(partitions)
    warm = [options.warmup_records] * options.producers
    full = [options.records_of(producer) for producer in range(options.producers)]
    with task.door.connect() as client, _consumer(client, task, partitions) as consumer:
        station.report()
        for totals in (warm, full):
            ledger = Ledger(totals, options.pool_values)
            station.await_order()
            gc.collect()
            gc.freeze()
            before = Usage.now()
            # One that is behind finds the next phase right behind the ends of this one.
            behind = None if task.start == "earliest" else sum(totals) + ends
            if options.api == "arrow":
                from penstock.bench import tables

                tables.take_tables(consumer, ledger, ends, behind)
            elif options.api == "batch":
                take_columns(consumer, ledger, ends, behind)
            elif len(partitions) == 1:
                take_each(consumer, ledger, ends, partitions[0], check_every(options.size))
            else:
                take_each_of(consumer, ledger, ends, partitions, check_every(options.size))
            ended = time.monotonic_ns()
            used = Usage.now().since(before)
            station.report(Consumed(ended, used, ledger.close(), consumer.metrics()))
        station.await_order()


def _consumer(client: Client, task: RoleTask, partitions: list[int]) -> Reader:
    """Makes a consumer of the whole topic by a group, or of partitions of its own."""
    options = task.options
    isolation: Isolation = "read_committed" if options.transaction_records else "read_uncommitted"
    if options.guarantee != "none":
        return client.consumer(
            task.topic, group=task.topic, guarantee=options.guarantee, start=task.start,
            isolation=isolation,
        )  # fmt: skip
    consumer = client.consumer(start=task.start, isolation=isolation)
    consumer.assign((task.topic, partition) for partition in partitions)
    return consumer


def check_every(size: int) -> int:
    """Returns after how many records of this size their values are checked together."""
    return max(1, min(CHECK_EVERY, CHECK_BYTES // size))


def take_each(consumer: Reader, ledger: Ledger, ends: int, partition: int, every: int) -> None:
    """Takes one turn of a Python loop a record; `every` so many their values are checked."""
    records = iter(consumer)
    values: list[bytes] = []
    keep = values.append
    while ends:
        for record in islice(records, every):
            value = record.value
            if value is None:
                ends -= 1
                if not ends:
                    break
            else:
                keep(value)
        if values:
            ledger.add(partition, stamps_of(values))
            values.clear()
    _close(records)


def take_each_of(
    consumer: Reader, ledger: Ledger, ends: int, partitions: list[int], every: int
) -> None:
    """Does the same where records of several partitions come in turns."""
    records = iter(consumer)
    values: dict[int, list[bytes]] = {partition: [] for partition in partitions}
    keep = {partition: kept.append for partition, kept in values.items()}
    while ends:
        for record in islice(records, every):
            value = record.value
            if value is None:
                ends -= 1
                if not ends:
                    break
            else:
                keep[record.partition](value)
        for partition, kept in values.items():
            if kept:
                ledger.add(partition, stamps_of(kept))
                kept.clear()
    _close(records)


def _close(records: Iterator[Record]) -> None:
    close: Any = getattr(records, "close", None)
    if close is not None:
        close()


def take_columns(consumer: Reader, ledger: Ledger, ends: int, most: int | None = None) -> None:
    """Takes polled batches, checked as columns; `most` records with the ends, if that is known."""
    while ends:
        batch = consumer.poll(most, timeout=POLL_TIMEOUT)
        most = None if most is None else most - len(batch)
        stamps: dict[int, list[Stamps]] = {}
        for chunk in batch.chunks:
            found, tombstones = column_stamps(chunk.values)
            ends -= tombstones
            if len(found):
                stamps.setdefault(chunk.partition, []).append(found)
        for partition, parts in stamps.items():
            ledger.add(partition, np.concatenate(parts))


def column_stamps(values: BinaryColumn) -> tuple[Stamps, int]:
    """Returns the stamps of a column of values, viewed in place, and how many tombstones are among
    them."""
    if values.valid is not None:
        kept = [value for value in values if value is not None]
        return stamps_of(kept), len(values) - len(kept)
    return stamps_in_place(values.data, values.offsets), 0
