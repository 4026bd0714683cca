"""The processes of a data folder: who they are, and their end by SIGKILL.

For folders that have one owner: embedded nodes and throw-away nodes of tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

GONE_WITHIN: Final = 15.0


def processes_on(data: str) -> list[int]:
    """Returns every process that names the folder, or a configuration with it, on its
    command line."""
    wanted = os.fsencode(data)
    quoted = b'"%b"' % wanted
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                # A zombie's command line is empty, so it counts as gone.
                line = file.read()
                if quoted in line or wanted in line.split(b"\0"):
                    found.append(int(entry))
    return found


def end_processes_on(data: str, timeout: float = GONE_WITHIN) -> bool:
    """Sends SIGKILL to all of them, also to those that a dying node may just have started. Returns
    False if some are left after `timeout` seconds (a device that does not answer holds them)."""
    deadline = time.monotonic() + timeout
    while left := processes_on(data):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True
