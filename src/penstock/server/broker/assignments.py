"""Reports this broker's partitions to the replicator, and forwards its requests to the controller.

A partition is reported when its writer has opened it, with the controller's assignment. It is
reported again with each new assignment, and each time a writer opens it again. A new replicator
gets everything. Owns the reports that the present one has got. Decides nothing: the machines are
the replicator's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from penstock.cluster.controller import Image, Place
from penstock.cluster.replica.messages import IsrChange, PartitionAssignment
from penstock.core.errors import PenstockError
from penstock.server.broker.metadata_view import place_of
from penstock.server.broker.topics import Asked
from penstock.server.node.partitions import NodePartition, Partitions
from penstock.server.quorum.controller_requests import ChangeIsr
from penstock.server.replicator import messages as rm

logger = logging.getLogger("penstock.cluster")

ISR_TIMEOUT: Final = 5.0
"""Seconds for which the controller is asked for one change of an ISR; the replicator asks again."""


class Assignments:
    """The reports to the present replicator. `post` sends it a message; there may be no
    replicator."""

    def __init__(
        self,
        broker: int,
        folder: str,
        partitions: Partitions,
        quorum: Asked,
        post: Callable[[rm.Order], None],
    ) -> None:
        self._broker = broker
        self._folder = folder
        self._partitions = partitions
        self._quorum = quorum
        self._post = post
        self._image: Image | None = None
        self._pages: dict[Place, int] = {}
        """Those that a writer has opened."""
        self._told: dict[int, PartitionAssignment] = {}
        self._asking: dict[int, tuple[IsrChange, asyncio.Task[None]]] = {}
        partitions.on_open = self.opened

    # --- what happens ---
    def heard(self, image: Image, places: Iterable[Place] | None) -> None:
        """The image is current, and says something else about these places, or about all."""
        self._image = image
        for place in list(self._pages) if places is None else places:
            page = self._pages.get(place)
            if page is not None:
                self._assign(place, page)

    def begin(self) -> None:
        """A new replicator knows nothing, and nothing is to be said to it before `heard`."""
        self._image = None
        self._told.clear()

    def opened(self, page: int) -> None:
        """A writer has opened a partition: it has no role there yet."""
        partition = self._partitions.live[page]
        place = place_of(partition.topic, partition.index)
        self._pages[place] = page
        if page in self._told:
            self._post(rm.Opened(page))
        else:
            self._assign(place, page)

    def forget(self, page: int) -> None:
        """No replica of it is here any more, if one was."""
        for place in [place for place, known in self._pages.items() if known == page]:
            del self._pages[place]
        if self._told.pop(page, None) is not None:
            self._post(rm.Forget(page))

    def _assign(self, place: Place, page: int) -> None:
        image, partition = self._image, self._partitions.live.get(page)
        word = image.assignment(place) if image is not None else None
        if word is None or partition is None or self._broker not in word.replicas:
            return
        before = self._told.get(page)
        if word == before:
            return
        self._told[page] = word
        self._post(self._order(page, partition, place, word))
        if before is None:
            self._post(rm.Opened(page))

    def _order(
        self, page: int, partition: NodePartition, place: Place, word: PartitionAssignment
    ) -> rm.Assign:
        topic = partition.topic
        return rm.Assign(
            page, place[0], place[1], str(partition), topic.folder(self._folder, place[1]),
            topic.settings.durability == "fsync", word,
        )  # fmt: skip

    # --- what the replicator asks ---
    def change_isr(self, asked: rm.ChangeIsr) -> None:
        """Ask the controller, unless it is being asked just that."""
        known = self._asking.get(asked.page)
        if known is not None:
            if known[0] == asked.change:
                return
            known[1].cancel()
        task = asyncio.get_running_loop().create_task(self._change(asked))
        self._asking[asked.page] = asked.change, task

    async def _change(self, asked: rm.ChangeIsr) -> None:
        place = (asked.topic_id, asked.partition)
        try:
            answer = await self._quorum.ask(ChangeIsr(place, asked.change), ISR_TIMEOUT)
        except PenstockError as error:
            logger.info("no word of the controller about the ISR of page %d: %s", asked.page, error)
            return
        finally:
            known = self._asking.get(asked.page)
            if known is not None and known[0] == asked.change:
                del self._asking[asked.page]
        self._post(rm.IsrAnswer(asked.page, asked.change, answer))

    def close(self) -> None:
        for _, task in list(self._asking.values()):
            task.cancel()
