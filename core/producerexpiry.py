"""Chooses the producers that a log forgets, and the time for it.

    silent for 7 days           at each snapshot
    more than `producers_max`   the longest silent, some at a time

A producer with a lane is never forgotten (rule 3). Silence is counted in the log's own time, and
not before its believed one: append times jump with the wall clock.

Owns the time, and the count of forgotten producers. `producers` removes their state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container

from penstock.core.producers import PRODUCER_SILENCE_US, PRODUCER_TTL_US, ProducerTable

logger = logging.getLogger("penstock.core.log")


class ProducerExpiry:
    """Works on the producers of a `Log`, for it alone. Without `attached`, the producers that have
    a lane, none is forgotten."""

    def __init__(
        self,
        folder: str,
        producers_max: int,
        attached: Callable[[], Container[int]] | None,
        believed_us: Callable[[], int] | None,
    ) -> None:
        self._folder = folder
        self._attached = attached
        self._believed_us = believed_us
        self.due = producers_max
        """With more producers than this `expire_oldest` has something to do."""
        self.expired = 0
        """Producers that were forgotten since the log was opened."""

    def expire(self, producers: ProducerTable, now_us: int, limit: int) -> None:
        """Forget those that are long silent, and the longest silent of too many."""
        before = self._silent_before(now_us, PRODUCER_TTL_US)
        if self._attached is not None and producers.is_older(before):
            count = producers.expire(before, self._attached())
            self._count(count, "they were silent for 7 days")
        if len(producers) > self.due:
            self.expire_oldest(producers, now_us, limit)

    def expire_oldest(self, producers: ProducerTable, now_us: int, limit: int) -> None:
        """Forget the longest silent where there are more than `limit`, some at a time."""
        if self._attached is None:
            return
        attached = self._attached()
        keep, silent = limit - limit // 16, self._silent_before(now_us, PRODUCER_SILENCE_US)
        count = producers.expire_oldest(keep, attached, silent)
        if len(producers) > 2 * limit:
            count += producers.expire_oldest(keep, attached, now_us + 1)
        self.due = max(limit, len(producers) + limit // 16)
        self._count(count, f"there were more than producers_max={limit}")

    def _silent_before(self, now_us: int, silence_us: int) -> int:
        """The time of append before which one was silent for so long."""
        believed = now_us if self._believed_us is None else min(now_us, self._believed_us())
        return believed - silence_us

    def _count(self, count: int, why: str) -> None:
        if count:
            self.expired += count
            logger.info("%s: %d producers forgotten: %s", self._folder, count, why)
