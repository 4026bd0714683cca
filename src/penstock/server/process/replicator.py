"""The replicator process on the side of a broker's node.

    started --Listens--> listening --silent for gateway_stall_timeout, does not read--> killed
       +------Failed---> the first one: the node does not start; later ones: tried again

Its death is the end of a life of the broker: its knowledge of followers is gone. So `on_end`
registers the broker again. A successor starts when `may_start` says that no frame of the dead one
is in lanes any more. A successor knows nothing: `on_begun` has to tell it everything.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

import msgspec

from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.process.fork_server import Start
from penstock.server.process.listening_child import ListeningChild
from penstock.server.replicator import messages as rm

logger = logging.getLogger("penstock.node")

REPLICATOR_COMMAND: Final = (sys.executable, "-m", "penstock.server.replicator.main")
START_RETRY: Final = 0.05
"""Seconds between two looks whether a successor may start."""
UNREAD_MAX: Final = 4 * lo.PAGES_MAX
"""Messages that wait for it. One that leaves more unread is stuck."""


class ReplicatorProcess(ListeningChild):
    """The broker's replicator process, and its successors."""

    name = "replicator"
    inbound = rm.Report
    start_timeout = 20.0

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        *,
        on_begun: Callable[[], None],
        on_report: Callable[[rm.Listens | rm.ChangeIsr | rm.Leaderless | rm.Lives], None],
        on_end: Callable[[], None],
        start: Start,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(config, folder, lock_fd, REPLICATOR_COMMAND, start)
        self._on_begun = on_begun
        self._on_report = on_report
        self._on_end = on_end
        self._may_start = may_start
        self._unsent: deque[rm.Order] = deque()
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
        """Sends the waiting messages, as far as the channel has room."""
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
        super()._begun(lifeline)
        self._on_begun()

    def _ended(self) -> None:
        channel = self._channel
        super()._ended()
        if channel is not None and not channel.closed:
            self._loop.remove_writer(channel.fileno())
        self._unsent.clear()
        self.url = ""
        if not self._is_closed:
            self._on_end()

    def _take(self, report: rm.Report) -> None:
        if isinstance(report, rm.Failed):
            logger.error("the replicator (pid %d) leaves: %s", self.pid, report.message)
            self._failed(report.error, report.message)
            return
        if isinstance(report, rm.Lives):
            self.lives = report
        elif isinstance(report, rm.Listens):
            self.url = report.url
            self._listens(report.url)
        self._on_report(report)
