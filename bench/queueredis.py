"""Redis Streams as a work queue: a consumer group."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock.bench.peerserver import HOST, free_port, is_open, said_by, serving
from penstock.bench.queuepeers import (
    IDLE,
    QUEUE,
    Level,
    PortDoor,
    QueueDoor,
    QueuePeer,
    Setup,
    WorkTally,
    without,
)

GROUP: Final = "workers"
PIPELINE: Final = 500
WITHIN: Final = 120.0


def _connect(port: int) -> Any:
    import redis

    return redis.Redis(HOST, port, socket_timeout=WITHIN)


class RedisSender:
    def __init__(self, port: int) -> None:
        self._redis = _connect(port)

    def send(self, values: Iterable[bytes]) -> None:
        rest = iter(values)
        while piece := list(islice(rest, PIPELINE)):
            pipeline = self._redis.pipeline(transaction=False)
            for value in piece:
                pipeline.xadd(QUEUE, {b"v": value})
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


class RedisWorker:
    _names = itertools.count()

    def __init__(self, port: int, prefetch: int) -> None:
        self._redis = _connect(port)
        self._prefetch = prefetch
        self._name = f"{os.getpid()}-{next(self._names)}"
        self._held: bytes | None = None

    def work(self, tally: WorkTally) -> None:
        take = tally.take
        while not tally.is_over():
            done: list[bytes] = []
            for identity, fields in self._read(self._prefetch, IDLE):
                take(fields[b"v"])
                done.append(identity)
            if done:  # each named by itself, all in one command
                self._redis.xack(QUEUE, GROUP, *done)

    def _read(self, most: int, timeout: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found = self._redis.xreadgroup(
            GROUP, self._name, {QUEUE: ">"}, count=most, block=max(1, int(timeout * 1000))
        )
        if not found:
            return []
        streams = found.values() if isinstance(found, dict) else (rows for _, rows in found)
        return [row for rows in streams for row in rows]

    def receive(self, timeout: float) -> bytes | None:
        for identity, fields in self._read(1, timeout):
            self._held = identity
            return fields[b"v"]
        return None

    def ack(self) -> None:
        self._redis.xack(QUEUE, GROUP, self._held)

    def close(self) -> None:
        self._redis.close()


@contextmanager
def redis_server(folder: Path, level: Level) -> Iterator[int]:
    """Yields its port."""
    port = free_port()
    command = [
        "redis-server", "--bind", HOST, "--port", port, "--dir", folder, "--save", "",
        "--appendonly", "yes", "--appendfsync", "always" if level == "fsync" else "everysec",
    ]  # fmt: skip
    words = [str(word) for word in command]
    with serving("redis", words, folder, lambda: is_open(port)):
        yield port


@contextmanager
def _serve(setup: Setup) -> Iterator[QueueDoor]:
    with redis_server(setup.folder, setup.level) as port:
        client = _connect(port)
        client.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)
        client.close()
        yield PortDoor(port, RedisSender, RedisWorker)


def redis_missing(server: bool = True) -> str | None:
    if server and shutil.which("redis-server") is None:
        return "its server is missing: on Debian, apt-get install redis-server"
    return without("redis", "redis hiredis")


def redis_versions() -> dict[str, str]:
    words = said_by("redis-server", "--version").split()
    told = next((word.removeprefix("v=") for word in words if word.startswith("v=")), "unknown")
    found = {"Redis": told, "redis-py": version("redis")}
    if without("hiredis", "hiredis") is None:
        found["hiredis"] = version("hiredis")
    return found


def redis_peer(level: Level) -> QueuePeer:
    often = "always" if level == "fsync" else "everysec"
    promise = "fsync" if level == "fsync" else "page cache, fsync within a second"
    return QueuePeer(
        key="redis" + ("-fsync" if level == "fsync" else ""),
        name="Redis Streams, consumer group",
        client="redis-py",
        level=level,
        serve=_serve,
        missing=lambda setup: redis_missing(),
        versions=lambda setup: redis_versions(),
        jobs=0.2 if level == "fsync" else 1.0,
        prefetch=2000,
        sent=promise,
        answered=promise,
        by_default="never by itself: others ask for it by XAUTOCLAIM, after a time they choose",
        settings=f"`appendonly yes`, `appendfsync {often}`, no snapshots; "
        f"{PIPELINE} XADD in a pipeline, a batch's ids in one XACK",
        kills=level == "os",
    )
