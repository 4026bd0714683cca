"""Partitions that nobody leads: reports the log ends of their replicas here to the controller.

Where all members of the last ISR lost power, the controller chooses among them by these. It keeps
none of them in its log. So the broker reports again as long as its image says that nobody leads.
Owns the reports of the present replicator. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import Final

from penstock.cluster.controller import Image, Place, UncleanRecovery
from penstock.cluster.replica import LogEnd
from penstock.core.errors import PenstockError
from penstock.server.broker.kept_up import kept_up
from penstock.server.broker.offline_logs import RegisteredBroker
from penstock.server.quorum.controller_requests import ReportLogEnds

logger = logging.getLogger("penstock.cluster")

TELL_TIMEOUT: Final = 5.0
TELL_PAUSE: Final = 0.02
"""Seconds for which what replicas say gathers, before the controller is told."""
TELL_AGAIN: Final = 1.0


class LeaderlessLogs:
    """The log ends of leaderless partitions. Made in the node's loop."""

    def __init__(self, broker: int, quorum: RegisteredBroker) -> None:
        self._broker = broker
        self._quorum = quorum
        self._ends: dict[Place, LogEnd] = {}
        self._image: Image | None = None
        self._recovered: dict[Place, int] = {}
        """The leader epochs of unclean recoveries that the log told of."""
        self._wake = asyncio.Event()
        self._worker = kept_up(self._work, self._wake, "log ends")

    def told(self, place: Place, end: LogEnd) -> None:
        """The replicator says what a replica has."""
        self._ends[place] = end
        self._wake.set()

    def begin(self) -> None:
        """Another replicator begins, and says all of it again."""
        self._ends.clear()

    def heard(self, image: Image, places: Iterable[Place] | None) -> None:
        """The image is current, and says something else about these places, or about all."""
        self._image = image
        for place in image.places.get(self._broker, ()) if places is None else places:
            it = image.partitions.get(place)
            if it is None:
                self._ends.pop(place, None)
            elif it.unclean is not None and it.leader == self._broker:
                self._tell_of(image, place, it.unclean, it.leader_epoch)

    def _tell_of(
        self, image: Image, place: Place, unclean: UncleanRecovery, leader_epoch: int
    ) -> None:
        """This broker leads what was elected without a clean replica."""
        if unclean.leader_epoch != leader_epoch or self._recovered.get(place) == leader_epoch:
            return
        self._recovered[place] = leader_epoch
        name = image.topics[place[0]].name
        logger.warning(
            "%s-%d: no replica in sync is clean, and this broker leads in epoch %d, having most: "
            "what was committed from offset %s on may be missing (offsets below %d were in use)",
            name, place[1], leader_epoch, "?" if unclean.first is None else unclean.first,
            unclean.known_end,
            extra={"topic": name, "partition": place[1], "leader_epoch": leader_epoch,
                   "first": unclean.first, "known_end": unclean.known_end},
        )  # fmt: skip

    def _due(self) -> tuple[tuple[Place, LogEnd], ...]:
        """Returns the log ends to report to the controller now."""
        image = self._image
        if image is None:
            return ()
        found = []
        for place, end in sorted(self._ends.items()):
            it = image.partitions.get(place)
            if it is None or it.leader is not None or it.leader_epoch != end.leader_epoch:
                continue
            if self._broker in it.replicas:
                found.append((place, end))
        return tuple(found)

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(TELL_PAUSE)
            self._wake.clear()
            while ends := self._due():
                begun = time.monotonic()
                await self._tell(ends)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(begun + TELL_AGAIN - time.monotonic()):
                        await self._wake.wait()
                        await asyncio.sleep(TELL_PAUSE)
                self._wake.clear()

    async def _tell(self, ends: tuple[tuple[Place, LogEnd], ...]) -> None:
        epoch = self._quorum.broker_epoch
        if epoch is None:
            return
        try:
            await self._quorum.ask(ReportLogEnds(self._broker, epoch, ends), TELL_TIMEOUT)
        except PenstockError as error:
            logger.info("the controller does not know what leaderless logs have here: %s", error)

    def close(self) -> None:
        self._worker.cancel()
