"""NATS JetStream as a log: a stream in files, an acknowledged publisher, a push consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.bench.queuenats import (
    UNACKED_MAX,
    NatsLoop,
    nats_missing,
    nats_server,
    nats_versions,
)
from penstock.bench.streampeers import (
    WITHIN,
    Address,
    StreamPeer,
    Take,
    served,
)


class NatsStreamSender:
    def __init__(self, address: Address) -> None:
        self._loop = NatsLoop(address.port, address.host)
        self._stream = self._loop.client.jetstream(publish_async_max_pending=UNACKED_MAX)

    def send(self, topic: str, value: bytes, /) -> object:
        return self._loop.run(self._stream.publish(topic, value))

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        self._loop.run(self._sending(topic, values))

    async def _sending(self, topic: str, values: Iterable[bytes]) -> None:
        publish = self._stream.publish_async
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*[await publish(topic, value) for value in values])

    def close(self) -> None:
        self._loop.close()


class NatsStreamReader:
    def __init__(self, address: Address, topic: str) -> None:
        self._loop = NatsLoop(address.port, address.host)
        self._waiting: deque[bytes] = deque()
        self._take: Take | None = None
        self._ended = asyncio.Event()
        self._loop.run(self._subscribe(topic))

    async def _subscribe(self, topic: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        # Nothing is to be dropped here however far behind this process is.
        await self._loop.client.jetstream().subscribe(
            topic, cb=self._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1,
            config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL),
        )  # fmt: skip

    async def _arrived(self, message: Any) -> None:
        self._hand_out(message.data)

    def _hand_out(self, value: bytes) -> None:
        if self._take is None:
            self._waiting.append(value)
        elif value:
            self._take(value)
        else:
            self._take = None
            self._ended.set()

    def read(self, take: Take) -> None:
        self._take = take
        self._ended.clear()
        before, self._waiting = self._waiting, deque()
        for value in before:
            self._hand_out(value)
        self._loop.run(self._ended.wait())

    def close(self) -> None:
        self._loop.close()


@dataclass(frozen=True, slots=True)
class NatsStreamDoor:
    address: Address

    def create(self, topic: str) -> None:
        from nats.js.api import StorageType

        loop = NatsLoop(self.address.port, self.address.host)
        stream = loop.client.jetstream()
        loop.run(stream.add_stream(name=topic, subjects=[topic], storage=StorageType.FILE))
        loop.close()

    def sender(self, *, quick: bool) -> NatsStreamSender:
        return NatsStreamSender(self.address)

    def reader(self, topic: str, *, quick: bool) -> NatsStreamReader:
        return NatsStreamReader(self.address, topic)


def nats_stream() -> StreamPeer:
    return StreamPeer(
        key="nats",
        name="NATS JetStream",
        client="nats-py",
        server="nats",
        serve=lambda place: served(
            place, NatsStreamDoor, lambda place: nats_server(place.folder, "os")
        ),
        missing=lambda place: nats_missing(place.address is None),
        versions=lambda place: nats_versions(),
        records=0.15,
        kept="page cache, fsync within two minutes",
        settings=f"file storage, one replica; {UNACKED_MAX:,} messages without an acknowledgement; "
        "push consumer without acknowledgements; latency: one publish",
    )
