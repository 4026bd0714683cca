"""One thread in a writer process that runs fdatasync, so that appends go on meanwhile.

Jobs are made and finished by the writer's own thread; only their system calls run here. Between
them, what was appended is begun to be written out, of which nobody hears again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from penstock.core.log import SyncJob, Writeback
from penstock.ipc.doorbell import Doorbell

QUEUED_MAX: Final = 256
"""Jobs that wait, beyond which nothing more is begun before its sync."""


class Flusher:
    """Runs sync jobs in order; `finished()` hands them back. Ends with the process (daemon)."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._jobs: SimpleQueue[tuple[int, SyncJob] | Writeback | None] = SimpleQueue()
        self._done: deque[tuple[int, SyncJob]] = deque()
        self._thread: threading.Thread | None = None
        self._pages: set[int] = set()

    @property
    def pending(self) -> int:
        return len(self._pages)

    def holds(self, page: int) -> bool:
        """Whether a job of this page was submitted and not handed back yet."""
        return page in self._pages

    def submit(self, page: int, job: SyncJob) -> None:
        """Runs a job of a page, which has no other one under way."""
        self._start()
        self._pages.add(page)
        self._jobs.put((page, job))

    def begin(self, writeback: Writeback) -> None:
        """Runs it when its turn comes, unless too much waits: its sync does it then."""
        self._start()
        if self._jobs.qsize() < QUEUED_MAX:
            self._jobs.put(writeback)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            self._thread.start()

    def finished(self) -> list[tuple[int, SyncJob]]:
        """Jobs whose system calls have ended, well or not (`job` knows)."""
        found = []
        while self._done:
            found.append(self._done.popleft())
            self._pages.discard(found[-1][0])
        return found

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            if isinstance(item, Writeback):
                item.run()
                continue
            began = time.monotonic()
            item[1].run()
            item[1].seconds = time.monotonic() - began
            self._done.append(item)
            self._doorbell.ring()

    def stop(self, timeout: float) -> bool:
        """Lets the queued jobs end; False if they did not within `timeout` seconds."""
        if self._thread is None:
            return True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()
