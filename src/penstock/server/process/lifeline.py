"""Prepares a helper process of the node at its start: lifeline, log, memory, limits."""

from __future__ import annotations

import argparse
import ctypes
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.ipc.liveness import end_with_parent, raise_descriptor_limit
from penstock.server.config import NodeConfig
from penstock.server.node.log_format import configure
from penstock.server.security.log_rate import LogRateLimit

logger = logging.getLogger("penstock.child")

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
MMAP_FROM: Final = 32 << 20
"""Bytes of an allocation that goes back to the system at once."""
KEPT_MAX: Final = 64 << 20


def begin(
    name: str, argv: Sequence[str] | None, further: Sequence[str] = ()
) -> tuple[argparse.Namespace, NodeConfig]:
    """Starts a process that listens to strangers (see `listening_child`). Reads its command line,
    with `further` words of its kind. Sets up its log, and prepares the process."""
    parser = argparse.ArgumentParser(prog=f"penstock-{name}")
    parser.add_argument("--config", required=True, help="the node's, as JSON")
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--node-pid", type=int, required=True)
    parser.add_argument("--log-level", default="INFO")
    for word in further:
        parser.add_argument(word, required=True)
    options = parser.parse_args(argv)
    config = NodeConfig(**msgspec.json.decode(options.config))
    configure(name, options.log_level, config.log_format)
    logging.getLogger(f"penstock.{name}").addFilter(LogRateLimit())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the node decides when it ends
        signal.signal(number, signal.SIG_IGN)
    if not end_with_parent(options.node_pid, signal.SIGKILL):
        sys.exit(0)
    raise_descriptor_limit()
    _keep_memory()
    return options, config


def _keep_memory() -> None:
    """Lets malloc keep the memory of large messages. Fetching cleared pages for each one took a
    third of the time of ZeroMQ's thread. The kept memory is bounded by the most that the process
    holds at a time, and by `KEPT_MAX` for each of malloc's arenas."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((M_MMAP_THRESHOLD, MMAP_FROM), (M_TRIM_THRESHOLD, KEPT_MAX)):
        if not libc.mallopt(parameter, value):
            logger.warning("mallopt(%d, %d) is not known here", parameter, value)
