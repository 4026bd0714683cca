"""A helper process that listens somewhere, and gives the node signs of life over its lifeline.

    started --listens--> listening --silent for gateway_stall_timeout--> killed, replaced
       |-silent for start_timeout--> killed, replaced
       +------fails----> the first one: the node does not start; later ones: tried again

Owns the channel, receiving, the silence that ends one, and the waiters for the first to listen. Its
subclass owns the messages on the channel.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.core import errors as er
from penstock.ipc.channel import Channel, close_fds
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.process.child import ChildProcess
from penstock.server.process.fork_server import Start

logger = logging.getLogger("penstock.node")

LOOKS_A_STALL: Final = 4


class ListeningChild(ChildProcess):
    """A helper process with a channel to the node. `inbound`: the messages of such a process."""

    inbound: ClassVar[Any]
    start_timeout: ClassVar[float]
    """Seconds within which the first one listens, and any one says something."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        command: Sequence[str],
        start: Start,
    ) -> None:
        super().__init__(config, folder, lock_fd, command, start)
        self._channel: Channel | None = None
        self._first: asyncio.Future[str] = self._loop.create_future()
        self._heard_at = 0.0
        self._has_spoken = False
        self._looking: asyncio.TimerHandle | None = None

    # --- what a kind says ---
    @abstractmethod
    def _take(self, report: Any) -> None:
        """It said that."""

    @property
    def _place(self) -> str:
        """Where it is to listen, for the error of a start that fails: ` at ...`, or nothing."""
        return ""

    # --- who waits ---
    async def listening(self) -> str:
        """Wait until it listens for the first time: the URL. Raises what keeps it from that."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._first), self.start_timeout)
        except er.PenstockError:
            raise
        except TimeoutError:
            raise er.PenstockTimeout(
                f"the {self.name} does not listen{self._place} after {self.start_timeout:g} s"
            ) from None

    def _listens(self, url: str) -> None:
        if not self._first.done():
            self._first.set_result(url)

    def _failed(self, error: str, message: str) -> None:
        if not self._first.done():
            self._first.set_exception(er.named(error, message))
            self._first.exception()  # nobody may be waiting any more

    # --- its life ---
    def _begun(self, lifeline: socket.socket) -> None:
        self._channel = Channel(lifeline, inbound=self.inbound)
        self._heard_at = time.monotonic()
        self._has_spoken = False
        self._loop.add_reader(lifeline.fileno(), self._read)
        self._look()

    def _ended(self) -> None:
        self._read()
        self._channel = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _read(self) -> None:
        while self._channel is not None and not self._channel.closed:
            try:
                received = self._channel.recv_nowait()
            except BlockingIOError:
                return
            except (er.PenstockError, OSError) as error:
                logger.error("the %s (pid %d) says %s: it is killed", self.name, self.pid, error)
                self.kill()
                received = None
            if received is None:
                self._loop.remove_reader(self._channel.fileno())
                return
            report, fds = received
            close_fds(fds)
            self._heard_at = time.monotonic()
            self._has_spoken = True
            self._take(report)

    def _look(self) -> None:
        """Stopped is not dead: kill one that gives no sign of life (rule 8). One that starts may
        take longer to say its first word."""
        stall = self._config.gateway_stall_timeout
        bound = stall if self._has_spoken else max(stall, self.start_timeout)
        silent = time.monotonic() - self._heard_at
        if silent > bound:
            logger.error(
                "the %s (pid %d) has given no sign of life for %.1f s (%s %g): it is killed",
                self.name, self.pid, silent,
                "gateway_stall_timeout" if self._has_spoken else "to start it has", bound,
                extra={"pid": self.pid, "reason": "stalled"},
            )  # fmt: skip
            self.kill()
        self._looking = self._loop.call_later(stall / LOOKS_A_STALL, self._look)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        super().close()
