"""Counts the bytes of namespaces on the disk, and publishes the partitions that may not have more.

    below --bytes >= disk_bytes_max--> full: writers refuse batches of its partitions
    full  --deleted, trimmed, cleaned, or another limit--> below

A thread measures files now and then. Between two looks the writers' counts of appended bytes are
added, so no record costs anything. A follower's bytes grow with its open segment, and are measured
once there is another one. It takes its leader's batches, even where its namespace is full here, but
it may lead at any moment. The less is left, the shorter is the time between looks: a namespace that
grows at `GROWTH` is found in time. Owns the set of full namespaces; deletes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.ipc import layout as lo
from penstock.ipc.hostslots import FullPages
from penstock.ipc.state import StatePage
from penstock.server.node.partitions import NodePartition
from penstock.server.security.access_store import Access

logger = logging.getLogger("penstock.node")

LOOK_MAX: Final = 1.0
LOOK_MIN: Final = 0.05
GROWTH: Final = 1 << 30
"""Bytes a second that a namespace may grow by, between two looks."""
MEASURE_EVERY: Final = 10.0
"""Seconds between two looks at the files of a namespace; of one that is full, `LOOK_MAX`."""


class LogSize(NamedTuple):
    """Bytes that producers had appended, and the open segment with its bytes."""

    appended: int
    segment: tuple[int, int] | None


@dataclass(slots=True)
class Measured:
    """A partition's files had that many bytes when it stood at `at`."""

    topic_id: str
    nbytes: int
    at: LogSize


class NamespaceBytes:
    """One for a node, on its event loop. `live`: its partitions by page."""

    def __init__(
        self,
        folder: str,
        live: Mapping[int, NodePartition],
        page: Callable[[int], StatePage],
        access: Access,
        slot: FullPages,
    ) -> None:
        self._folder = folder
        self._live = live
        self._page = page
        self._access = access
        self._slot = slot
        self._measured: dict[int, Measured] = {}
        self._measured_at = float("-inf")
        self._job: asyncio.Future[dict[int, Measured]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._full: set[str] = set()
        self._is_closed = False

    def start(self) -> None:
        """Look now, and from now on."""
        wait = self.look()
        self._timer = asyncio.get_running_loop().call_later(wait, self.start)

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._job is not None:
            await asyncio.wait([self._job])

    def look(self) -> float:
        """Publishes the namespaces that are full; returns in how many seconds to look again."""
        self._access.look(time.monotonic())
        limited = [each for each in self._access.limits if each.disk_bytes_max is not None]
        if not limited and not self._full:
            return LOOK_MAX
        pages = self._pages_in(each.namespace for each in limited)
        wanted = {page for found in pages.values() for page in found}
        self._measure(wanted)
        full: list[int] = []
        names: set[str] = set()
        left = GROWTH
        for each in limited:
            used, most = self._sum(pages[each.namespace]), each.disk_bytes_max
            assert most is not None
            if used >= most:
                full += pages[each.namespace]
                names.add(each.namespace)
            left = min(left, max(most - used, 0))
            self._tell(each.namespace, used, most)
        self._full = names
        self._slot.publish(full)
        return LOOK_MIN if self._job is not None else min(max(left / GROWTH, LOOK_MIN), LOOK_MAX)

    def used(self, namespace: str) -> int:
        """Bytes that are there, as far as they were measured."""
        return self._sum(self._pages_in([namespace])[namespace])

    def _pages_in(self, namespaces: Iterable[str]) -> dict[str, list[int]]:
        """Partitions are gone through once, however many namespaces there are."""
        found: dict[str, list[int]] = {namespace: [] for namespace in namespaces}
        for page, one in self._live.items():
            name = one.topic.name
            dot = name.find(".")
            while dot >= 0:  # a namespace may lie in another one
                if (pages := found.get(name[:dot])) is not None:
                    pages.append(page)
                dot = name.find(".", dot + 1)
        return found

    def _sum(self, pages: Iterable[int]) -> int:
        return sum(self._bytes_of(page) for page in pages)

    def _bytes_of(self, page: int) -> int:
        known = self._measured.get(page)
        if known is None or known.topic_id != self._live[page].topic.topic_id:
            return 0
        now, before = self._size_now(page), known.at
        grown = max(0, now.appended - before.appended)
        if now.segment and before.segment and now.segment[0] == before.segment[0]:
            grown = max(grown, now.segment[1] - before.segment[1])
        return known.nbytes + grown

    def _size_now(self, page: int) -> LogSize:
        state = self._page(page)
        return LogSize(state.counters()["bytes"], state.segment_now())

    def _tell(self, namespace: str, used: int, most: int) -> None:
        told = {"namespace": namespace, "bytes": used, "bound": most}
        if used >= most and namespace not in self._full:
            logger.warning(
                "namespace %s has %d bytes on the disk, its limit disk_bytes_max=%d: batches for "
                "its topics are refused. Delete or trim topics, shorten their retention, or "
                "`penstock quota limit %s --disk-bytes-max SIZE`", namespace, used, most, namespace,
                extra={**told, "reason": "disk_bytes_max"},
            )  # fmt: skip
        elif used < most and namespace in self._full:
            logger.info(
                "namespace %s has %d bytes on the disk, below its limit disk_bytes_max=%d: writing "
                "goes on", namespace, used, most, extra=told,
            )  # fmt: skip

    # --- files ---
    def _measure(self, pages: set[int]) -> None:
        """Begin to, where it is time; what is new at once."""
        if self._job is not None or self._is_closed:
            return
        now = time.monotonic()
        new = {page for page in pages if not self._is_known(page)}
        every = LOOK_MAX if self._full else MEASURE_EVERY
        if now - self._measured_at >= every:
            self._measured_at, new = now, pages
            self._measured = {page: one for page, one in self._measured.items() if page in pages}
        if not new:
            return
        places = [
            (page, one.topic.topic_id, one.topic.folder(self._folder, one.index))
            for page in new
            if (one := self._live[page]) is not None
        ]
        before = {page: self._size_now(page) for page in new}
        self._job = asyncio.get_running_loop().run_in_executor(None, _measure, places, before)
        self._job.add_done_callback(self._done)

    def _is_known(self, page: int) -> bool:
        known = self._measured.get(page)
        if known is None or known.topic_id != self._live[page].topic.topic_id:
            return False
        state = self._page(page)
        if state.status != lo.STATUS_FOLLOWING:
            return True
        was, now = known.at.segment, state.segment_now()
        return was is None or now is None or was[0] == now[0]

    def _done(self, job: asyncio.Future[dict[int, Measured]]) -> None:
        self._job = None
        if not job.cancelled() and job.exception() is None:
            self._measured.update(job.result())


def _measure(
    places: Iterable[tuple[int, str, str]], stood: Mapping[int, LogSize]
) -> dict[int, Measured]:
    return {
        page: Measured(topic_id, bytes_in(folder), stood[page]) for page, topic_id, folder in places
    }


def bytes_in(folder: str) -> int:
    """Bytes of a partition's files; of holes in them, none."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                total += min(found.st_size, found.st_blocks * 512)
    except OSError:
        return total  # not made yet, or gone
    return total
