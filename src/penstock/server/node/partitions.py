"""Partitions as they live: opened and closed through their writers.

    opening --PartitionOpened--> open        opening --PartitionFailed--> failed
    open --PartitionOffline--> offline: open for readers, and takes nothing
       ^------- its writer died, or the settings changed -------'
    any --topic deleted, or no replica is here any more--> closing --PartitionClosed--> gone

page % writers is the writer of a partition for the whole run (rule 6). A broker of a cluster opens
only what it has a replica of. Owns what each writer must be told of topics, now and when it is
replaced, and who waits for its answers. Knows no clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from penstock.ipc import messages as ms
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.topic_catalog import TopicRecord

logger = logging.getLogger("penstock.node")

Post = Callable[[int, ms.WriterOrder], None]


class NodePartition:
    """One partition while its topic exists."""

    __slots__ = ("failure", "index", "is_open", "offline", "topic", "was_sent")

    def __init__(self, topic: TopicRecord, index: int) -> None:
        self.topic = topic
        self.index = index
        self.is_open = False
        self.failure: str | None = None
        self.offline = ""
        """Why its log takes nothing, failed or open; empty while it does, or is being opened."""
        self.was_sent = False

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def log_fields(self) -> dict[str, object]:
        return {"topic": self.topic.name, "partition": self.index}


class Partitions:
    """All partitions by page. `post` sends an order to the writer of that index. `hosts` says
    whether a partition has to be open here. `on_open` is called each time that one has been opened.
    `on_state` is called when one was opened, or has gone offline."""

    def __init__(
        self,
        folder: DataFolder,
        writers: int,
        post: Post,
        *,
        replicated: bool = False,
    ) -> None:
        self._folder = folder
        self._writers = writers
        self._post = post
        self.hosts: Callable[[TopicRecord, int], bool] = lambda _topic, _index: True
        self.on_open: Callable[[int], None] = lambda _page: None
        self.on_state: Callable[[NodePartition], None] = lambda _partition: None
        self._replicated = replicated
        self._changed = asyncio.Event()
        self._closing: dict[int, bool] = {}
        """Page -> whether its topic is gone."""
        self.live: dict[int, NodePartition] = {}

    def add(self, topic: TopicRecord) -> None:
        """Take up a topic, or its new settings and further partitions; no writer is told yet."""
        for index, page in enumerate(topic.pages):
            known = self.live.get(page)
            if known is not None:
                known.topic = topic
            elif self.hosts(topic, index):
                self.live[page] = NodePartition(topic, index)

    def remove(self, topic: TopicRecord) -> None:
        """Its topic is deleted: nothing opens it any more; no writer is told yet."""
        for page in topic.pages:
            known = self.live.get(page)
            if known is None or known.topic.topic_id == topic.topic_id:
                self.live.pop(page, None)
                self._closing[page] = True
        self._notify()

    def let_go(self, page: int) -> None:
        """No replica of a partition is here any more, and its topic is still there."""
        self.live.pop(page, None)
        self._closing[page] = False
        self._notify()
        self._post(self.writer_of(page), ms.ClosePartition(page, delete=False))

    # --- what writers are told ---
    def writer_of(self, page: int) -> int:
        return page % self._writers

    def writers_needed(self) -> set[int]:
        return {self.writer_of(page) for page in (*self.live, *self._closing)}

    def orders_for(self, writer: int) -> Iterator[ms.WriterOrder]:
        """Everything about partitions that a fresh writer must know."""
        for page, delete in self._closing.items():
            if self.writer_of(page) == writer:
                yield ms.ClosePartition(page, delete=delete)
        for page, partition in self.live.items():
            if self.writer_of(page) == writer:
                partition.is_open, partition.failure = False, None
                yield self._open_order(page, partition)

    def open(self, topic: TopicRecord) -> None:
        """Have a topic's partitions opened; open ones take its settings, failed ones try again."""
        for page in topic.pages:
            partition = self.live.get(page)
            if partition is not None:
                partition.failure = None
                self._post(self.writer_of(page), self._open_order(page, partition))

    def close(self, topic: TopicRecord) -> None:
        """Have a removed topic's partitions closed for good."""
        for page in topic.pages:
            if self._closing.get(page):
                self._post(self.writer_of(page), ms.ClosePartition(page, delete=True))

    def _open_order(self, page: int, partition: NodePartition) -> ms.OpenPartition:
        topic = partition.topic
        # The mark of the run before says nothing about what a writer of this run left behind.
        clean = self._folder.was_clean and not partition.was_sent
        partition.was_sent = True
        return ms.OpenPartition(
            page=page,
            topic=topic.name,
            topic_id=bytes.fromhex(topic.topic_id),
            partition=partition.index,
            folder=topic.folder(self._folder.path, partition.index),
            settings=topic.settings,
            clean=clean,
            boot_id=self._folder.record.boot_id,
            replicated=self._replicated,
        )

    # --- what writers report ---
    def reported(self, report: ms.PartitionReport) -> None:
        match report:
            case ms.PartitionOpened():
                self.opened(report)
            case ms.PartitionFailed():
                self.failed(report)
            case ms.PartitionOffline():
                self.went_offline(report)
            case ms.PartitionClosed():
                self.closed(report)

    def opened(self, report: ms.PartitionOpened) -> None:
        partition = self.live.get(report.page)
        if partition is not None:
            partition.is_open, partition.failure = True, None
            partition.offline = report.offline
            self.on_state(partition)
            self.on_open(report.page)
            self._notify()

    def failed(self, report: ms.PartitionFailed) -> None:
        partition = self.live.get(report.page)
        if partition is not None:
            logger.error(
                "%s is offline: %s", partition, report.reason, extra={"reason": report.reason}
            )
            partition.is_open, partition.failure = False, report.reason
            partition.offline = report.reason
            self.on_state(partition)
            self._notify()

    def went_offline(self, report: ms.PartitionOffline) -> None:
        partition = self.live.get(report.page)
        if partition is not None:
            partition.offline = report.reason
            self.on_state(partition)

    def closed(self, report: ms.PartitionClosed) -> None:
        self._closing.pop(report.page, None)
        self._notify()

    # --- who waits for it ---
    def _notify(self) -> None:
        """Wake every waiter once; each looks for what it waits for."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        async def wait() -> None:
            while not condition():
                await self._changed.wait()

        try:
            await asyncio.wait_for(wait(), timeout)
        except TimeoutError:
            return condition()
        return True

    async def wait_answered(self, pages: Iterable[int], timeout: float) -> bool:
        """Until each of these pages is open, failed or removed; False when time ran out."""
        wanted = list(pages)
        return await self._until(lambda: not self.opening(wanted), timeout)

    async def wait_closed(self, pages: Iterable[int]) -> None:
        """Until the writers have let go of these pages."""
        wanted = list(pages)
        await self._until(lambda: not self.are_closing(wanted), None)

    def are_closing(self, pages: Iterable[int]) -> bool:
        """Whether the writers still have to let go of any of these."""
        return not self._closing.keys().isdisjoint(pages)

    def opening(self, pages: Iterable[int] | None = None) -> list[NodePartition]:
        """Partitions whose writer has not answered yet."""
        chosen = self.live if pages is None else pages
        found = (self.live.get(page) for page in chosen)
        return [p for p in found if p is not None and not p.is_open and p.failure is None]

    def all_are_open(self) -> bool:
        return all(partition.is_open for partition in self.live.values())
