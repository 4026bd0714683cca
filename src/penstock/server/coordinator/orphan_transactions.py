"""Finds open transactions in a partition that are nobody's, and has them aborted.

The coordinator notes where a transaction writes before it is begun there, but not on the device: a
power cut can take the note and leave the BEGIN. Such a transaction would hold its partition's last
stable offset back for ever. State pages tell of the oldest that is open. Owns the look at them.

In a cluster each broker sees the pages of partitions that it leads. It tells the coordinator's
broker of transactions that have been open there for a while (`Suspecting`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from penstock.cluster.transactions import TransactionMachine
from penstock.core.errors import PenstockError
from penstock.ipc import layout as lo
from penstock.ipc.state import StatePage
from penstock.server.coordinator.brokers import SUSPECTS_MAX, Suspect
from penstock.server.coordinator.markers import Markers

logger = logging.getLogger("penstock.coordinator")

EVERY: Final = 10.0
"""Seconds between two looks."""


def open_in(
    pages: Mapping[bytes, Sequence[int]],
    page: Callable[[int], StatePage],
    grace_us: int,
    now_us: int,
) -> Iterator[Suspect]:
    """The oldest open transaction of each partition that is led here, unless it began within
    `grace_us`. One that begins after now does so by a clock that was wrong: it may be old."""
    for topic_id, numbers in pages.items():
        for partition, number in enumerate(numbers):
            state = page(number)
            oldest = state.oldest_open
            if (
                oldest is not None
                and not now_us - grace_us < oldest.began_us <= now_us
                and state.status == lo.STATUS_ONLINE
                and state.identity == (topic_id, partition)
            ):
                yield Suspect(oldest.producer_id, oldest.epoch, topic_id, partition)


class Sweep:
    """For one life of the machine."""

    def __init__(
        self,
        transactions: TransactionMachine,
        markers: Markers,
        pages: Callable[[], Mapping[bytes, Sequence[int]]],
        page: Callable[[int], StatePage],
    ) -> None:
        self._transactions = transactions
        self._markers = markers
        self._pages = pages
        self._page = page
        self._timer: asyncio.TimerHandle | None = None
        self.swept = 0

    def look(self) -> None:
        """One look at all partitions, and again in a while."""
        self.close()
        self.judge(open_in(self._pages(), self._page, 0, time.time_ns() // 1000))
        self._timer = asyncio.get_running_loop().call_later(EVERY, self.look)

    def judge(self, suspects: Iterable[Suspect]) -> None:
        """Have aborted what no decision knows of."""
        for producer_id, epoch, topic_id, partition in map(msgspec.structs.astuple, suspects):
            if self._transactions.is_open(producer_id, epoch):
                continue
            self.swept += 1
            logger.warning(
                "a transaction of producer %d epoch %d is open in partition %d of topic %s, and "
                "the coordinator does not know it (any more): it is aborted",
                producer_id, epoch, partition, topic_id.hex(),
                extra={"producer_id": producer_id, "reason": "hung"},
            )  # fmt: skip
            self._markers.abort_hung(producer_id, epoch, (topic_id, partition))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Suspecting:
    """Of a broker that is not the coordinator's. `tell` takes suspects there."""

    def __init__(
        self,
        pages: Callable[[], Mapping[bytes, Sequence[int]]],
        page: Callable[[int], StatePage],
        tell: Callable[[list[Suspect]], Awaitable[None]],
    ) -> None:
        self._pages = pages
        self._page = page
        self._tell = tell
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            now_us, grace_us = time.time_ns() // 1000, int(EVERY * 1e6)
            found = list(open_in(self._pages(), self._page, grace_us, now_us))[:SUSPECTS_MAX]
            if not found:
                continue
            try:
                await self._tell(found)
            except PenstockError as error:  # the next look finds them again
                logger.info("%d open transactions are not told of: %s", len(found), error)
            except Exception:
                logger.exception("%d open transactions are not told of", len(found))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
