"""The verifiable producer and consumer: a black-box contract that any checker can read.

Both print one JSON event a line, each flushed as it happens, with the names and fields of Kafka's
VerifiableProducer and VerifiableConsumer, so that harnesses made for those judge this queue too:

    producer   startup_complete, producer_send_success, producer_send_error, shutdown_complete,
               tool_data
    consumer   startup_complete, partitions_assigned, record_data, records_consumed,
               partitions_revoked, shutdown_complete; of a group also offsets_committed (see
               `penstock.testing.verify_group`)

Values are the integers from 0 on, with `PREFIX.` before them where one is given; keys cycle through
0 to N-1. Owns the events; where they go and how the tools are told to stop is the caller's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import RecordBatch
from penstock.client.producer.delivery import Delivery, Receipt
from penstock.client.producer.producer import Producer
from penstock.core.errors import PenstockError

Write = Callable[[bytes], object]

IN_FLIGHT_MAX: Final = 50_000
"""Sends whose events are not printed yet: bounds memory where stdout is slower than the node."""
PACE_SLICE: Final = 0.05
FLUSH_SLACK: Final = 5.0


class Stopping(Protocol):
    """The source of stop requests for the tools."""

    @property
    def requested(self) -> int: ...

    def wait(self, seconds: float) -> bool: ...

    def stop(self) -> None: ...


class EventWriter:
    """Writes events, whole and one at a time, from any thread. A closed pipe stops the tool."""

    def __init__(self, write: Write, stopping: Stopping) -> None:
        self._write = write
        self._stopping = stopping
        self._lock = threading.Lock()
        self.is_open = True

    def emit(self, name: str, **fields: Any) -> None:
        event = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
        line = msgspec.json.encode(event) + b"\n"
        with self._lock:
            if not self.is_open:
                return
            try:
                self._write(line)
            except OSError:
                self.is_open = False
                self._stopping.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePlan:
    """The plan of the verifiable producer. `max_messages` and `throughput` None: no bound."""

    topic: str
    max_messages: int | None = None
    throughput: float | None = None
    value_prefix: int | None = None
    repeating_keys: int | None = None
    partitions: Sequence[int] = ()


@dataclass(slots=True)
class VerifiableProducer:
    """Sends the numbers of a plan and tells the fate of each."""

    producer: Producer
    events: EventWriter
    stopping: Stopping
    plan: ProducePlan
    delivery_timeout: float
    sent: int = 0
    acked: int = 0
    failed: int = 0
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(IN_FLIGHT_MAX))

    def run(self) -> None:
        """Runs until the plan is done or a stop is requested; every send has had its event
        afterwards."""
        begun = time.monotonic()
        self.events.emit("startup_complete")
        self._send_all(begun)
        self._drain()
        seconds = max(time.monotonic() - begun, 1e-9)
        self.events.emit("shutdown_complete")
        throughput = self.plan.throughput
        self.events.emit(
            "tool_data",
            sent=self.sent,
            acked=self.acked,
            target_throughput=-1 if throughput is None else int(throughput),
            avg_throughput=self.acked / seconds,
        )

    @property
    def is_over(self) -> bool:
        """Returns whether nothing more is to be sent."""
        top = self.plan.max_messages
        return bool(self.stopping.requested) or (top is not None and self.sent >= top)

    def _send_all(self, begun: float) -> None:
        while not self.is_over:
            self._send_one()
            self._pace(begun)

    def _send_one(self) -> None:
        while not self._room.acquire(timeout=PACE_SLICE):
            if not self.events.is_open:
                return
        plan, number = self.plan, self.sent
        value = str(number) if plan.value_prefix is None else f"{plan.value_prefix}.{number}"
        key = None if plan.repeating_keys is None else str(number % plan.repeating_keys)
        partition = plan.partitions[number % len(plan.partitions)] if plan.partitions else None
        self.sent += 1
        try:
            delivery = self.producer.send(
                plan.topic,
                value.encode(),
                key=None if key is None else key.encode(),
                partition=partition,
            )
        except PenstockError as error:
            self._room.release()
            self._tell_error(key, value, error)
            return
        self._sent(key, value, delivery)

    def _sent(self, key: str | None, value: str, delivery: Delivery) -> None:
        delivery.add_done_callback(partial(self._done, key, value))

    def _done(self, key: str | None, value: str, delivery: Delivery) -> None:
        self._room.release()
        error = delivery.exception(0.0)
        if error is not None:
            self._tell_error(key, value, error)
        else:
            self._tell_success(key, value, delivery.result(0.0))

    def _tell_success(self, key: str | None, value: str, receipt: Receipt) -> None:
        self.acked += 1
        self.events.emit(
            "producer_send_success",
            key=key,
            value=value,
            topic=receipt.topic,
            partition=receipt.partition,
            # At "ring" nobody waited for an offset, even where one is known by now.
            offset=-1 if receipt.durability == "ring" else receipt.offset,
        )

    def _tell_error(self, key: str | None, value: str, error: Exception) -> None:
        self.failed += 1
        self.events.emit(
            "producer_send_error",
            key=key,
            value=value,
            topic=self.plan.topic,
            exception=type(error).__name__,
            message=str(error),
        )

    def _pace(self, begun: float) -> None:
        """Keeps the rate; a stop ends the wait."""
        rate = self.plan.throughput
        if rate is None:
            return
        while rate <= 0 and not self.stopping.wait(PACE_SLICE):
            pass  # a rate of 0 sends one and no more
        if rate > 0:
            ahead = begun + self.sent / rate - time.monotonic()
            if ahead > 0:
                self.stopping.wait(ahead)

    def _drain(self) -> None:
        with suppress(PenstockError):  # each record's own event has told it
            self.producer.flush(self.delivery_timeout + FLUSH_SLACK)
        self.producer.close()


@dataclass(slots=True)
class VerifiableConsumer:
    """Reads all it is assigned and tells what came."""

    consumer: Consumer
    events: EventWriter
    poll: Callable[[int | None], RecordBatch | None]
    max_messages: int | None = None
    is_verbose: bool = False
    consumed: int = 0

    def run(self) -> None:
        """Runs until `max_messages` came, or `poll` answers None because a stop is requested."""
        self.events.emit("startup_complete")
        assigned = [
            {"topic": topic, "partition": number} for topic, number in self.consumer.assignment()
        ]
        self.events.emit("partitions_assigned", partitions=assigned)
        try:
            while self.max_messages is None or self.consumed < self.max_messages:
                left = None if self.max_messages is None else self.max_messages - self.consumed
                batch = self.poll(left)
                if batch is None or not self.events.is_open:
                    break
                if batch:
                    tell_records(self.events, batch, is_verbose=self.is_verbose)
                    self.consumed += len(batch)
        finally:
            self.consumer.close()
            self.events.emit("partitions_revoked", partitions=assigned)
            self.events.emit("shutdown_complete")


def tell_records(events: EventWriter, batch: RecordBatch, *, is_verbose: bool) -> None:
    """Reports the records of a poll: each one if verbose, then the number in each partition."""
    runs: dict[tuple[str, int], list[int]] = {}
    for chunk in batch.chunks:
        first, last = int(chunk.offsets[0]), int(chunk.offsets[-1])
        run = runs.setdefault((chunk.topic, chunk.partition), [0, first, last])
        run[0] += len(chunk)
        run[2] = last
    if is_verbose:
        for record in batch:
            events.emit(
                "record_data",
                key=_text(record.key),
                value=_text(record.value),
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            )
    events.emit(
        "records_consumed",
        count=len(batch),
        partitions=[
            {
                "topic": topic,
                "partition": number,
                "count": count,
                "minOffset": first,
                "maxOffset": last,
            }
            for (topic, number), (count, first, last) in runs.items()
        ],
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")
