"""Topics as they live: partitions opened and closed through their writers, requests that wait.

    opening --PartitionOpened--> open        opening --PartitionFailed--> failed
       ^------- its writer died, or the settings changed -------'

Joins the catalogue with the writers: page % writers is the writer of a partition for the whole run
(rule 6). Each request is a coroutine that changes the catalogue under one lock and waits boundedly
for what the writers report. One that is given up leaves nothing half done, since what is left to do
follows from the catalogue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from penstock.core.errors import (
    LogOfflineError,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    UnknownTopicError,
)
from penstock.ipc import messages as ms
from penstock.server.catalog import Catalog, CatalogDocument, TopicRecord
from penstock.server.config import NodeConfig
from penstock.server.datafolder import DataFolder
from penstock.server.tables import Tables

logger = logging.getLogger("penstock.node")

TOPICS_BYTES_MAX: Final = 48 * 1024
"""About how much of a message a page of topics takes at most."""

Post = Callable[[int, ms.WriterOrder], None]
_T = TypeVar("_T")


class Partition:
    """One partition while its topic exists."""

    __slots__ = ("failure", "index", "is_open", "topic", "was_sent")

    def __init__(self, topic: TopicRecord, index: int) -> None:
        self.topic = topic
        self.index = index
        self.is_open = False
        self.failure: str | None = None
        self.was_sent = False

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.index}"


class Topics:
    """What clients ask of topics. `post` tells the writer of that index something."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        catalog: Catalog,
        *,
        writers: int,
        post: Post,
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._catalog = catalog
        self._writers = writers
        self._post = post
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.partitions: dict[int, Partition] = {}
        self._closing: dict[int, str] = {}
        self._jobs: set[asyncio.Future[None]] = set()
        self._is_closed = False
        for topic in catalog.topics.values():
            self._add(topic)
        for topic in catalog.deleting.values():
            self._begin_deletion(topic)

    def _add(self, topic: TopicRecord) -> list[Partition]:
        """Take up the partitions of a topic that are not known yet; returns those."""
        new = []
        for index, page in enumerate(topic.pages):
            if page in self.partitions:
                self.partitions[page].topic = topic
            else:
                self.partitions[page] = Partition(topic, index)
                new.append(self.partitions[page])
        return new

    # --- what writers are told and report ---
    def writer_of(self, page: int) -> int:
        return page % self._writers

    def writers_needed(self) -> set[int]:
        return {self.writer_of(page) for page in (*self.partitions, *self._closing)}

    def orders_for(self, writer: int) -> Iterator[ms.WriterOrder]:
        """Everything about topics that a fresh writer must know."""
        for page in self._closing:
            if self.writer_of(page) == writer:
                yield ms.ClosePartition(page, delete=True)
        for page, partition in self.partitions.items():
            if self.writer_of(page) == writer:
                partition.is_open = False
                partition.failure = None
                yield self._open_order(page, partition)

    def _open_order(self, page: int, partition: Partition) -> ms.OpenPartition:
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
        )

    def opened(self, report: ms.PartitionOpened) -> None:
        partition = self.partitions.get(report.page)
        if partition is None:
            return
        partition.is_open, partition.failure = True, None
        self._notify()

    def failed(self, report: ms.PartitionFailed) -> None:
        partition = self.partitions.get(report.page)
        if partition is None:
            return
        logger.error("%s is offline: %s", partition, report.reason)
        partition.is_open, partition.failure = False, report.reason
        self._notify()

    def closed(self, report: ms.PartitionClosed) -> None:
        if self._closing.pop(report.page, None) is not None:
            self._notify()

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

    def opening(self, pages: Iterable[int] | None = None) -> list[Partition]:
        """Partitions whose writer has not answered yet."""
        chosen = self.partitions if pages is None else pages
        found = (self.partitions.get(page) for page in chosen)
        return [p for p in found if p is not None and not p.is_open and p.failure is None]

    def all_are_open(self) -> bool:
        return all(partition.is_open for partition in self.partitions.values())

    # --- requests ---
    async def find(self, name: str) -> ms.TopicFound:
        """A topic, once each of its partitions is open or known to be offline: before that, its
        pages may still tell of the boot before."""
        topic = self._catalog.find(name)
        await self._wait_open(topic, topic.pages)
        return ms.TopicFound(self._catalog.find(name).info)

    def listed(self, after: str) -> ms.Topics:
        names = sorted(name for name in self._catalog.topics if name > after)
        found: list[ms.TopicInfo] = []
        room = TOPICS_BYTES_MAX
        for name in names[: ms.TOPICS_PER_PAGE]:
            topic = self._catalog.topics[name]
            room -= 400 + len(name) + 5 * len(topic.pages)
            if room < 0 and found:
                break
            found.append(topic.info)
        return ms.Topics(found, more=len(found) < len(names))

    async def create(self, request: ms.CreateTopic) -> ms.TopicFound:
        async with self._lock:
            document, topic = self._catalog.plan_create(
                request.name, request.settings, self._config, self._tables.is_page_free
            )
            await self._write(document)
            new = self._add(topic)
        logger.info("topic %s created: %d partitions", topic.name, len(new))
        self._open(new)
        try:
            await self._wait_open(topic, topic.pages)
            self._raise_failure(topic, topic.pages, "created")
        except LogOfflineError:
            await self._delete(topic.name)  # so that it can be tried again under its name
            raise
        return ms.TopicFound(topic.info)

    async def alter(self, request: ms.AlterTopic) -> ms.TopicFound:
        async with self._lock:
            before = self._catalog.find(request.name)
            document, topic = self._catalog.plan_alter(
                request.name, request.settings, self._config, self._tables.is_page_free
            )
            await self._write(document)
            self._add(topic)
        logger.info("topic %s altered: %s", topic.name, request.settings)
        for page in topic.pages:  # an offline one is tried again
            self.partitions[page].failure = None
        self._open([self.partitions[page] for page in topic.pages])
        new = topic.pages[len(before.pages) :]
        await self._wait_open(topic, new)
        self._raise_failure(topic, new, "given more partitions")
        return ms.TopicFound(topic.info)

    async def delete(self, name: str) -> ms.Done:
        task = await self._delete(name)
        done, _ = await asyncio.wait([task], timeout=self._config.topic_timeout)
        if not done:
            raise PenstockTimeout(
                f"topic {name!r} is deleted, but its files are not gone yet after "
                f"{self._config.topic_timeout:g} s (topic_timeout): the node goes on removing them"
            )
        return ms.Done()

    async def _delete(self, name: str) -> asyncio.Task[None]:
        async with self._lock:
            document, topic = self._catalog.plan_delete(name)
            await self._write(document)
            task = self._begin_deletion(topic)
        logger.info("topic %s deleted", name)
        for page in topic.pages:
            self._post(self.writer_of(page), ms.ClosePartition(page, delete=True))
        self._notify()
        return task

    def _open(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            page = partition.topic.pages[partition.index]
            self._post(self.writer_of(page), self._open_order(page, partition))

    async def _wait_open(self, topic: TopicRecord, pages: list[int]) -> None:
        """Until each page is open or failed, or its topic is gone."""
        timeout = self._config.topic_timeout
        answered = await self._until(lambda: not self.opening(pages), timeout)
        current = self._catalog.topics.get(topic.name)
        if current is None or current.topic_id != topic.topic_id:
            raise UnknownTopicError(f"topic {topic.name!r} was deleted in the meantime")
        if not answered:
            late = ", ".join(str(partition) for partition in self.opening(pages)[:10])
            raise PenstockTimeout(
                f"topic {topic.name!r} is not open yet after {timeout:g} s (topic_timeout): its "
                f"writers recover or restart, ask again; waiting for {late}"
            )

    def _raise_failure(self, topic: TopicRecord, pages: list[int], verb: str) -> None:
        for page in pages:
            failure = self.partitions[page].failure
            if failure is not None:
                raise LogOfflineError(
                    f"topic {topic.name!r} could not be {verb}: partition "
                    f"{self.partitions[page].index} is offline: {failure}"
                )

    # --- deletion goes on by itself, over writer deaths and node restarts ---
    def _begin_deletion(self, topic: TopicRecord) -> asyncio.Task[None]:
        for page in topic.pages:
            self.partitions.pop(page, None)
            self._closing[page] = topic.name
        task = asyncio.get_running_loop().create_task(self._finish_deletion(topic))
        self._tasks[topic.topic_id] = task
        return task

    async def _finish_deletion(self, topic: TopicRecord) -> None:
        await self._until(lambda: self._closing.keys().isdisjoint(topic.pages), None)
        try:
            for index in range(len(topic.pages)):
                folder = topic.folder(self._folder.path, index)
                await self._off_loop(_remove_folder, folder)
            async with self._lock:
                await self._write(self._catalog.plan_forget(topic.topic_id))
        except (OSError, PenstockError) as error:
            logger.error(
                "files of the deleted topic %s stay until the next start: %s", topic.name, error
            )
        self._tasks.pop(topic.topic_id, None)

    async def _write(self, document: CatalogDocument) -> None:
        """Make a plan durable, then true."""
        await self._off_loop(self._catalog.write, document)
        self._catalog.apply(document)

    async def _off_loop(self, work: Callable[[_T], None], argument: _T) -> None:
        """Work that waits for the device, in a thread: the loop must not."""
        if self._is_closed:
            raise NotConnectedError("this node is stopping: ask again when it is back")
        job = asyncio.get_running_loop().run_in_executor(None, work, argument)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        await asyncio.shield(job)

    @property
    def count(self) -> int:
        return len(self._catalog.topics)

    async def close(self) -> None:
        """Stop what goes on by itself, which the next node takes up again, and wait for work that
        has begun: it must not reach into the folder when that is another node's."""
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)


def _remove_folder(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
