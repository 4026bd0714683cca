"""Work that reads files, done by one thread beside the loop, which gets the results.

    waiting ──its asker's turn──► done by the thread ──► told, in the loop
       └── there is too much, and its asker has the most ──► refused

A busy asker delays only itself: askers have their turns one after another, a piece of work each.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from penstock.core.errors import ResourceLimitError
from penstock.server.gateway.events import Events

logger = logging.getLogger("penstock.gateway")

QUEUED_MAX: Final = 256

Work = Callable[[], Any]
Told = Callable[[Any], None]


class _Job(NamedTuple):
    work: Work
    done: Told
    failed: Told


class LookupThread:
    """The thread and its queue of work. `done` and `failed` are called in the loop's thread."""

    def __init__(self, events: Events) -> None:
        self._waiting: dict[Hashable, deque[_Job]] = {}
        """By asker, in the order of turns; none without work."""
        self._count = 0
        self._changed = threading.Condition()
        self._results: deque[tuple[Told, Any]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events.watch(self._bell, self._tell)
        threading.Thread(target=self._run, name="penstock-aside", daemon=True).start()

    def run(self, who: Hashable, work: Work, done: Told, failed: Told) -> None:
        """Have `work` done for that asker."""
        refused = None
        with self._changed:
            self._waiting.setdefault(who, deque()).append(_Job(work, done, failed))
            self._count += 1
            if self._count > QUEUED_MAX:
                most = max(self._waiting, key=lambda one: len(self._waiting[one]))
                refused = self._taken(most, self._waiting[most].pop)
            self._changed.notify()
        if refused is not None:
            refused.failed(
                ResourceLimitError(
                    f"{QUEUED_MAX} look-ups wait in the gateway (QUEUED_MAX), most of them of this "
                    "connection: ask again"
                )
            )

    def _taken(self, who: Hashable, take: Callable[[], _Job]) -> _Job:
        """One of that asker's, which has the last turn from now on."""
        job = take()
        self._count -= 1
        jobs = self._waiting.pop(who)
        if jobs:
            self._waiting[who] = jobs
        return job

    def _next(self) -> _Job:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            who, jobs = next(iter(self._waiting.items()))
            return self._taken(who, jobs.popleft)

    def _run(self) -> None:
        while True:
            work, done, failed = self._next()
            try:
                self._results.append((done, work()))
            except Exception as error:
                self._results.append((failed, error))
            os.eventfd_write(self._bell, 1)

    def _tell(self) -> None:
        os.eventfd_read(self._bell)
        while self._results:
            told, what = self._results.popleft()
            told(what)
