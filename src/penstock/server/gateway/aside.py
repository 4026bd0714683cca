"""Work that reads files, done by one thread beside the loop, which gets the results.

Bounded: what finds the queue full is refused.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Full, Queue
from typing import Any, Final

from penstock.core.errors import ResourceLimitError
from penstock.server.gateway.events import Events

logger = logging.getLogger("penstock.gateway")

QUEUED_MAX: Final = 256

Work = Callable[[], Any]
Told = Callable[[Any], None]


class Aside:
    """See the module. `done` and `failed` are called in the loop's thread."""

    def __init__(self, events: Events) -> None:
        self._work: Queue[tuple[Work, Told, Told]] = Queue(QUEUED_MAX)
        self._results: deque[tuple[Told, Any]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events.watch(self._bell, self._tell)
        threading.Thread(target=self._run, name="penstock-aside", daemon=True).start()

    def run(self, work: Work, done: Told, failed: Callable[[Exception], None]) -> None:
        try:
            self._work.put_nowait((work, done, failed))
        except Full:
            failed(
                ResourceLimitError(
                    f"{QUEUED_MAX} look-ups wait in the gateway (QUEUED_MAX): ask again"
                )
            )

    def _run(self) -> None:
        while True:
            work, done, failed = self._work.get()
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
