"""A helper process of the node, and the seat that it has: started when needed, replaced when dead.

    absent --needed--> running --pidfd--> dead --backoff--> running
                          +--lifeline closed--> stopped

Nothing depends on its life: it may be killed at any moment. It inherits the folder's lock, so that
no two of a kind, nor two nodes, are ever at one folder. Owns the process and its lifeline, a socket
of which each side sees the other's end; what is said over it is its kind's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from penstock.core.errors import PenstockError
from penstock.ipc.channel import pair
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.process.fork_server import HelperProcess, Start
from penstock.server.process.writer import describe_exit, open_pidfd_of_child

logger = logging.getLogger("penstock.node")

STOP_TIMEOUT: Final = 5.0


class ChildProcess(ABC):
    """One seat, and the process in it. A kind says what it is called, whether it is needed, and
    with which arguments it starts."""

    name: ClassVar[str]

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        command: Sequence[str],
        start: Start,
    ) -> None:
        self._config = config
        self._folder = folder
        self._lock_fd = lock_fd
        self._command = command
        self._start_process = start
        self._loop = asyncio.get_running_loop()
        self._process: HelperProcess | None = None
        self._pidfd = -1
        self._lifeline: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = config.restart_backoff
        self._started_at = 0.0
        self._is_closed = False
        self._is_renewed = False
        self._gone = asyncio.Event()
        self.restarts = 0

    # --- what a kind says ---
    @property
    @abstractmethod
    def is_needed(self) -> bool:
        """Asked before each start."""

    @abstractmethod
    def _arguments(self) -> Mapping[str, object]:
        """Returns the arguments of its command line beside the lifeline."""

    def _begun(self, lifeline: socket.socket) -> None:  # noqa: B027 - not every kind cares
        """A process runs, and `lifeline` is our end."""

    def _ended(self) -> None:  # noqa: B027 - likewise
        """It is dead; its lifeline is about to be closed."""

    # --- its life ---
    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def ensure(self) -> None:
        """Have it running if it is needed, now or when its backoff ends."""
        if self._process is None and self._timer is None and self.is_needed:
            self._start()

    def _start(self) -> None:
        self._timer = None
        if self._is_closed:
            return
        self._gone.clear()
        self._started_at = time.monotonic()
        theirs: socket.socket | None = None
        try:
            self._lifeline, theirs = pair()
            words = {"--lifeline-fd": theirs.fileno(), **self._arguments()}
            self._process = self._start_process(
                [*self._command, *(str(word) for each in words.items() for word in each)],
                [theirs.fileno(), self._lock_fd],
            )
            self._pidfd = open_pidfd_of_child(self._process.pid)
        except (PenstockError, OSError) as error:
            logger.error("the %s cannot be started: %s", self.name, error)
            self._let_go()
            self._restart_later()
            return
        finally:
            if theirs is not None:
                theirs.close()
        self._loop.add_reader(self._pidfd, self._died)
        logger.info("%s started: pid %d", self.name, self._process.pid)
        self._begun(self._lifeline)

    def _died(self) -> None:
        assert self._process is not None
        pid, status = self._process.pid, self._process.wait()
        self._ended()
        self._let_go()
        self._gone.set()
        if self._is_closed:
            logger.info("%s ended: %s", self.name, describe_exit(status))
            return
        if self._is_renewed:
            self._is_renewed = False
            self._start()
            return
        if time.monotonic() - self._started_at >= self._config.restart_healthy_after:
            self._backoff = self._config.restart_backoff
        logger.warning(
            "%s (pid %d) died: %s; its successor starts in %.2f s",
            self.name, pid, describe_exit(status), self._backoff,
            extra={"pid": pid, "reason": describe_exit(status)},
        )  # fmt: skip
        self._restart_later()

    def _restart_later(self) -> None:
        if not self._is_closed:
            self.restarts += 1
            self._timer = self._loop.call_later(self._backoff, self._start)
            self._backoff = min(self._backoff * 2, self._config.restart_backoff_max)

    def renew(self) -> None:
        """Have one in its place that starts with today's arguments: it sees its lifeline end."""
        if self._process is not None:
            self._is_renewed = True
            self._close_lifeline()

    def kill(self) -> None:
        """SIGKILL: its successor starts as after any death."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _let_go(self) -> None:
        """Give the descriptors back. A process that still lives sees its lifeline end."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._close_lifeline()
        self._pidfd = -1
        self._process = None

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            if self._lifeline.fileno() >= 0:
                self._loop.remove_reader(self._lifeline.fileno())
            self._lifeline.close()
            self._lifeline = None

    async def stop(self) -> None:
        """End it for good, and wait until it is dead."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            return
        self._close_lifeline()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), STOP_TIMEOUT)
        if self._process is not None:
            logger.warning("the %s (pid %d) does not leave: it is killed", self.name, self.pid)
            self.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), STOP_TIMEOUT)

    def close(self) -> None:
        """Let go of everything."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._let_go()
