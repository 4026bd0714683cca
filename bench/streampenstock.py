"""Penstock as a log, by shared memory or by TCP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

import penstock
from penstock.bench.door import Door
from penstock.bench.streampeers import WITHIN, StreamDoor, StreamPeer, StreamPlace, Take
from penstock.client.admin.admin import TopicConfig
from penstock.testing.embedded import EmbeddedNode

BATCH_BYTES: Final = 512 << 10


class PenstockStreamSender:
    def __init__(self, door: Door, quick: bool) -> None:
        self._client = door.connect()
        self._producer = self._client.producer(
            linger=0.0 if quick else 0.002, batch_bytes=BATCH_BYTES
        )

    def send(self, topic: str, value: bytes, /) -> object:
        return self._producer.send(topic, value)

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        send = self._producer.send
        for value in values:
            send(topic, value)
        self._producer.flush(WITHIN)

    def close(self) -> None:
        self._client.close()


class PenstockTopicReader:
    def __init__(self, door: Door, topic: str) -> None:
        self._client = door.connect()
        self._records = iter(self._client.consumer(topic, start="earliest"))

    def read(self, take: Take) -> None:
        for record in self._records:
            if not (value := record.value):
                return
            take(value)

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class PenstockStreamDoor:
    door: Door

    def create(self, topic: str) -> None:
        with self.door.connect() as client, client.admin() as admin:
            admin.create_topic(topic, TopicConfig(partitions=1))

    def sender(self, *, quick: bool) -> PenstockStreamSender:
        return PenstockStreamSender(self.door, quick)

    def reader(self, topic: str, *, quick: bool) -> PenstockTopicReader:
        return PenstockTopicReader(self.door, topic)


def _server(transport: str) -> Callable[[StreamPlace], AbstractContextManager[StreamDoor]]:
    @contextmanager
    def serve(place: StreamPlace) -> Iterator[StreamDoor]:
        with EmbeddedNode(place.folder / "node", listen=transport == "tcp") as node:
            yield PenstockStreamDoor(Door(node.tcp_url if transport == "tcp" else node.url))

    return serve


def penstock_stream(transport: str) -> StreamPeer:
    return StreamPeer(
        key=f"penstock-{transport}",
        name={"shm": "Penstock, shared memory", "tcp": "Penstock, TCP"}[transport],
        client="penstock",
        server=f"penstock-{transport}",
        serve=_server(transport),
        missing=lambda place: None,
        versions=lambda place: {"Penstock": penstock.__version__},
        records=3.0 if transport == "shm" else 2.0,
        kept="page cache",
        settings=f"one partition, `acks=1`, `batch_bytes` {BATCH_BYTES >> 10} KiB; latency: "
        "`linger=0`",
    )
