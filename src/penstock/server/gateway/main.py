"""Main of the gateway process: serves remote clients until the node is gone or has enough of it.

Only the node starts it (see `server.process.gateway`), with one end of a socket whose other end the
node holds. The gateway reports its address and signs of life there, and ends when that socket ends.
If the node dies while this process is stopped, the kernel kills it. The next node waits for that,
by the folder's lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel, close_fds
from penstock.server.config import NodeConfig
from penstock.server.gateway.loop import Gateway
from penstock.server.health.address import check_http_address
from penstock.server.process.lifeline import begin

if TYPE_CHECKING:
    from penstock.server.health.service import HealthService

logger = logging.getLogger("penstock.gateway")

BEAT: Final = 0.5
"""Seconds between two signs of life."""


def main(argv: list[str] | None = None) -> int:
    """Run until told to leave (0), or until it cannot go on (1)."""
    options, config = begin("gateway", argv, ["--uuid"])
    line: Channel = Channel(socket.socket(fileno=options.lifeline_fd), inbound=ms.GatewayOrder)
    try:
        gateway = Gateway(config, bytes.fromhex(options.uuid))
        url = gateway.bind()
        metrics = _metrics(config, gateway)
    except PenstockError as error:
        logger.error("the gateway cannot serve: %s", error)
        _tell(line, ms.GatewayFailed(type(error).__name__, str(error)))
        return 1
    _tell(line, ms.GatewayListens(url, str(metrics.address) if metrics is not None else ""))
    logger.info("remote clients are served at %s: pid %d", url or "no port", os.getpid())
    gateway.events.watch(line.fileno(), lambda: _hear(line, gateway))

    def beat() -> None:
        _tell(line, ms.GatewayLives())
        gateway.events.later(BEAT, beat)

    beat()
    gateway.run()
    if metrics is not None:
        metrics.close()
    return 0


def _hear(line: Channel, gateway: Gateway) -> None:
    """The node says something, or is gone, or wants the gateway to be."""
    try:
        while (received := line.recv_nowait()) is not None:
            cluster, fds = received
            close_fds(fds)
            gateway.cluster_is(cluster)
    except BlockingIOError:
        return
    except (PenstockError, OSError) as error:
        logger.error("what the node says is not understood: %s", error)
    gateway.stop()


def _metrics(config: NodeConfig, gateway: Gateway) -> HealthService | None:
    """Serve health and metrics, if that is wanted."""
    if config.metrics is None:
        return None
    from penstock.server.health.service import HealthService

    address = check_http_address(config.metrics, public=config.metrics_public)
    return HealthService.start(address, config.data_folder, gateway.counts)


def _tell(line: Channel, report: ms.GatewayReport) -> None:
    with contextlib.suppress(PenstockError, BlockingIOError):
        line.send_nowait(report)


if __name__ == "__main__":
    sys.exit(main())
