"""Main of the replicator process: one of a broker, until its node is gone or has enough of it.

Only the node starts it (see `server.process.replicator`), with one end of a socket whose other end
the node holds. There the node says which partitions there are, and gets the requests to the
controller. It is a client of its node too, for lanes, pages and a doorbell.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from typing import Final

from penstock.client.session import Session
from penstock.core.errors import PenstockError
from penstock.ipc import layout as lo
from penstock.ipc.channel import Channel
from penstock.ipc.paths import socket_in
from penstock.security.keys import load_cluster_key
from penstock.server.config import NodeConfig
from penstock.server.process.lifeline import begin
from penstock.server.replicator import messages as rm
from penstock.server.replicator.loop import Replicator

logger = logging.getLogger("penstock.replicator")

ATTACH_TIMEOUT: Final = 15.0


def main(argv: list[str] | None = None) -> int:
    """Run until told to leave (0), or until it cannot go on (1)."""
    options, config = begin("replicator", argv)
    line: Channel = Channel(socket.socket(fileno=options.lifeline_fd), inbound=rm.Order)
    try:
        return _serve(config, line)
    except Exception as error:
        logger.exception("the replicator cannot go on")
        name = type(error).__name__ if isinstance(error, PenstockError) else "PenstockError"
        with contextlib.suppress(PenstockError, OSError):
            line.send(rm.Failed(name, str(error)[:1000] or repr(error)[:1000]), timeout=1.0)
        return 1


def _serve(config: NodeConfig, line: Channel) -> int:
    assert config.cluster_listen is not None
    listen = f"{config.cluster_listen.rpartition(':')[0]}:{config.replication_port}"
    key = load_cluster_key(config.cluster_key) if config.cluster_key is not None else None
    place = socket_in(config.data_folder)
    session = Session.attach(
        place, lo.KIND_REPLICATOR, client_id="replicator", timeout=ATTACH_TIMEOUT
    )
    replicator = Replicator(config, listen, key, line, session)
    port = replicator.bind().rpartition(":")[2]
    url = f"tcp://{config.cluster_host}:{port}"  # as others reach it, which may be another address
    line.send(rm.Listens(url))
    logger.info("replicas are fetched at %s: pid %d", url, os.getpid())
    replicator.run()
    replicator.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
