"""Redis Streams as a log: XADD in pipelines, XREAD."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from penstock.bench.queueredis import PIPELINE, redis_missing, redis_server, redis_versions
from penstock.bench.streampeers import (
    WITHIN,
    Address,
    StreamPeer,
    Take,
    served,
)

READ: Final = 1000
WAIT_MS: Final = 1000


def _connect(address: Address) -> Any:
    import redis

    return redis.Redis(address.host, address.port, socket_timeout=WITHIN, protocol=2)


class RedisStreamSender:
    def __init__(self, address: Address) -> None:
        self._redis = _connect(address)

    def send(self, topic: str, value: bytes, /) -> object:
        return self._redis.xadd(topic, {b"v": value})

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        rest = iter(values)
        while piece := list(islice(rest, PIPELINE)):
            pipeline = self._redis.pipeline(transaction=False)
            for value in piece:
                pipeline.xadd(topic, {b"v": value})
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


class RedisStreamReader:
    def __init__(self, address: Address, topic: str) -> None:
        self._redis = _connect(address)
        self._redis.ping()
        self._topic = topic
        self._last: bytes | str = "0"

    def read(self, take: Take) -> None:
        while True:
            for _, rows in self._redis.xread({self._topic: self._last}, READ, WAIT_MS) or ():
                for identity, fields in rows:
                    self._last = identity
                    if not (value := fields[b"v"]):
                        return  # what is behind it is read again
                    take(value)

    def close(self) -> None:
        self._redis.close()


@dataclass(frozen=True, slots=True)
class RedisStreamDoor:
    address: Address

    def create(self, topic: str) -> None:
        """The first record makes it."""

    def sender(self, *, quick: bool) -> RedisStreamSender:
        return RedisStreamSender(self.address)

    def reader(self, topic: str, *, quick: bool) -> RedisStreamReader:
        return RedisStreamReader(self.address, topic)


def redis_stream() -> StreamPeer:
    return StreamPeer(
        key="redis",
        name="Redis Streams",
        client="redis-py, hiredis",
        server="redis",
        serve=lambda place: served(
            place, RedisStreamDoor, lambda place: redis_server(place.folder, "os")
        ),
        missing=lambda place: redis_missing(place.address is None),
        versions=lambda place: redis_versions(),
        records=0.4,
        kept="page cache, fsync within a second",
        settings=f"`appendonly yes`, `appendfsync everysec`, no snapshots; {PIPELINE} XADD in a "
        f"pipeline, XREAD COUNT {READ:,} BLOCK; latency: one XADD",
    )
