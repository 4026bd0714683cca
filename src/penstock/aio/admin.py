"""Topics and the node, from an event loop.

Requests are rare and short: a thread of the loop's makes them, by the blocking `penstock.Admin`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.admin import Admin as BlockingAdmin
from penstock.admin import TopicConfig, TopicDescription, TrimResult
from penstock.aio.waiting import in_thread
from penstock.ipc.messages import NodeDescription
from penstock.offsets import Offset

T = TypeVar("T")


class Admin:
    """See `penstock.Admin`, whose verbs these are. A call that is cancelled may be done all the
    same."""

    def __init__(self, core: BlockingAdmin) -> None:
        self._core = core
        self._lock = threading.Lock()  # one request at a time, also after a cancelled one

    @classmethod
    async def make(cls, socket: Path, *, client_id: str, timeout: float) -> Admin:
        make = partial(BlockingAdmin, socket, client_id=client_id, timeout=timeout)
        return cls(await in_thread(make, discard=BlockingAdmin.close))

    async def create_topic(self, name: str, config: TopicConfig | None = None) -> None:
        """Make a topic and open its partitions. Raises `TopicExistsError`, `ConfigError`."""
        await self._do(partial(self._core.create_topic, name, config))

    async def alter_topic(self, name: str, **changes: Any) -> None:
        """Change settings of a topic while it is in use."""
        await self._do(partial(self._core.alter_topic, name, **changes))

    async def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        await self._do(partial(self._core.add_partitions, name, total))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises `UnknownTopicError`."""
        await self._do(partial(self._core.delete_topic, name))

    async def trim(
        self,
        name: str,
        partition: int | Sequence[int] | None = None,
        *,
        before: Offset | str | int | datetime,
        dry_run: bool = False,
    ) -> list[TrimResult]:
        """Let partitions (None: all) start at `before`. See `penstock.Admin.trim`."""
        return await self._do(
            partial(self._core.trim, name, partition, before=before, dry_run=dry_run)
        )

    async def list_topics(self) -> list[str]:
        """All topic names, sorted."""
        return await self._do(self._core.list_topics)

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic with the state of its partitions."""
        return await self._do(partial(self._core.describe_topic, name))

    async def describe_node(self) -> NodeDescription:
        """The node's process, its writers and how much is attached to it."""
        return await self._do(self._core.describe_node)

    async def _do(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._lock:
                return work()

        return await in_thread(alone)

    async def close(self) -> None:
        await self._do(self._core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
