"""The node's process: logging, signals, and the way from a command line to an exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import ConfigError, PenstockError
from penstock.server.config import NodeConfig
from penstock.server.node.attach_server import REFUSED
from penstock.server.node.log_format import configure
from penstock.server.node.moved_clock import MovedClock
from penstock.server.node.node import Node
from penstock.server.node.service_manager import ServiceManager
from penstock.server.process.fork_server import ForkServer, Start
from penstock.server.security.log_rate import LogRateLimit

logger = logging.getLogger("penstock.node")

_LEVELS: Final = {-2: logging.ERROR, -1: logging.WARNING, 0: logging.INFO, 1: logging.DEBUG}


def configure_logging(verbosity: int = 0, log_format: str = "text") -> None:
    """One line an event on stderr. Verbosity 1 adds details, -1 leaves warnings, -2 errors."""
    configure("node", _LEVELS[max(-2, min(1, verbosity))], log_format)


@dataclass(frozen=True, slots=True)
class Starter:
    """How the process that started the node goes on with it. `ready_fd` gets `ready` and a newline,
    and is closed, when clients are admitted. When the process `owner` dies, however it does, the
    node stops as if told to. `clock_fd`: see `moved_clock`. `forked` is called once the fork server
    is there: before it this process has no other threads."""

    ready_fd: int | None = None
    owner: int | None = None
    clock_fd: int | None = None
    forked: Callable[[], None] | None = None


def serve(config: NodeConfig, starter: Starter | None = None) -> int:
    """Run a node until SIGTERM, SIGINT or SIGHUP; the exit status.

    The first signal drains, syncs and closes; a second one leaves at once, and the next start
    recovers. SIGHUP does not hurry: terminals and shells send several. Under `nohup` it is nothing.
    """
    manager, starter = ServiceManager(), starter or Starter()
    try:
        with ForkServer.begin(config.data_folder) as fork_server:
            if starter.forked is not None:
                starter.forked()
            asyncio.run(_serve(config, starter, manager, fork_server.start))
    except (PenstockError, OSError) as error:
        manager.tell(f"cannot serve {config.data_folder}: {error}")
        logger.error(
            "the node cannot serve %s: %s",
            config.data_folder,
            error,
            extra={"folder": config.data_folder},
        )
        return 1
    return 0


async def _serve(
    config: NodeConfig, starter: Starter, manager: ServiceManager, start: Start
) -> None:
    logger.addFilter(LogRateLimit([REFUSED]))
    node = Node(config, start=start)
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def on_signal(number: int) -> None:
        if seen and number != signal.SIGHUP:
            logger.warning("second signal: leaving at once, the next start recovers")
            os._exit(128 + number)
        if number != signal.SIGHUP:
            seen.append(number)
        logger.info("%s: stopping", signal.Signals(number).name)
        manager.tell("drains and closes its logs", "STOPPING=1")
        node.stop()

    def on_ready() -> None:
        manager.tell(f"serves {config.data_folder}", "READY=1")
        _tell_ready(starter.ready_fd)

    if starter.owner is not None:
        _watch(starter.owner, node, loop)
    if starter.clock_fd is not None:
        MovedClock(starter.clock_fd, loop, node.clock.move)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    manager.watch(loop)
    where = "and joins its cluster" if config.node_id is not None else "its logs"
    manager.tell(f"opens {config.data_folder} {where}")
    await node.run(on_ready)


def _watch(owner: int, node: Node, loop: asyncio.AbstractEventLoop) -> None:
    """Stop the node when `owner` is dead. Its descriptor lives as long as this process."""

    def on_death() -> None:
        loop.remove_reader(pidfd)
        logger.info("its owner (pid %d) is dead: stopping", owner, extra={"pid": owner})
        node.stop()

    try:
        pidfd = os.pidfd_open(owner)
    except ProcessLookupError:
        raise ConfigError(f"--owner {owner}: there is no such process") from None
    loop.add_reader(pidfd, on_death)


def _tell_ready(ready_fd: int | None) -> None:
    if ready_fd is None:
        return
    try:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
    except OSError as error:  # our parent did not wait: no reason not to serve
        logger.warning("nobody reads --ready-fd %d: %s", ready_fd, error)
