"""The offline logs of this broker, which take nothing; reports them to the controller.

    a writer's report, or a controller's word ─► does the controller know? ─no─► it is told

Only differences are reported, again until the controller's record agrees. So a lost, late or
doubled report does no lasting harm. A registration reports all that are offline then. Owns the set
of offline logs. The controller elects leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from penstock.cluster.controller import Image, Place
from penstock.core.errors import PenstockError
from penstock.server.broker.kept_up import kept_up
from penstock.server.broker.metadata_view import place_of
from penstock.server.broker.topics import Asked
from penstock.server.node.partitions import NodePartition
from penstock.server.quorum.controller_requests import Logs

logger = logging.getLogger("penstock.cluster")

TELL_TIMEOUT: Final = 5.0
TELL_PAUSE: Final = 0.1
"""Seconds until the controller's word is compared again: it may still be on its way."""


class RegisteredBroker(Asked, Protocol):
    """The quorum, and with which epoch this broker is registered there."""

    @property
    def broker_epoch(self) -> int | None: ...


class OfflineLogs:
    """The offline logs, and the reports about them. Made in the node's loop."""

    def __init__(self, broker: int, quorum: RegisteredBroker) -> None:
        self._broker = broker
        self._quorum = quorum
        self._offline: dict[Place, str] = {}
        self._image: Image | None = None
        self._doubtful: set[Place] = set()
        self._wake = asyncio.Event()
        self._worker = kept_up(self._work, self._wake, "offline logs")

    @property
    def places(self) -> tuple[Place, ...]:
        """Those that are offline, for a registration."""
        return tuple(sorted(self._offline))

    def noted(self, partition: NodePartition) -> None:
        """Its writer has opened it, or given up on it."""
        place = place_of(partition.topic, partition.index)
        if partition.offline:
            self._offline[place] = partition.offline
        else:
            self._offline.pop(place, None)
        self._doubt((place,))

    def heard(self, image: Image, places: Iterable[Place] | None) -> None:
        """The image is current, and says something else about these places, or about all."""
        self._image = image
        self._doubt(image.places.get(self._broker, ()) if places is None else places)

    def _doubt(self, places: Iterable[Place]) -> None:
        self._doubtful.update(filter(self._is_wrong, places))
        if self._doubtful:
            self._wake.set()

    def _is_wrong(self, place: Place) -> bool:
        """Whether the controller believes something else."""
        known = self._image.partitions.get(place) if self._image is not None else None
        if known is None or self._broker not in known.replicas:
            return False
        return (self._broker in known.offline) != (place in self._offline)

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._doubtful = set(filter(self._is_wrong, self._doubtful))
            epoch = self._quorum.broker_epoch
            if self._doubtful and epoch is not None:
                await self._tell(epoch, self._doubtful.intersection(self._offline))
            if self._doubtful:
                await asyncio.sleep(TELL_PAUSE)
                self._wake.set()

    async def _tell(self, epoch: int, offline: set[Place]) -> None:
        for place in offline:
            logger.error(
                "partition %d of topic %s is offline on this broker, others are to lead it: %s",
                place[1], place[0].hex(), self._offline[place],
            )  # fmt: skip
        online = self._doubtful - offline
        try:
            logs = Logs(self._broker, epoch, tuple(sorted(offline)), tuple(sorted(online)))
            await self._quorum.ask(logs, TELL_TIMEOUT)
        except PenstockError as error:
            logger.warning("the controller does not know which logs are offline here: %s", error)

    def close(self) -> None:
        self._worker.cancel()
