"""The gateway process on the node's side. It runs while the node listens for other hosts, or serves
metrics.

    started --GatewayListens--> listening --silent for gateway_stall_timeout--> killed, replaced
        +-----GatewayFailed---> the first one: the node does not start; later ones: tried again

Its reports come over its lifeline. Its successors listen at the port that the first one got. A
broker's gateway gets the state of the cluster. Only the newest state counts, so one that it does
not read in time is left out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

import msgspec

from penstock.core import errors as er
from penstock.ipc import messages as ms
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.process.fork_server import Start, spawn
from penstock.server.process.listening_child import ListeningChild

logger = logging.getLogger("penstock.node")

GATEWAY_COMMAND: Final = (sys.executable, "-m", "penstock.server.gateway.main")
TELL_AGAIN: Final = 0.05
"""Seconds until one that did not read what it was told is told again."""


class GatewayProcess(ListeningChild):
    """The node's gateway process, and its successors."""

    name = "gateway"
    inbound = ms.GatewayReport
    start_timeout = 15.0

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        command: Sequence[str] = GATEWAY_COMMAND,
        start: Start = spawn,
        on_listening: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(config, folder, lock_fd, command, start)
        self._on_listening = on_listening
        self._settings = config
        self.url = ""
        """Where it listens, with the real port; empty before the first time."""
        self.metrics = ""
        """Where it serves metrics, likewise."""
        self._cluster: ms.GatewayCluster | None = None
        self._telling: asyncio.TimerHandle | None = None

    @property
    def is_needed(self) -> bool:
        return self._config.listen is not None or self._config.metrics is not None

    def _arguments(self) -> Mapping[str, object]:
        return {
            "--config": msgspec.json.encode(asdict(self._settings)).decode(),
            "--uuid": self._folder.record.uuid,
            "--node-pid": os.getpid(),
            "--log-level": logging.getLevelName(logger.getEffectiveLevel()),
        }

    def counts(self) -> dict[str, int]:
        """For `node describe`; empty where there is none."""
        return {"pid": self.pid, "restarts": self.restarts} if self.is_needed else {}

    async def listening(self) -> str:
        """Wait until it listens for the first time: the URL. Raises what keeps it from that."""
        if not self.is_needed:
            return ""
        return await super().listening()

    @property
    def _place(self) -> str:
        return f" at {self._config.listen or self._config.metrics}"

    def tell(self, cluster: ms.GatewayCluster) -> None:
        """How the cluster is now; successors are told, too."""
        self._cluster = cluster
        if self._telling is None:
            self._tell()

    def _tell(self) -> None:
        self._telling = None
        if self._channel is None or self._channel.closed or self._cluster is None:
            return
        try:
            self._channel.send_nowait(self._cluster)
        except BlockingIOError:
            self._telling = self._loop.call_later(TELL_AGAIN, self._tell)
        except (er.PenstockError, OSError) as error:  # its pidfd tells what becomes of it
            logger.warning("the gateway (pid %d) is not told of the cluster: %s", self.pid, error)

    def _begun(self, lifeline: socket.socket) -> None:
        super()._begun(lifeline)
        self._tell()

    def _take(self, report: ms.GatewayReport) -> None:
        if isinstance(report, ms.GatewayListens):
            self.url, self.metrics = report.url, report.metrics
            self._settings = replace(
                self._config, listen=report.url or None, metrics=report.metrics or None
            )
            self._listens(report.url)
            self._on_listening(report.url)
        elif isinstance(report, ms.GatewayFailed):
            self._failed(report.error, report.message)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        super().close()
