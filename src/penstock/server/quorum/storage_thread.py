"""The thread that carries out raft's writes, beside the event loop (rule 26).

While it syncs, further writes gather, and the next sync takes all of them. Where the disk refuses,
the failed writes are tried again in a new file. It tries for as long as there is no room, and once
where the device is ill. Then it calls `failed`, and stores nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.cluster.raft import Write
from penstock.core.errors import PenstockError, StorageError
from penstock.server.quorum.raft_storage import RaftDisk

logger = logging.getLogger("penstock.quorum")

RETRY: Final = 0.5
"""Seconds between two tries while there is no room."""
STOP_WITHIN: Final = 10.0


class Storing:
    """`stored` is told, in the loop, the number of the last write that is on the device."""

    def __init__(
        self,
        disk: RaftDisk,
        stored: Callable[[int], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        self._disk = disk
        self._stored = stored
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Write] = deque()
        self._ready = threading.Condition()
        self._is_closing = False
        self.syncs = 0
        self.refusals = 0
        self._thread = threading.Thread(target=self._run, name="quorum storing", daemon=True)
        self._thread.start()

    def store(self, writes: list[Write]) -> None:
        with self._ready:
            self._waiting.extend(writes)
            self._ready.notify()

    def close(self) -> None:
        """Stores the writes given to it until now first, within a bound, then closes."""
        with self._ready:
            self._is_closing = True
            self._ready.notify()
        self._thread.join(STOP_WITHIN)
        if self._thread.is_alive():
            logger.warning("the disk did not store the quorum's log within %g s", STOP_WITHIN)
        else:
            self._disk.close()

    # --- the thread ---
    def _run(self) -> None:
        try:
            while (writes := self._next()) is not None:
                if not self._write(writes):
                    return
                self.syncs += 1
                self._tell(self._stored, writes[-1].number)
        except StorageError as error:
            self._tell(self._failed, error)
        except Exception as error:
            logger.exception("the quorum's log cannot be stored")
            self._tell(self._failed, PenstockError(f"the quorum's log cannot be stored: {error!r}"))

    def _next(self) -> list[Write] | None:
        with self._ready:
            self._ready.wait_for(lambda: self._waiting or self._is_closing)
            writes = list(self._waiting)
            self._waiting.clear()
        return writes or None

    def _write(self, writes: list[Write]) -> bool:
        """Whether it is done: else this is the end."""
        try:
            self._disk.write(writes)
            return True
        except StorageError as error:
            self._refused(error)
        while True:
            try:
                self._disk.again()
                return True
            except StorageError as error:
                if not error.retriable:
                    raise
                self._refused(error)
            with self._ready:
                if self._ready.wait_for(lambda: self._is_closing, RETRY):
                    return False

    def _refused(self, error: StorageError) -> None:
        self.refusals += 1
        logger.error("the quorum's log: %s", error)

    def _tell(self, callback: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            logger.debug("the loop is closed: nobody is told")
