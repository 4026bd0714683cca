"""Serves clients' requests about topics: find, list, create, alter, delete.

Each request is a coroutine that changes the catalogue under one lock and waits boundedly for the
writers' reports. One that is given up leaves nothing half done, since the remaining work follows
from the catalogue. The next node opens its topics and removes deleted ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import shutil
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.cluster.access import NamespaceLimits, Tally, check_limits
from penstock.core.errors import (
    LogOfflineError,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.ipc import messages as ms
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.partitions import Partitions
from penstock.server.node.tables import Tables
from penstock.server.node.topic_catalog import (
    Catalog,
    CatalogDocument,
    TopicRecord,
    check_not_internal,
)

logger = logging.getLogger("penstock.node")

TOPICS_BYTES_MAX: Final = 48 * 1024
"""About how much of a message a page of topics takes at most."""
REMOVE_TRIES: Final = 5
_TOPIC_BYTES: Final = 560
_PAGE_BYTES: Final = 5

_T = TypeVar("_T")


class TopicRequests:
    """The requests, and the deletions that go on behind them."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        catalog: Catalog,
        partitions: Partitions,
        limits: Callable[[], Sequence[NamespaceLimits]] = tuple,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`limits`: those of namespaces, as they are at the moment."""
        self._config = config
        self._folder = folder
        self._tables = tables
        self._catalog = catalog
        self._partitions = partitions
        self.limits = limits
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._deletions: dict[str, asyncio.Task[None]] = {}
        self._jobs: set[asyncio.Future[None]] = set()
        self._is_closed = False
        for topic in catalog.topics.values():
            partitions.add(topic)
        for topic in catalog.deleting.values():
            self._begin_deletion(topic)

    @property
    def count(self) -> int:
        return self._catalog.count

    @property
    def infos(self) -> list[ms.TopicInfo]:
        """The topics that users made."""
        return [topic.info for topic in self._catalog.topics.values() if not topic.is_internal]

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that is there."""
        return self._catalog.names.get(topic_id)

    def has(self, name: str) -> bool:
        return name in self._catalog.topics

    @property
    def are_cleaned(self) -> bool:
        """Whether a topic has retention or is compacted."""
        found = (topic.settings for topic in self._catalog.topics.values())
        return any(settings.deletes or settings.compacts for settings in found)

    async def find(self, name: str) -> ms.TopicFound:
        """A topic, once each of its partitions is open or known to be offline: before that, its
        pages may still tell of the boot before."""
        topic = self._catalog.find(name)
        await self._wait_open(topic, topic.pages)
        return ms.TopicFound(self._catalog.find(name).info)

    def listed(
        self, request: ms.ListTopics, sees: Callable[[str], bool] = lambda _name: True
    ) -> ms.Topics:
        """The topics behind `after` that the client `sees`, as many as one message takes."""
        names = sorted(
            name
            for name, topic in self._catalog.topics.items()
            if name > request.after and (request.internal or not topic.is_internal) and sees(name)
        )
        found: list[ms.TopicInfo] = []
        room = TOPICS_BYTES_MAX
        for name in names[: ms.TOPICS_PER_PAGE]:
            topic = self._catalog.topics[name]
            room -= _TOPIC_BYTES + len(name) + _PAGE_BYTES * len(topic.pages)
            if room < 0 and found:
                break
            found.append(topic.info)
        return ms.Topics(found, more=len(found) < len(names))

    async def create(self, request: ms.CreateTopic) -> ms.TopicFound:
        def plan() -> tuple[CatalogDocument, TopicRecord]:
            planned = self._catalog.plan_create(
                request.name, request.settings, self._config, self._tables.is_page_free
            )
            self._check_limits(request.name, Tally(1, request.settings.partitions))
            return planned

        return await self._create(plan)

    def _check_limits(self, name: str, more: Tally) -> None:
        partitions = {topic.name: len(topic.pages) for topic in self._catalog.topics.values()}
        check_limits(self.limits(), name, more, partitions)

    async def ensure_internal(self, name: str, settings: ms.TopicSettings) -> ms.TopicInfo:
        """A topic of the node's own, made if it is not there, open. Raises `LogOfflineError`."""
        if not self.has(name):
            with contextlib.suppress(TopicExistsError):  # somebody else was faster
                await self._create(
                    lambda: self._catalog.plan_internal(name, settings, self._tables.is_page_free)
                )
        found = await self.find(name)
        topic = self._catalog.find(name)
        self._raise_failure(topic, topic.pages, "opened")
        return found.topic

    async def _create(
        self, plan: Callable[[], tuple[CatalogDocument, TopicRecord]]
    ) -> ms.TopicFound:
        async with self._lock:
            document, topic = plan()
            await self._write(document)
            await self._off_loop(self._make_folders, topic)
            self._partitions.add(topic)
        logger.info(
            "topic %s created: %d partitions",
            topic.name,
            len(topic.pages),
            extra={"topic": topic.name},
        )
        self._partitions.open(topic)
        try:
            await self._wait_open(topic, topic.pages)
            self._raise_failure(topic, topic.pages, "created")
        except LogOfflineError:
            await self._delete(topic.name)  # so that it can be tried again under its name
            raise
        return ms.TopicFound(topic.info)

    async def alter(self, request: ms.AlterTopic) -> ms.TopicFound:
        check_not_internal(request.name)
        async with self._lock:
            before = self._catalog.find(request.name)
            document, topic = self._catalog.plan_alter(
                request.name, request.settings, self._config, self._tables.is_page_free
            )
            self._check_limits(request.name, Tally(0, len(topic.pages) - len(before.pages)))
            await self._write(document)
            await self._off_loop(self._make_folders, topic)
            self._partitions.add(topic)
        logger.info(
            "topic %s altered: %s", topic.name, request.settings, extra={"topic": topic.name}
        )
        self._partitions.open(topic)
        new = topic.pages[len(before.pages) :]
        await self._wait_open(topic, new)
        self._raise_failure(topic, new, "given more partitions")
        return ms.TopicFound(topic.info)

    async def delete(self, name: str) -> ms.Done:
        check_not_internal(name)
        task = await self._delete(name)
        return await self._until_gone(name, task)

    async def _wait_deleted(self, name: str, topic_id: str) -> ms.Done:
        """Until the files of a topic that is being deleted are gone."""
        task = self._deletions.get(topic_id)
        return await self._until_gone(name, task) if task is not None else ms.Done()

    async def _until_gone(self, name: str, task: asyncio.Task[None]) -> ms.Done:
        done, _ = await asyncio.wait([task], timeout=self._config.topic_timeout)
        if not done:
            raise PenstockTimeout(
                f"topic {name!r} is deleted, but its files are not gone yet after "
                f"{self._config.topic_timeout:g} s (topic_timeout): the node goes on removing them"
            )
        return ms.Done()

    async def _wait_open(self, topic: TopicRecord, pages: Sequence[int]) -> None:
        """Waits until each page is open or failed. Raises where the topic is gone, or where no
        further page was opened for so long. A thousand of them take their time on a slow device."""
        timeout = self._config.topic_timeout
        left, answered = len(pages) + 1, False
        while not answered and len(self._partitions.opening(pages)) < left:
            left = len(self._partitions.opening(pages))
            answered = await self._partitions.wait_answered(pages, timeout)
        current = self._catalog.topics.get(topic.name)
        if current is None or current.topic_id != topic.topic_id:
            raise UnknownTopicError(f"topic {topic.name!r} was deleted in the meantime")
        if not answered:
            late = ", ".join(str(partition) for partition in self._partitions.opening(pages)[:10])
            raise PenstockTimeout(
                f"topic {topic.name!r} is not open yet after {timeout:g} s (topic_timeout): its "
                f"writers recover or restart, ask again; waiting for {late}"
            )

    def _raise_failure(self, topic: TopicRecord, pages: Sequence[int], verb: str) -> None:
        for page in pages:
            partition = self._partitions.live.get(page)
            if partition is not None and partition.failure is not None:
                raise LogOfflineError(
                    f"topic {topic.name!r} could not be {verb}: partition {partition.index} is "
                    f"offline: {partition.failure}"
                )

    # --- deletion goes on by itself, over writer deaths and node restarts ---
    async def _delete(self, name: str) -> asyncio.Task[None]:
        async with self._lock:
            document, topic = self._catalog.plan_delete(name)
            await self._write(document)
            task = self._begin_deletion(topic)
        logger.info("topic %s deleted", name, extra={"topic": name})
        self._partitions.close(topic)
        return task

    def _begin_deletion(self, topic: TopicRecord) -> asyncio.Task[None]:
        self._partitions.remove(topic)
        task = asyncio.get_running_loop().create_task(self._finish_deletion(topic))
        self._deletions[topic.topic_id] = task
        return task

    async def _finish_deletion(self, topic: TopicRecord) -> None:
        await self._partitions.wait_closed(topic.pages)
        try:
            for index in range(len(topic.pages)):
                folder = topic.folder(self._folder.path, index)
                await self._off_loop(remove_folder, folder)
            async with self._lock:
                await self._write(self._catalog.plan_forget(topic.topic_id))
        except (OSError, PenstockError) as error:
            logger.error(
                "files of the deleted topic %s stay until the next start: %s", topic.name, error,
                extra={"topic": topic.name},
            )  # fmt: skip
        self._deletions.pop(topic.topic_id, None)
        self._deleted(topic)

    def _deleted(self, topic: TopicRecord) -> None:
        """All that there was of it is gone from here."""

    # --- what waits for the device does so in a thread: the loop must not ---
    async def _write(self, document: CatalogDocument) -> None:
        """Make a plan durable, then true."""
        await self._off_loop(self._catalog.write, document)
        self._catalog.apply(document)
        self._on_change()

    def _make_folders(self, topic: TopicRecord) -> None:
        """One sync for all, where each writer would sync for each of its partitions."""
        paths = [topic.folder(self._folder.path, index) for index in range(len(topic.pages))]
        try:
            self._folder.make_folders(paths)
        except StorageError as error:  # the writers try again, and say it partition by partition
            logger.warning("topic %s: %s", topic.name, error)

    async def _off_loop(self, work: Callable[[_T], None], argument: _T) -> None:
        if self._is_closed:
            raise NotConnectedError("this node is stopping: ask again when it is back")
        job = asyncio.get_running_loop().run_in_executor(None, work, argument)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        await asyncio.shield(job)

    async def close(self) -> None:
        """Stops background work, which the next node takes up again, and waits for work that has
        begun. That must not reach into the folder when it is another node's."""
        self._is_closed = True
        for task in self._deletions.values():
            task.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)


def remove_folder(path: str) -> None:
    """Remove a partition's folder; one that is not there is gone already."""
    for left in reversed(range(REMOVE_TRIES)):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:  # the cleaner may just have begun a file
            if error.errno != errno.ENOTEMPTY or not left:
                raise
        else:
            return
