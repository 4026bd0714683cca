"""RabbitMQ in the place of a log: a quorum queue, whose messages go as they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from penstock.bench.queuerabbit import (
    UNCONFIRMED_MAX,
    RabbitLine,
    RabbitSender,
    rabbit_missing,
    rabbit_server,
    rabbit_versions,
)
from penstock.bench.streampeers import (
    WITHIN,
    Address,
    StreamPeer,
    StreamPlace,
    Take,
    served,
)

PREFETCH: Final = 2000
ACKED: Final = 500
"""Messages in one answer."""


class QuickRabbitSender:
    """Without confirms: one would come after its fsync, and not a thousand a second."""

    def __init__(self, address: Address) -> None:
        import pika

        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(address.host, address.port)
        )
        self._channel = self._connection.channel()
        self._persistent = pika.BasicProperties(delivery_mode=2)

    def send(self, topic: str, value: bytes, /) -> object:
        self._channel.basic_publish("", topic, value, self._persistent)
        return None

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        for value in values:
            self.send(topic, value)
        self._channel.queue_declare(topic, passive=True)

    def close(self) -> None:
        self._connection.close()


class RabbitStreamSender:
    def __init__(self, address: Address) -> None:
        self._sender = RabbitSender(address.port, address.host)

    def send(self, topic: str, value: bytes, /) -> object:
        self._sender.send([value], topic)
        return None

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        self._sender.send(values, topic)

    def close(self) -> None:
        self._sender.close()


class RabbitStreamReader:
    def __init__(self, address: Address, topic: str, quick: bool) -> None:
        self._line = RabbitLine(address.port, address.host)
        self._channel = self._line.channel
        self._line.call(self._channel.basic_qos, prefetch_count=PREFETCH)
        self._acked = 1 if quick else ACKED
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._take: Take | None = None
        self._unacked = 0
        self._channel.basic_consume(topic, self._arrived)

    def _arrived(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._hand_out(method.delivery_tag, body)

    def _hand_out(self, tag: int, value: bytes) -> None:
        if self._take is None:
            self._waiting.append((tag, value))
            return
        self._unacked += 1
        if self._unacked >= self._acked or not value:
            self._channel.basic_ack(tag, multiple=True)
            self._unacked = 0
        if value:
            self._take(value)
        else:
            self._take = None
            self._line.loop.stop()

    def read(self, take: Take) -> None:
        self._take = take
        before, self._waiting = self._waiting, deque()
        for tag, value in before:
            self._hand_out(tag, value)
        if self._take is not None:
            self._line.run(WITHIN)

    def close(self) -> None:
        self._line.close()


@dataclass(frozen=True, slots=True)
class RabbitStreamDoor:
    address: Address

    def create(self, topic: str) -> None:
        line = RabbitLine(self.address.port, self.address.host)
        line.call(
            line.channel.queue_declare, topic, durable=True, arguments={"x-queue-type": "quorum"}
        )
        line.close()

    def sender(self, *, quick: bool) -> QuickRabbitSender | RabbitStreamSender:
        return QuickRabbitSender(self.address) if quick else RabbitStreamSender(self.address)

    def reader(self, topic: str, *, quick: bool) -> RabbitStreamReader:
        return RabbitStreamReader(self.address, topic, quick)


def _versions(place: StreamPlace) -> dict[str, str]:
    return rabbit_versions(None if place.address else place.folder)


def rabbit_stream() -> StreamPeer:
    return StreamPeer(
        key="rabbitmq",
        name="RabbitMQ, quorum queue",
        client="pika (SelectConnection)",
        server="rabbitmq",
        serve=lambda place: served(
            place, RabbitStreamDoor, lambda place: rabbit_server(place.folder)
        ),
        missing=lambda place: rabbit_missing(place.address is None),
        versions=_versions,
        records=0.1,
        kept="fsync",
        settings=f"one node; {UNCONFIRMED_MAX:,} messages without a confirm, prefetch "
        f"{PREFETCH:,}, {ACKED} messages in one acknowledgement; latency: no confirms, each "
        "acknowledged by itself",
    )
