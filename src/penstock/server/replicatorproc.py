"""The replicator process as the node of a broker sees it.

    started --Listens--> listening --silent for gateway_stall_timeout, does not read--> killed
       +------Failed---> the first one: the node does not start; later ones: tried again

Its death is the end of a life of the broker: what it knew of its followers is gone. So who hears of
it (`on_end`) registers anew, and a successor starts when `may_start` says that nothing of the dead
one is in lanes any more. A successor knows nothing: `on_begun` is to tell it everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

import msgspec

from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc.channel import Channel, close_fds
from penstock.server.childproc import ChildProcess
from penstock.server.config import NodeConfig
from penstock.server.datafolder import DataFolder
from penstock.server.replicator import messages as rm

logger = logging.getLogger("penstock.node")

REPLICATOR_COMMAND: Final = (sys.executable, "-m", "penstock.server.replicator_main")
START_TIMEOUT: Final = 20.0
LOOKS_A_STALL: Final = 4
START_RETRY: Final = 0.05
"""Seconds between two looks whether a successor may start."""
UNREAD_MAX: Final = 4 * lo.PAGES_MAX
"""Messages that wait for it. One that leaves more unread is stuck."""


class ReplicatorProcess(ChildProcess):
    """See the module."""

    name = "replicator"

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        *,
        on_begun: Callable[[], None],
        on_report: Callable[[rm.Listens | rm.ChangeIsr | rm.Lives], None],
        on_end: Callable[[], None],
        may_start: Callable[[], bool] = lambda: True,
        command: Sequence[str] = REPLICATOR_COMMAND,
    ) -> None:
        super().__init__(config, folder, lock_fd, command)
        self._on_begun = on_begun
        self._on_report = on_report
        self._on_end = on_end
        self._may_start = may_start
        self._channel: Channel | None = None
        self._unsent: deque[rm.Order] = deque()
        self._first: asyncio.Future[str] = self._loop.create_future()
        self._heard_at = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self.url = ""
        """Where it is fetched from; empty while there is none."""
        self.lives = rm.Lives()
        """The last that it said of itself."""

    @property
    def is_needed(self) -> bool:
        return self._config.node_id is not None

    def _arguments(self) -> Mapping[str, object]:
        return {
            "--config": msgspec.json.encode(asdict(self._config)).decode(),
            "--node-pid": os.getpid(),
            "--log-level": logging.getLevelName(logger.getEffectiveLevel()),
        }

    def counts(self) -> dict[str, int]:
        """For `node describe`."""
        return {"pid": self.pid, "restarts": self.restarts, **self.lives.counts}

    async def listening(self) -> str:
        """Wait until it listens for the first time: the URL. Raises what keeps it from that."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._first), START_TIMEOUT)
        except er.PenstockError:
            raise
        except TimeoutError:
            raise er.PenstockTimeout(
                f"the replicator does not listen after {START_TIMEOUT:g} s"
            ) from None

    # --- saying ---
    def tell(self, order: rm.Order) -> None:
        """In order, now or as soon as it reads; nothing where there is none."""
        channel = self._channel
        if channel is None or channel.closed:
            return
        self._unsent.append(order)
        if len(self._unsent) == 1:
            self._send()
        elif len(self._unsent) > UNREAD_MAX:
            logger.error(
                "the replicator (pid %d) leaves %d messages unread: it is killed",
                self.pid, len(self._unsent), extra={"pid": self.pid, "reason": "does not read"},
            )  # fmt: skip
            self._unsent.clear()
            self.kill()

    def _send(self) -> None:
        """What waits, as far as it goes."""
        channel = self._channel
        if channel is None or channel.closed:
            return
        while self._unsent:
            try:
                channel.send_nowait(self._unsent[0])
            except BlockingIOError:
                self._loop.add_writer(channel.fileno(), self._send)
                return
            except (er.PenstockError, OSError) as error:
                logger.debug("the replicator is told nothing more: %s", error)
                self._unsent.clear()
                break
            self._unsent.popleft()
        self._loop.remove_writer(channel.fileno())

    # --- its life ---
    def _start(self) -> None:
        if not self._is_closed and not self._may_start():
            self._timer = self._loop.call_later(START_RETRY, self._start)
            return
        super()._start()

    def _begun(self, lifeline: socket.socket) -> None:
        self._channel = Channel(lifeline, inbound=rm.Report)
        self._heard_at = time.monotonic()
        self._loop.add_reader(lifeline.fileno(), self._read)
        self._look()
        self._on_begun()

    def _ended(self) -> None:
        self._read()
        if self._channel is not None and not self._channel.closed:
            self._loop.remove_writer(self._channel.fileno())
        self._channel = None
        self._unsent.clear()
        self.url = ""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if not self._is_closed:
            self._on_end()

    def _read(self) -> None:
        while self._channel is not None and not self._channel.closed:
            try:
                received = self._channel.recv_nowait()
            except BlockingIOError:
                return
            except (er.PenstockError, OSError) as error:
                logger.error("the replicator (pid %d) says %s: it is killed", self.pid, error)
                self.kill()
                received = None
            if received is None:
                self._loop.remove_reader(self._channel.fileno())
                return
            report, fds = received
            close_fds(fds)
            self._heard_at = time.monotonic()
            self._take(report)

    def _take(self, report: rm.Report) -> None:
        if isinstance(report, rm.Failed):
            logger.error("the replicator (pid %d) leaves: %s", self.pid, report.message)
            if not self._first.done():
                kind = getattr(er, report.error, er.PenstockError)
                self._first.set_exception(kind(report.message))
                self._first.exception()  # nobody may be waiting any more
            return
        if isinstance(report, rm.Lives):
            self.lives = report
        elif isinstance(report, rm.Listens):
            self.url = report.url
            if not self._first.done():
                self._first.set_result(report.url)
        self._on_report(report)

    def _look(self) -> None:
        """Stopped is not dead: kill one that gives no sign of life (rule 8)."""
        bound = self._config.gateway_stall_timeout
        silent = time.monotonic() - self._heard_at
        if silent > bound:
            logger.error(
                "the replicator (pid %d) has given no sign of life for %.1f s: it is killed",
                self.pid, silent, extra={"pid": self.pid, "reason": "stalled"},
            )  # fmt: skip
            self.kill()
        self._looking = self._loop.call_later(bound / LOOKS_A_STALL, self._look)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        super().close()
