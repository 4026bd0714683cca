"""Where a run takes place: its own node or one that is there, a folder with room, a fresh topic.

Whatever it made it removes: the topic on a node of others, the node and its data folder otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.admin import TopicConfig
from penstock.bench.options import Options
from penstock.bench.scratch import check_room, scratch_folder
from penstock.bench.usage import server_pids
from penstock.client import Client, connect
from penstock.core.errors import PenstockError
from penstock.embedded import EmbeddedNode


@dataclass(frozen=True, slots=True)
class Ground:
    """A node to measure. `started_in`: seconds until it admitted clients; None: it was there."""

    client: Client
    url: str
    folder: Path
    started_in: float | None
    filesystem: str

    def server_pids(self) -> dict[str, int]:
        return server_pids(self.client)

    @contextmanager
    def topic(self, options: Options) -> Iterator[str]:
        """A topic of this run alone."""
        name = f"bench-{os.getpid()}-{os.urandom(3).hex()}"
        config = TopicConfig(partitions=options.partitions, durability=options.durability)
        with self.client.admin() as admin:
            admin.create_topic(name, config)
        try:
            yield name
        finally:
            if self.started_in is None:
                with suppress(PenstockError), self.client.admin() as admin:
                    admin.delete_topic(name)

    def log_of(self, topic: str) -> tuple[int, int]:
        """(records, bytes) that its writers have appended to the topic's segment files."""
        with self.client.admin() as admin:
            parts = admin.describe_topic(topic).partitions
        return sum(part.log_end for part in parts), sum(part.counters["bytes"] for part in parts)


@contextmanager
def ground(
    options: Options, bytes_needed: int, arguments: tuple[str, ...] = ()
) -> Iterator[Ground]:
    """Prepare it (`arguments`: of its own node); leaving takes it down. Raises `BenchError` where
    there is no room."""
    with ExitStack() as stack:
        started_in = None
        if options.bootstrap is None:
            folder = stack.enter_context(scratch_folder(options.data, bytes_needed))
            embedded = EmbeddedNode(folder, writers=options.writers, arguments=arguments)
            node = stack.enter_context(embedded)
            url, started_in = node.url, node.started_in
        else:
            url = options.bootstrap
        client = stack.enter_context(connect(url))
        if options.bootstrap is not None:
            with client.admin() as admin:
                folder = Path(admin.describe_node().data_folder)
            check_room(folder, bytes_needed)
        yield Ground(client, url, folder, started_in, filesystem_of(folder))


def filesystem_of(folder: Path) -> str:
    """The type of the file system that holds `folder`, as the kernel names it."""
    path = str(folder.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind
