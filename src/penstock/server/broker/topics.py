"""Topics of a broker: requested from the controller, and carried out here from its image.

    request ──► asked of the active controller ──► committed ──► image ──► topics.json ──► writers
       ▲                                                                        │
       └────────────── answered once this broker has it, and its replicas open ─┘

`topics.json` is a copy, so that logs are open before the quorum is. Passes carry out the image, one
at a time, each by the newest one. A pass writes the catalogue, makes folders and opens partitions.
It closes partitions without a replica here, and removes their folders. A pass that finds nothing
new does nothing, so any number of them may come. Nothing is done before this broker's image is
current: an old one may lack partitions of a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from penstock.cluster.access import NamespaceLimits, Tally
from penstock.cluster.controller import Image
from penstock.core.errors import (
    ClosedError,
    ConfigError,
    NotLeaderError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.server.broker.metadata_view import (
    TopicsView,
    hosts,
    pages_in_use,
    place_of,
    resolved,
    settings_of,
)
from penstock.server.broker.replica_list import KeptReplicas
from penstock.server.broker.topic_config import ClusterTopic, cluster_topic
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.partitions import Partitions
from penstock.server.node.tables import Tables
from penstock.server.node.topic_catalog import (
    Catalog,
    TopicRecord,
    check_not_internal,
    check_settings,
    check_topic_name,
)
from penstock.server.node.topics import TopicRequests, remove_folder
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum.read_barrier import read_barrier

logger = logging.getLogger("penstock.cluster")

PASS_RETRY: Final = 1.0
"""Seconds until a pass that failed (a full disk) is tried again."""
PAGE_TRIES: Final = 100


R = TypeVar("R")


class Asked(Protocol):
    """The quorum, as far as it is asked here."""

    @property
    def image(self) -> Image: ...

    @property
    def applied(self) -> int: ...

    async def ask(self, request: cr.QuorumRequest[R], timeout: float) -> R: ...


class ClusterTopics(TopicRequests):
    """The topics of a broker, from the controller's image."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        catalog: Catalog,
        partitions: Partitions,
        limits: Callable[[], Sequence[NamespaceLimits]],
        on_change: Callable[[], None],
        *,
        quorum: Asked,
        let_go: Callable[[int], None],
    ) -> None:
        """`let_go(page)`: no replica of that partition is here any more, if one was."""
        assert config.node_id is not None
        self._broker = config.node_id
        self._quorum = quorum
        self._let_go = let_go
        self._view = TopicsView()
        self._image: Image | None = None
        self._passes = 0
        self._wanted = 0
        self._wake = asyncio.Event()
        self._passed = asyncio.Event()
        self._dropping: dict[int, asyncio.Task[None]] = {}
        self._barred: frozenset[int] = frozenset()
        """Pages that were being dropped when the pass under way looked for missing partitions. It
        makes no folders for them, so it opens none of them, though the drop may end before it does.
        """
        self._kept = KeptReplicas(folder)
        self.lost = self._kept.lost
        """Replicas whose folders were here in an earlier life and were not when this one began."""
        if self.lost:
            logger.error(
                "%d partitions have lost their folders since the last run, partition %d of topic "
                "%s the first: what was in them comes from other brokers, if they have it",
                len(self.lost), self.lost[0][1], self.lost[0][0].hex(),
            )  # fmt: skip
        partitions.hosts = self.hosts
        super().__init__(config, folder, tables, catalog, partitions, limits, on_change)
        self._worker = asyncio.get_running_loop().create_task(self._work())

    # --- what the image says ---
    def heard(self, image: Image) -> None:
        """The image is current, and says something else about topics or places."""
        self._image = image
        self._wanted += 1
        self._wake.set()

    @property
    def is_settled(self) -> bool:
        """Whether what the image said last is carried out."""
        return self._image is not None and self._passes == self._wanted

    def hosts(self, topic: TopicRecord, index: int) -> bool:
        """Whether a partition is to be open here. Until an image is current: whether it was."""
        if self._image is None:
            return os.path.isdir(topic.folder(self._folder.path, index))
        page = topic.pages[index]
        is_dropped = page in self._dropping or page in self._barred
        if is_dropped or self._partitions.are_closing([page]):
            return False  # another pass comes when that is over
        return hosts(self._image, self._broker, place_of(topic, index))

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._image is None:
                continue  # a deletion that the last run began is over
            wanted = self._wanted
            try:
                await self._pass(self._image)
            except Exception as error:  # without passes a broker never admits clients
                is_known = isinstance(error, OSError | PenstockError)
                logger.error(
                    "what the controller says of topics is not carried out: %s",
                    error if is_known else repr(error), exc_info=not is_known,
                )  # fmt: skip
                asyncio.get_running_loop().call_later(PASS_RETRY, self._wake.set)
                continue
            finally:
                self._barred = frozenset()
            self._passes = wanted
            self._passed.set()
            self._passed = asyncio.Event()

    async def _pass(self, image: Image) -> None:
        async with self._lock:
            records = self._view.records(image)
            before = {topic.topic_id: topic for topic in self._catalog.topics.values()}
            document, gone = self._catalog.plan_follow(records)
            if document is not None:
                await self._write(document)
            here = set(image.places.get(self._broker, ()))
            is_noted = self._kept.says(here)
            if not is_noted:
                await self._off_loop(self._kept.keep, here)
            for topic in gone:
                for page in topic.pages:
                    self._let_go(page)
                self._begin_deletion(topic)
                self._partitions.close(topic)
                logger.info("topic %s deleted", topic.name, extra={"topic": topic.name})
            self._barred = frozenset(self._dropping)
            missing = {topic.topic_id: self._missing(topic) for topic in records}
            for topic in records:
                await self._make_room(topic, missing[topic.topic_id])
            if not is_noted:  # before anything is in them
                await self._off_loop(self._kept.note, here)
            for topic in records:
                if missing[topic.topic_id] or topic != before.get(topic.topic_id):
                    self._partitions.add(topic)
                    self._partitions.open(topic)
            self._drop_strangers(image)
            if not self._kept.says(here):  # a folder that is not there yet
                asyncio.get_running_loop().call_later(PASS_RETRY, self._wake.set)

    def _missing(self, topic: TopicRecord) -> list[int]:
        """Those of its partitions that are to be open here, and are not."""
        live = self._partitions.live
        return [
            index
            for index, page in enumerate(topic.pages)
            if page not in live and self.hosts(topic, index)
        ]

    async def _make_room(self, topic: TopicRecord, missing: Sequence[int]) -> None:
        if not missing:
            return
        paths = [topic.folder(self._folder.path, index) for index in missing]
        for index, path in zip(missing, paths, strict=True):
            if not os.path.isdir(path):
                self._begin_empty(topic, index)
        await self._off_loop(self._make_these, paths)

    def _begin_empty(self, topic: TopicRecord, index: int) -> None:
        """Clears the page of a partition whose folder is gone. Its old numbers must not look like
        damage of the log that begins in its place. No writer has the page now."""
        page = self._tables.page(topic.pages[index])
        if page.identity == place_of(topic, index) and page.status != lo.STATUS_ABSENT:
            page.let_go(deleted=False)

    def _make_these(self, paths: Iterable[str]) -> None:
        with contextlib.suppress(PenstockError):  # its writer tries again, and says why
            self._folder.make_folders(paths)

    def _drop_strangers(self, image: Image) -> None:
        """Close and remove partitions that other brokers have now."""
        for page, partition in list(self._partitions.live.items()):
            place = place_of(partition.topic, partition.index)
            if place in image.partitions and not hosts(image, self._broker, place):
                logger.info("%s is no longer on this broker", partition)
                self._let_go(page)
                self._partitions.let_go(page)
                folder = partition.topic.folder(self._folder.path, partition.index)
                task = asyncio.get_running_loop().create_task(self._drop(page, folder))
                self._dropping[page] = task

    async def _drop(self, page: int, folder: str) -> None:
        try:
            await self._partitions.wait_closed([page])
            await self._off_loop(remove_folder, folder)
        except (OSError, PenstockError) as error:
            logger.error("%s is not removed before the next start: %s", folder, error)
        finally:
            self._dropping.pop(page, None)
            self._wake.set()  # it may have been given back meanwhile

    def _deleted(self, topic: TopicRecord) -> None:
        self._wake.set()

    # --- requests ---
    async def find(self, name: str) -> ms.TopicFound:
        """A topic that the cluster has, its replicas here open."""
        if not self.has(name):
            await self._catch_up()
        return await super().find(name)

    async def create(self, request: ms.CreateTopic) -> ms.TopicFound:
        check_topic_name(request.name)
        check_settings(request.settings, self._config)
        if self.count >= self._config.topics_max:
            raise ResourceLimitError(
                f"the cluster has {self.count} topics, the bound topics_max of this broker: delete "
                "some, or start its brokers with a larger one"
            )
        self._check_limits(request.name, Tally(1, request.settings.partitions))
        self._check_room(request.settings.partitions)
        return await self._make(request.name, resolved(request.settings, self._brokers_meant))

    def _check_room(self, more: int) -> None:
        known = sum(len(info.pages) for info in self.infos)
        if known + more > self._config.partitions_max:
            raise ResourceLimitError(
                f"{more} more partitions would make {known + more} in the cluster, over the bound "
                f"partitions_max={self._config.partitions_max} of this broker: delete topics, ask "
                "for fewer, or start its brokers with a larger one"
            )

    async def ensure_internal(self, name: str, settings: ms.TopicSettings) -> ms.TopicInfo:
        if not self.has(name):
            await self._catch_up()
        if not self.has(name):
            # With as many replicas as the cluster is meant to have: nobody gives it more by itself.
            try:
                await self._make(name, resolved(settings, self._brokers_meant))
            except ConfigError as error:
                raise NotLeaderError(f"{name} can not be made yet: {error}") from error
            except TopicExistsError:
                pass  # somebody else was faster
        try:
            found = await self.find(name)
        except UnknownTopicError as error:  # decided, and not yet known here
            raise NotLeaderError(f"{name} is being made: {error}") from error
        topic = self._catalog.find(name)
        self._raise_failure(topic, topic.pages, "opened")
        return found.topic

    @property
    def _brokers_meant(self) -> int:
        """How many brokers the cluster has when all are up."""
        return len({*self._config.voters, *self._quorum.image.brokers})

    async def _make(self, name: str, settings: ms.TopicSettings) -> ms.TopicFound:
        if self.has(name):
            raise TopicExistsError(
                f"topic {name!r} exists with {len(self._catalog.find(name).pages)} partitions: "
                "choose another name, or delete it first"
            )
        pages = await self._take_pages(settings.partitions)
        topic_id = os.urandom(16)
        factor, min_insync = settings.replication_factor, settings.min_insync_replicas
        assert factor is not None
        assert min_insync is not None
        request = cr.CreateTopic(
            name, topic_id, settings.partitions, factor, min_insync,
            ClusterTopic(pages, settings).encode(), is_synced=settings.durability == "fsync",
        )  # fmt: skip
        await self._ask(request)
        logger.info(
            "topic %s created: %d partitions", name, settings.partitions, extra={"topic": name}
        )
        await self._carried_out(lambda: topic_id in self._catalog.names, f"topic {name!r}")
        topic = self._catalog.find(name)
        await self._wait_open(topic, topic.pages)
        self._raise_failure(topic, topic.pages, "opened on this broker")
        return ms.TopicFound(topic.info)

    async def alter(self, request: ms.AlterTopic) -> ms.TopicFound:
        check_not_internal(request.name)
        before = (await self.find(request.name)).topic
        check_settings(request.settings, self._config)
        topic_id, known = self._quorum.image.topic(request.name)
        kept = cluster_topic(known.config)
        factor = self._quorum.image.replication_factor(topic_id)
        settings = self._altered(request, settings_of(kept, known.partitions, factor))
        more = settings.partitions - known.partitions
        self._check_limits(request.name, Tally(0, more))
        self._check_room(more)
        new = await self._take_pages(max(0, settings.partitions - len(kept.pages)))
        config = ClusterTopic([*kept.pages, *new], settings).encode()
        min_insync = settings.min_insync_replicas
        assert min_insync is not None
        await self._ask(cr.ConfigureTopic(request.name, min_insync, config, was=known.config))
        if more:
            await self._ask(cr.AddPartitions(request.name, settings.partitions))
        logger.info("topic %s altered: %s", request.name, settings, extra={"topic": request.name})

        def is_here() -> bool:
            """It, or what somebody else made of the topic since."""
            topic = self._catalog.topics.get(request.name)
            return (
                topic is None
                or topic.settings == settings
                or (topic.settings != before.settings and len(topic.pages) >= settings.partitions)
            )

        await self._carried_out(is_here, f"the change of topic {request.name!r}")
        topic = self._catalog.find(request.name)
        if bytes.fromhex(topic.topic_id) != topic_id:
            raise UnknownTopicError(f"topic {request.name!r} was deleted in the meantime")
        await self._wait_open(topic, topic.pages)
        self._raise_failure(topic, topic.pages, "changed on this broker")
        return ms.TopicFound(topic.info)

    @staticmethod
    def _altered(request: ms.AlterTopic, known: ms.TopicSettings) -> ms.TopicSettings:
        settings, name = request.settings, request.name
        if settings.partitions < known.partitions:
            raise ConfigError(
                f"topic {name!r} has {known.partitions} partitions and cannot shrink to "
                f"{settings.partitions}: create another topic and copy"
            )
        if settings.replication_factor not in (None, known.replication_factor):
            raise ConfigError(
                f"topic {name!r} has replication_factor={known.replication_factor}: its partitions "
                f"get more or fewer by `penstock cluster reassign {name} --replication-factor "
                f"{settings.replication_factor}`"
            )
        if "fsync" in (settings.durability, known.durability) and (
            settings.durability != known.durability
        ):
            raise ConfigError(
                f"topic {name!r} has durability {known.durability!r}, and in a cluster 'fsync' is "
                "neither given nor taken later: create another topic and copy"
            )
        settings = replace(settings, replication_factor=known.replication_factor)
        if settings.min_insync_replicas is None:
            settings = replace(settings, min_insync_replicas=known.min_insync_replicas)
        return settings

    async def delete(self, name: str) -> ms.Done:
        check_not_internal(name)
        if not self.has(name):
            await self._catch_up()
        topic = self._catalog.find(name, to_delete=True)
        await self._wait_open(topic, topic.pages)
        topic_id = self._catalog.find(name, to_delete=True).topic_id
        await self._ask(cr.DeleteTopic(name))

        def is_gone() -> bool:
            topic = self._catalog.topics.get(name)
            return topic is None or topic.topic_id != topic_id

        await self._carried_out(is_gone, f"the end of topic {name!r}")
        return await self._wait_deleted(name, topic_id)

    # --- the controller ---
    async def _ask(self, request: cr.QuorumRequest[R]) -> R:
        return await self._quorum.ask(request, self._config.topic_timeout)

    async def _take_pages(self, count: int) -> list[int]:
        """Pages that nobody else gets: numbers of one counter of the cluster, which runs round, so
        that a page is not used again soon."""
        pages: list[int] = []
        for _ in range(PAGE_TRIES):
            if len(pages) == count:
                return pages
            wanted = count - len(pages)
            first = await self._ask(cr.Pages(wanted))
            used = pages_in_use(self._quorum.image)
            if len(used) + wanted > lo.PAGES_MAX:
                raise ResourceLimitError(
                    f"{len(used)} of the {lo.PAGES_MAX} pages of a cluster are in use, and "
                    f"{count} partitions more are wanted: delete topics, or ask for fewer"
                )
            numbers = (number % lo.PAGES_MAX for number in range(first, first + wanted))
            pages += [page for page in numbers if page not in used]
        raise ResourceLimitError(
            f"no {count} pages of the {lo.PAGES_MAX} were found free after {PAGE_TRIES} tries: "
            "delete topics, or ask for fewer partitions"
        )

    async def _catch_up(self) -> None:
        """Have here what the controller decided up to now. Without one: what is here has to do."""
        with contextlib.suppress(PenstockTimeout, ClosedError, TimeoutError):
            await read_barrier(self._quorum, self._config.topic_timeout)
            wanted = self._wanted
            await self._carried_out(lambda: self._passes >= wanted, "what was decided")

    async def _carried_out(self, is_so: Callable[[], bool], what: str) -> None:
        """Until this broker has done what the controller decided."""
        timeout = self._config.topic_timeout

        async def wait() -> None:
            while not is_so():
                await self._passed.wait()

        try:
            await asyncio.wait_for(wait(), timeout)
        except TimeoutError:
            raise PenstockTimeout(
                f"{what} is decided, but not carried out on broker {self._broker} after "
                f"{timeout:g} s (topic_timeout): it goes on, ask again"
            ) from None

    async def close(self) -> None:
        self._worker.cancel()
        for task in list(self._dropping.values()):
            task.cancel()
        await super().close()
