"""Real quorums over loopback in one loop: each with a data folder, which outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from event_loops import eventually

from penstock.cluster.controller import Image, Place
from penstock.core.errors import ConfigError, PenstockError
from penstock.core.storage import Storage
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.quorum import Quorum
from penstock.server.quorum import controller_requests as cr

ELECTION = 0.4
SESSION = 0.6
STEADY: dict[str, Any] = {"election_timeout": 2.0, "broker_session_timeout": 4.0}
"""For worlds in which whoever leads has to go on leading: a busy machine holds a loop up for longer
than the times above."""


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
PORTS = list(range(12_000 + 1_000 * WORKER, 13_000 + 1_000 * WORKER))
"""Of this worker of the suite, and below those that the kernel gives to whoever asks for any."""
random.shuffle(PORTS)


def free_port() -> int:
    """A port that nobody has, and that is not given twice in a row."""
    for _ in PORTS:
        PORTS.append(port := PORTS.pop(0))
        with closing(socket.socket()) as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"somebody has each port of {min(PORTS)} to {max(PORTS)}")


def create(name: str, topic_id: bytes, partitions: int = 1, replicas: int = 1) -> cr.CreateTopic:
    return cr.CreateTopic(name, topic_id, partitions, replicas, 1, b"")


class World:
    """Brokers 1 to `count` with a vote; others may join. `quorums`: those that are up."""

    def __init__(self, folder: Path, count: int = 3, **config: object) -> None:
        self.folder = folder
        self.ports = {node: free_port() for node in range(1, count + 1)}
        self.text = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self.ports.items())
        self.config = config
        self.quorums: dict[int, Quorum] = {}
        self.storages: dict[int, Storage] = {}
        self.news: dict[int, list[set[Place] | None]] = {}
        self.failures: dict[int, PenstockError] = {}

    def make(self, node: int, **config: object) -> Quorum:
        port = self.ports.setdefault(node, free_port())
        folder = self.folder / str(node)
        folder.mkdir(mode=0o700, exist_ok=True)
        settings = NodeConfig(
            str(folder),
            name=None,
            listen="tcp://127.0.0.1:0",
            node_id=node,
            cluster_listen=f"tcp://127.0.0.1:{port}",
            controller_quorum=self.text,
            **{"election_timeout": ELECTION, "broker_session_timeout": SESSION,
               **self.config, **config},  # type: ignore[arg-type]
        )  # fmt: skip
        opened = DataFolder.open(str(folder), "boot", self.storages.get(node))
        opened.begin("boot", 1)
        news = self.news.setdefault(node, [])

        def changed(image: Image, places: set[Place] | None) -> None:
            news.append(None if places is None else set(places))

        def failed(error: PenstockError) -> None:
            self.failures[node] = error

        return Quorum(settings, opened, changed=changed, failed=failed)

    async def start(self, node: int, *, registers: bool = True, **config: object) -> Quorum:
        quorum = self.quorums[node] = self.make(node, **config)
        await quorum.start()
        if registers:
            await quorum.register((f"tcp://127.0.0.1:{node}",), was_clean=True)
        return quorum

    async def stop(self, node: int) -> None:
        """At once: the others hear nothing more."""
        await self.quorums.pop(node).close()

    @property
    def active(self) -> Quorum | None:
        return next((q for q in self.quorums.values() if q.is_active), None)

    async def agreed(self, but: int = 0) -> Quorum:
        """All that are up (but that one) follow one of them, whose controller is active."""

        def agree() -> bool:
            leaders = {quorum.leader for node, quorum in self.quorums.items() if node != but}
            return self.active is not None and leaders == {self.active.node}

        await eventually(agree, "a leader that all follow")
        assert self.active is not None
        return self.active

    async def remove(self, node: int) -> None:
        """Take it out of the quorum, once its connections are seen to be gone."""
        asked = next(quorum for number, quorum in self.quorums.items() if number != node)
        async with asyncio.timeout(45):
            while True:
                try:
                    await asked.ask(cr.RemoveMember(node))
                    return
                except ConfigError:
                    await asyncio.sleep(0.05)

    async def unfenced(self) -> None:
        await eventually(
            lambda: all(q.is_current and not q.is_fenced for q in self.quorums.values()),
            "every broker is current, and unfenced",
        )

    async def same(self) -> None:
        """All images say what the active one's does."""

        def are_same() -> bool:
            applied = {quorum.applied for quorum in self.quorums.values()}
            images = {tuple(q.image.records()) for q in self.quorums.values()}
            return len(applied) == len(images) == 1

        await eventually(are_same, "all images are the same")

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(45), asyncio.TaskGroup() as tasks:
            for node in list(self.ports):
                tasks.create_task(self.start(node))
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in list(self.quorums):
            await self.stop(node)
