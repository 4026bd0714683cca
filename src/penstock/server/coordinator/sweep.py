"""Finds transactions that stand open in a partition and are nobody's, and has them aborted.

The coordinator notes where a transaction writes before it is begun there, but not on the device: a
power cut can take the note and leave the BEGIN. Such a transaction would hold its partition's last
stable offset back for ever. State pages tell of the oldest that is open. Owns the look at them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.cluster.transactions import Transactions
from penstock.ipc import layout as lo
from penstock.ipc.state import StatePage
from penstock.server.coordinator.markers import Markers

logger = logging.getLogger("penstock.coordinator")

EVERY: Final = 10.0
"""Seconds between two looks."""


class Sweep:
    """For one life of the machine."""

    def __init__(
        self,
        transactions: Transactions,
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
        for topic_id, pages in self._pages().items():
            for partition, page in enumerate(pages):
                self._look_at(topic_id, partition, self._page(page))
        self._timer = asyncio.get_running_loop().call_later(EVERY, self.look)

    def _look_at(self, topic_id: bytes, partition: int, state: StatePage) -> None:
        oldest = state.oldest_open
        if (
            oldest is None
            or state.status != lo.STATUS_ONLINE
            or state.identity != (topic_id, partition)
            or self._transactions.is_open(oldest.producer_id, oldest.epoch)
        ):
            return
        self.swept += 1
        logger.warning(
            "a transaction of producer %d epoch %d stands open in partition %d of topic %s and is "
            "not known (any more): it is aborted",
            oldest.producer_id, oldest.epoch, partition, topic_id.hex(),
            extra={"producer_id": oldest.producer_id, "reason": "hung"},
        )  # fmt: skip
        self._markers.abort_hung(oldest.producer_id, oldest.epoch, (topic_id, partition))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
