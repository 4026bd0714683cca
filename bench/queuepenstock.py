"""Penstock as a work queue: a share group, by shared memory or by TCP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

import penstock
from penstock.bench.door import Door
from penstock.bench.queuepeers import IDLE, QUEUE, Level, QueueDoor, QueuePeer, Setup, WorkTally
from penstock.client.admin.admin import TopicConfig
from penstock.client.share.jobs import Job
from penstock.testing.embedded import EmbeddedNode

FLUSH_WITHIN: Final = 120.0
GROUP: Final = "workers"


class PenstockSender:
    def __init__(self, door: Door) -> None:
        self._client = door.connect()
        self._producer = self._client.producer()

    def send(self, values: Iterable[bytes]) -> None:
        send = self._producer.send
        for value in values:
            send(QUEUE, value)
        self._producer.flush(FLUSH_WITHIN)

    def close(self) -> None:
        self._client.close()


class PenstockWorker:
    def __init__(self, door: Door, prefetch: int) -> None:
        self._client = door.connect()
        self._jobs = self._client.share_consumer(QUEUE, group=GROUP, max_records=prefetch)
        self._held: Job | None = None

    def work(self, tally: WorkTally) -> None:
        poll, take = self._jobs.poll, tally.take
        while not tally.is_over():
            for job in poll(timeout=IDLE):
                take(job.value or b"")
                job.ack()
        self._jobs.flush()

    def receive(self, timeout: float) -> bytes | None:
        for job in self._jobs.poll(max_records=1, timeout=timeout):
            self._held = job
            return job.value
        return None

    def ack(self) -> None:
        assert self._held is not None
        self._held.ack()
        self._jobs.flush()

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class PenstockDoor:
    door: Door

    def sender(self) -> PenstockSender:
        return PenstockSender(self.door)

    def worker(self, prefetch: int) -> PenstockWorker:
        return PenstockWorker(self.door, prefetch)


def _server(transport: str) -> Callable[[Setup], AbstractContextManager[QueueDoor]]:
    @contextmanager
    def serve(setup: Setup) -> Iterator[QueueDoor]:
        with EmbeddedNode(setup.folder / "node", listen=transport == "tcp") as node:
            door = Door(node.url if transport == "shm" else node.tcp_url)
            with door.connect() as client, client.admin() as admin:
                admin.create_topic(QUEUE, TopicConfig(partitions=1, durability=setup.level))
            yield PenstockDoor(door)

    return serve


def penstock_peer(transport: str, level: Level) -> QueuePeer:
    ways = {"shm": "shared memory", "tcp": "TCP"}
    return QueuePeer(
        key=f"penstock-{transport}" + ("-fsync" if level == "fsync" else ""),
        name=f"Penstock, {ways[transport]}",
        client="penstock",
        level=level,
        serve=_server(transport),
        missing=lambda setup: None,
        versions=lambda setup: {"Penstock": penstock.__version__},
        jobs=1.0 if level == "fsync" else 3.0,
        prefetch=2000,
        sent="fsync" if level == "fsync" else "page cache",
        answered="page cache, fsync within a second",
        by_default=(
            "at once: the node watches its process" if transport == "shm"
            else "once its connection is gone and `session_timeout` (10 s) is over"
        ),
        settings="one partition; topic with `durability=\"fsync\"`" if level == "fsync"
        else "one partition",
        kills=level == "os",
    )  # fmt: skip
