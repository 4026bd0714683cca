"""The cleaner process as the node sees it: started when a topic needs it, replaced when dead.

    absent --a topic with retention or compaction--> running --pidfd--> dead --backoff--> running
                                                        +--lifeline closed--> stopped

Nothing depends on its life: it may be killed at any moment. It inherits the folder's lock, so that
no two of them, nor two nodes, are ever at one folder. Owns the process and its lifeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.errors import PenstockError
from penstock.server.config import NodeConfig
from penstock.server.datafolder import DataFolder
from penstock.server.writerproc import describe_exit, open_pidfd_of_child

logger = logging.getLogger("penstock.node")

CLEANER_COMMAND: Final = (sys.executable, "-m", "penstock.server.cleaner_main")
STOP_TIMEOUT: Final = 5.0


class CleanerProcess:
    """One seat, and the process in it. `is_needed` is asked before each start."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        is_needed: Callable[[], bool],
        command: Sequence[str] = CLEANER_COMMAND,
    ) -> None:
        self._config = config
        self._folder = folder
        self._lock_fd = lock_fd
        self._is_needed = is_needed
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._lifeline = -1
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = config.restart_backoff
        self._started_at = 0.0
        self._is_closed = False
        self._gone = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def ensure(self) -> None:
        """Have it running if a topic needs it, now or when its backoff ends."""
        if self._process is None and self._timer is None and self._is_needed():
            self._start()

    def _start(self) -> None:
        self._timer = None
        if self._is_closed:
            return
        self._gone.clear()
        self._started_at = time.monotonic()
        reader, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*self._command, *self._arguments(reader)],
                pass_fds=[reader, self._lock_fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._pidfd = open_pidfd_of_child(self._process.pid)
        except (PenstockError, OSError) as error:
            logger.error("the cleaner cannot be started: %s", error)
            self._let_go()
            self._restart_later()
            return
        finally:
            os.close(reader)
        self._loop.add_reader(self._pidfd, self._died)
        logger.info("cleaner started: pid %d", self._process.pid)

    def _arguments(self, lifeline: int) -> list[str]:
        values = {
            "--data": self._folder.path,
            "--uuid": self._folder.record.uuid,
            "--lifeline-fd": lifeline,
            "--interval": self._config.cleaner_interval,
            "--rate": self._config.cleaner_rate,
            "--log-format": self._config.log_format,
            "--log-level": logging.getLevelName(logger.getEffectiveLevel()),
        }
        return [str(word) for pair in values.items() for word in pair]

    def _died(self) -> None:
        assert self._process is not None
        pid, status = self._process.pid, self._process.wait()
        self._let_go()
        self._gone.set()
        if self._is_closed:
            logger.info("cleaner ended: %s", describe_exit(status))
            return
        if time.monotonic() - self._started_at >= self._config.restart_healthy_after:
            self._backoff = self._config.restart_backoff
        logger.warning(
            "cleaner (pid %d) died: %s; its successor starts in %.2f s",
            pid, describe_exit(status), self._backoff,
        )  # fmt: skip
        self._restart_later()

    def _restart_later(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(self._backoff, self._start)
            self._backoff = min(self._backoff * 2, self._config.restart_backoff_max)

    def _let_go(self) -> None:
        """Give the descriptors back. A process that still lives sees its lifeline end."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._pidfd = self._lifeline = -1
        self._process = None

    async def stop(self) -> None:
        """End it for good, and wait until it is dead."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), STOP_TIMEOUT)
        if self._process is not None:
            logger.warning("the cleaner (pid %d) does not leave: it is killed", self.pid)
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), STOP_TIMEOUT)

    def close(self) -> None:
        """Let go of everything."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._let_go()
