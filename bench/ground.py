"""The node of a run, its own or one that is there, with a folder with room and a new topic.

It removes whatever it made: the topic on a node of others, the node and its data folder otherwise.
Of a node on another host, the cost of its processes and the content of its folder are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.bench.door import Door
from penstock.bench.options import Durability, Where
from penstock.bench.scratch import check_room, scratch_folder
from penstock.bench.usage import broker_pids, server_pids
from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client
from penstock.cluster.access import Entry, Kind
from penstock.core.errors import PenstockError
from penstock.ipc.messages import NodeDescription
from penstock.security.keys import create_key
from penstock.server.security.access_store import Access, AccessDocument
from penstock.testing.embedded import EmbeddedNode
from penstock.testing.embedded_cluster import EmbeddedCluster

PRINCIPAL: Final = "bench"
REPLICAS: Final = 3


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """A node to measure. `folder`: its data folder; None: it is on another host. `started_in`:
    seconds until it admitted clients; None: it was there."""

    client: Client
    door: Door
    folder: Path | None
    started_in: float | None
    filesystem: str | None
    cluster: EmbeddedCluster | None = None
    """The brokers, where they are several; `folder` has all of theirs."""
    replicas: int | None = None

    def server_pids(self) -> dict[str, int]:
        """Returns its processes, as far as they are on this host."""
        if self.cluster is not None:
            return broker_pids(self.cluster)
        return {} if self.folder is None else server_pids(self.client)

    @contextmanager
    def topic(self, partitions: int, durability: Durability = "os") -> Iterator[str]:
        """Makes a topic for this run alone."""
        name = f"bench-{os.getpid()}-{os.urandom(3).hex()}"
        config = TopicConfig(
            partitions=partitions, durability=durability, replication_factor=self.replicas
        )
        with self.client.admin() as admin:
            admin.create_topic(name, config)
        try:
            yield name
        finally:
            if self.started_in is None:
                with suppress(PenstockError), self.client.admin() as admin:
                    admin.delete_topic(name)

    def log_of(self, topic: str) -> tuple[int, int]:
        """Returns (records, bytes) that its writers have appended to the topic's segment files."""
        with self.client.admin() as admin:
            parts = admin.describe_topic(topic).partitions
        return sum(part.log_end for part in parts), sum(part.counters["bytes"] for part in parts)


@contextmanager
def ground(
    where: Where, bytes_needed: int, arguments: tuple[str, ...] = ()
) -> Iterator[MeasuredNode]:
    """Prepares the node (`arguments`: of its own node); leaving ends it. Raises `BenchError` where
    there is no room."""
    with ExitStack() as stack:
        started_in = cluster = replicas = None
        folder: Path | None
        if where.brokers:
            folder = stack.enter_context(scratch_folder(where.data, bytes_needed * 3))
            cluster = stack.enter_context(
                EmbeddedCluster(
                    where.brokers, folder=folder, writers=where.writers, arguments=arguments
                )
            )
            replicas = where.replicas or min(where.brokers, REPLICAS)
            door = Door(cluster.url)
            started_in = cluster.started_in
            client = stack.enter_context(door.connect())
        elif where.bootstrap is None:
            folder = stack.enter_context(scratch_folder(where.data, bytes_needed))
            key = None
            if where.transport == "curve":
                key = str(folder / "client.json")
                let_in(folder, key)
            node = stack.enter_context(
                EmbeddedNode(
                    folder, writers=where.writers, arguments=arguments,
                    listen=where.transport != "shm",
                )
            )  # fmt: skip
            door = Door(node.url if where.transport == "shm" else node.tcp_url, key)
            started_in = node.started_in
            client = stack.enter_context(door.connect())
        else:
            door = Door(where.bootstrap, None if where.key_file is None else str(where.key_file))
            client = stack.enter_context(door.connect())
            with client.admin() as admin:
                folder = folder_here(admin.describe_node())
            if folder is not None:
                check_room(folder, bytes_needed)
        filesystem = None if folder is None else filesystem_of(folder)
        yield MeasuredNode(client, door, folder, started_in, filesystem, cluster, replicas)


def let_in(folder: Path, key: str) -> None:
    """Makes keys for a node that is to start there: a client with the key in the file `key` may do
    everything."""
    create_key(folder, PRINCIPAL, key)
    entries = [Entry(PRINCIPAL, "allow", "all", kind, "*") for kind in Kind]
    Access(str(folder)).write(AccessDocument(entries=entries))


def folder_here(node: NodeDescription) -> Path | None:
    """Returns the data folder of a node on this host; None if it is on another one, or not to be
    read."""
    folder = Path(node.data_folder)
    try:
        told = json.loads((folder / "node.json").read_bytes())
    except (OSError, ValueError):
        return None
    return folder if told.get("uuid") == node.node_uuid.hex() else None


def filesystem_of(folder: Path) -> str:
    """Returns the type of the file system that holds `folder`, as the kernel names it."""
    path = str(folder.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind
