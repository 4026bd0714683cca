"""Carries out the node's orders about old records; the writer calls it between its passes.

One order at a time and never within a pass, so that lanes wait for one cleaning at most. A running
sync delays an order: it is tried again when the sync has ended, for a bounded time.

Owns the orders that are not done yet. Leaves the logs to their roles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, UnknownTopicError
from penstock.core.segment import open_for_reading, segment_path
from penstock.core.storage import Storage
from penstock.core.swapping import CleanedSource, Prepared
from penstock.ipc.freed import Freed
from penstock.ipc.messages import CleanedSegment, LogCleaned, SwapLog, TrimLog

if TYPE_CHECKING:
    from penstock.ipc.partitionrole import PartitionRole

logger = logging.getLogger("penstock.writer")

TRY_FOR: Final = 8.0
"""Seconds for which an order is tried again; less than its asker waits."""

CleaningOrder = TrimLog | SwapLog


class Cleaning:
    """The orders of one writer process. `roles` are its partitions by page."""

    def __init__(
        self, roles: Mapping[int, PartitionRole], tell: Callable[[LogCleaned], None]
    ) -> None:
        self._roles = roles
        self._tell = tell
        self._orders: list[tuple[CleaningOrder, float]] = []
        self._blocked: set[int] = set()

    def take(self, order: CleaningOrder) -> None:
        """Have an order done by one of the next calls of `work`."""
        self._orders.append((order, time.monotonic() + TRY_FOR))

    def work(self, now: float) -> bool:
        """Do the next order; whether another one can be done at once. Those of a page are done in
        their order, and one that is in the way holds up its page alone."""
        free = (entry for entry in self._orders if entry[0].page not in self._blocked)
        entry = next(free, None)
        if entry is None:
            self._blocked.clear()
            return False
        order, until = entry
        role = self._roles.get(order.page)
        try:
            if role is None:
                raise UnknownTopicError(f"partition page {order.page} is not open in its writer")
            freed = self._obey(role, order)
        except PenstockError as error:
            if error.retriable and now < until:
                self._blocked.add(order.page)
                return True
            name = role.name if role is not None else f"page {order.page}"
            logger.warning("%s: not cleaned: %s", name, error)
            kind = type(error).__name__
            answer = LogCleaned(order.page, order.ticket, 0, 0, 0, False, kind, str(error)[:1000])
        else:
            answer = LogCleaned(order.page, order.ticket, *freed)
        self._orders.remove(entry)
        self._tell(answer)
        return bool(self._orders)

    @staticmethod
    def _obey(role: PartitionRole, order: CleaningOrder) -> Freed:
        now_us = time.time_ns() // 1000
        if isinstance(order, SwapLog):
            return role.swap(prepared(order.segment), order.records, now_us)
        freed = role.trim(order.before, now_us)
        logger.info(
            "%s: trimmed to %d: the log starts at %d, %d segments with %d bytes are gone",
            role.name, order.before, *freed[:3],
        )  # fmt: skip
        return freed


def prepared(segment: CleanedSegment) -> Prepared:
    sources = tuple(CleanedSource(*source) for source in segment.sources)
    return Prepared(segment.base, segment.end, segment.length, sources)


def segment_sizes(storage: Storage, folder: str, bases: Iterable[int]) -> dict[int, int]:
    """The sizes of the files of those of these segments that are there, by their bases."""
    sizes = {}
    for base in bases:
        if not storage.exists(segment_path(folder, base)):
            continue
        fd = open_for_reading(storage, folder, base)
        sizes[base] = storage.size(fd)
        storage.close(fd)
    return sizes
