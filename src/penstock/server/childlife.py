"""What a helper process of the node asks of the system at its start."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import Final

logger = logging.getLogger("penstock.child")

PR_SET_PDEATHSIG: Final = 1
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
MMAP_FROM: Final = 32 << 20
"""Bytes of an allocation that goes back to the system at once."""
KEPT_MAX: Final = 64 << 20


def keep_memory() -> None:
    """Have malloc keep what large messages leave, instead of fetching cleared pages for each one:
    that took a third of the time of ZeroMQ's thread. What is kept is bounded by what the process
    holds at a time, and by `KEPT_MAX` for each of malloc's arenas."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((M_MMAP_THRESHOLD, MMAP_FROM), (M_TRIM_THRESHOLD, KEPT_MAX)):
        if not libc.mallopt(parameter, value):
            logger.warning("mallopt(%d, %d) is not known here", parameter, value)


def die_with(node: int) -> None:
    """Have the kernel kill this process when the node dies, however it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        logger.warning("prctl: %s", os.strerror(ctypes.get_errno()))
    if os.getppid() != node:
        sys.exit(0)
