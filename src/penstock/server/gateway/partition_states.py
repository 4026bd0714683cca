"""The state of partitions for remote endpoints: pages of the node's state table on the wire.

Owns the leader epochs that each endpoint was told. Never waits; reads pages and `epochs` files
only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.cluster.frames import messages as fr
from penstock.core.epochs import EpochCache, load_epochs
from penstock.core.errors import PenstockError
from penstock.core.storage import Storage
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.server.gateway.membership import Membership

logger = logging.getLogger("penstock.gateway")

EPOCHS_TOLD_MAX: Final = 8000
"""Leader epochs in one message; pages for which there is no room tell theirs the next time."""
_EMPTY: Final = EpochCache()


class Known:
    """The partitions' folders, which of them are led here, and their leader epochs as last read:
    for all endpoints together."""

    def __init__(
        self,
        data_folder: Path | str,
        storage: Storage | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.storage = storage or Storage()
        self.membership = membership or Membership(None)
        self._data_folder = str(data_folder)
        self._epochs: dict[int, tuple[tuple[bytes, int, int], EpochCache]] = {}

    def folder_of(self, topic_id: bytes, partition: int) -> str:
        return f"{self._data_folder}/{topic_id.hex()}-{partition}"

    def epochs_of(
        self, page: int, topic_id: bytes, partition: int, leader_epoch: int
    ) -> EpochCache | None:
        """Read once for each `leader_epoch` that the page shows: the file is written before the
        page. None where it cannot be read now."""
        key = topic_id, partition, leader_epoch
        known = self._epochs.get(page)
        if known is not None and known[0] == key:
            return known[1]
        try:
            cache = load_epochs(self.storage, self.folder_of(topic_id, partition)) or _EMPTY
        except PenstockError as error:
            logger.warning("leader epochs of page %d are not readable: %s", page, error)
            return None
        self._epochs[page] = key, cache
        return cache


class PageStates:
    """The node's pages as one endpoint is told of them. `wide`: with counters (for admins).
    `may_know`: whether it may hear of the topic with that id."""

    def __init__(
        self,
        state: Region,
        known: Known,
        *,
        wide: bool = False,
        may_know: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self._state = state
        self._known = known
        self._wide = wide
        self._may_know = may_know
        self._told: dict[int, tuple[bytes, int, int]] = {}
        self._pages: dict[int, StatePage] = {}

    def page(self, index: int) -> StatePage:
        """The page itself. Raises ValueError outside the table."""
        page = self._pages.get(index)
        if page is None:
            page = self._pages[index] = StatePage(self._state, index)
        return page

    def shown(self, index: int) -> list[fr.PageState]:
        """Returns the state of a page that the endpoint named by itself. Returns nothing where it
        may not know the page's present partition."""
        state = self.of(index)
        if not state.topic_id or self._may_know(state.topic_id):
            return [state]
        self._told.pop(index, None)
        return []

    def of(
        self, index: int, *, wide: bool = False, epochs_max: int = EPOCHS_TOLD_MAX
    ) -> fr.PageState:
        """Returns the state of a page, with its leader epochs if this endpoint was not told of
        them."""
        page = self.page(index)
        identity = page.identity
        if identity is None:
            return fr.PageState(index, b"", 0, page.status, 0, 0, 0, 0, 0, 0, 0, 0)
        topic_id, partition = identity
        generation, leader_epoch = page.generation, page.leader_epoch
        # Each of these is published before the ones that it may not pass.
        log_start, durable, last_stable, high_watermark, log_end = page.ends()
        key = topic_id, partition, leader_epoch
        epochs: list[tuple[int, int]] = []
        if self._told.get(index) != key:
            cache = self._known.epochs_of(index, topic_id, partition, leader_epoch)
            entries = () if cache is None else cache.entries[-fr.EPOCHS_MAX :]
            if cache is not None and len(entries) <= epochs_max:
                self._told[index] = key
                epochs = list(entries)
        wide = wide or self._wide
        return fr.PageState(
            index, topic_id, partition, page.status, page.errno, generation, leader_epoch,
            log_start, durable, last_stable, high_watermark, log_end, epochs,
            list(page.counters().values()) if wide else [],
            list(page.cleaning().values()) if wide else [],
        )  # fmt: skip

    def named_in(self, body: ms.NodeMessage | lk.Reply) -> list[fr.PageState]:
        """Returns the states of the pages that an answer names."""
        pages: list[int] = []
        wide = isinstance(body, lk.PagesLookedUp)
        match body:
            case ms.TopicFound(topic=topic):
                pages = topic.pages
            case ms.Topics(topics=topics):
                pages = [page for topic in topics for page in topic.pages]
            case co.GroupAssignment(partitions=owned):
                pages = [each.page for each in owned]
            case (
                co.GroupDescription(partitions=described)
                | sh.ShareDescription(partitions=described)
            ):
                pages = [each.page for each in described]
            case lk.PagesLookedUp(pages=looked_at):
                pages = looked_at
        found: list[fr.PageState] = []
        room = EPOCHS_TOLD_MAX
        for index in islice(dict.fromkeys(pages), lo.PAGES_MAX):
            if not 0 <= index < lo.PAGES_MAX:
                continue  # a partition that has no page any more
            found.append(self.of(index, wide=wide, epochs_max=room))
            room -= len(found[-1].epochs)
        return found
