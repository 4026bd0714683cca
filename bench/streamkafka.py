"""Kafka as a log: one broker, one partition, librdkafka's producer and consumer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.bench import kafkajars
from penstock.bench.errors import BenchError
from penstock.bench.queuekafka import kafka_server, kafka_versions
from penstock.bench.queuepeers import without
from penstock.bench.streampeers import (
    WITHIN,
    Address,
    StreamPeer,
    StreamPlace,
    Take,
    served,
)

FETCHED: Final = 2000
"""Records that the consumer hands out together."""
WAIT: Final = 0.05
LINGER_MS: Final = 5
BATCH_BYTES: Final = 1 << 20
BUFFER_KB: Final = 1 << 18


class KafkaStreamSender:
    def __init__(self, address: Address, quick: bool) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": str(address), "acks": "all", "socket.nagle.disable": True,
                "linger.ms": 0 if quick else LINGER_MS, "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": BUFFER_KB,
            }
        )  # fmt: skip
        self._failures: list[object] = []

    def send(self, topic: str, value: bytes, /) -> object:
        self._producer.produce(topic, value, on_delivery=self._delivered)
        return self._producer.poll(0)

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for number, value in enumerate(values):
            try:
                produce(topic, value, on_delivery=self._delivered)
            except BufferError:  # its buffer is full
                while True:
                    poll(0.01)
                    try:
                        produce(topic, value, on_delivery=self._delivered)
                        break
                    except BufferError:
                        continue
            if not number % 1000:
                poll(0)
        if self._producer.flush(WITHIN) or self._failures:
            raise BenchError(f"Kafka took not every record: {self._failures[:1]}")

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self._failures.append(error)

    def close(self) -> None:
        self._producer.flush(WITHIN)


class KafkaStreamReader:
    def __init__(self, address: Address, topic: str, quick: bool) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": str(address), "group.id": "bench",
                "enable.auto.commit": False, "socket.nagle.disable": True,
                "fetch.min.bytes": 1, "fetch.queue.backoff.ms": 1,
                "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": BUFFER_KB,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._quick = quick
        self._left: Iterator[Any] = iter(())

    def read(self, take: Take) -> None:
        while True:
            for message in self._left:
                if message.error() is not None:
                    raise BenchError(f"Kafka: {message.error()}")
                if not (value := message.value()):
                    return
                take(value)
            self._left = iter(self._next())

    def _next(self) -> list[Any]:
        if not self._quick:  # it waits until so many are there
            found: list[Any] = self._consumer.consume(FETCHED, WAIT)
            return found
        message = self._consumer.poll(WAIT)
        return [] if message is None else [message]

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True, slots=True)
class KafkaStreamDoor:
    address: Address

    def create(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": str(self.address)})
        admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=30.0)[topic].result(WITHIN)

    def sender(self, *, quick: bool) -> KafkaStreamSender:
        return KafkaStreamSender(self.address, quick)

    def reader(self, topic: str, *, quick: bool) -> KafkaStreamReader:
        return KafkaStreamReader(self.address, topic, quick)


def _missing(place: StreamPlace) -> str | None:
    if (why := without("confluent_kafka", "'penstock[bench]'")) is not None:
        return why
    if place.address is not None:
        return None
    if shutil.which("java") is None:
        return "Java is missing: on Debian, apt-get install default-jre-headless"
    return kafkajars.missing(place.jars)


def _versions(place: StreamPlace) -> dict[str, str]:
    return kafka_versions(None if place.address else kafkajars.fetched(place.jars))


def kafka_stream() -> StreamPeer:
    return StreamPeer(
        key="kafka",
        name="Kafka",
        client="confluent-kafka (librdkafka)",
        server="kafka",
        serve=lambda place: served(
            place,
            KafkaStreamDoor,
            lambda place: kafka_server(place.folder, kafkajars.fetched(place.jars)),
        ),
        missing=_missing,
        versions=_versions,
        records=1.0,
        kept="page cache",
        settings=f"one broker, one partition, heap 1 GB; `acks=all`, `linger.ms={LINGER_MS}`, "
        f"`batch.size` {BATCH_BYTES >> 20} MiB, `queue.buffering.max.messages` 1,000,000, "
        f"`consume({FETCHED:,})`; latency: `linger.ms=0`, `poll()`; `fetch.queue.backoff.ms=1`, "
        "no Nagle",
    )
