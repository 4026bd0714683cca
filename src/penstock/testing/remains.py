"""Taking away all of a throw-away node, however it ended: processes, shared memory, its folder.

Used by the owner at the end, and by the reaper when the owner is dead. A folder made here is the
node's alone, so whatever process names it on its command line is the node or one of its writers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import Final

DATA: Final = "data"
"""The data folder within the throw-away folder."""
GONE_WITHIN: Final = 15.0


def data_folder(folder: str | os.PathLike[str]) -> str:
    return os.path.join(folder, DATA)


def processes_of(folder: str) -> list[int]:
    """The node and the writers on a throw-away folder, whoever their parent is by now."""
    return processes_on(data_folder(folder))


def processes_on(data: str) -> list[int]:
    """The same of a data folder, and whoever was started with its configuration."""
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


def end_processes(folder: str, timeout: float = GONE_WITHIN) -> bool:
    """SIGKILL all of them, see `end_processes_on`."""
    return end_processes_on(data_folder(folder), timeout)


def end_processes_on(data: str, timeout: float = GONE_WITHIN) -> bool:
    """SIGKILL all of them, the ones a dying node may just have started too; False if some are
    left after `timeout` seconds (a device that does not answer holds them)."""
    deadline = time.monotonic() + timeout
    while left := processes_on(data):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def remove(folder: str) -> None:
    """Take all of it away. What is not there is no error."""
    end_processes(folder)
    uuid = uuid_in(folder)
    if uuid is not None:
        from penstock.ipc.shm import unlink_all

        unlink_all(uuid)
    shutil.rmtree(folder, ignore_errors=True)


def uuid_in(folder: str | os.PathLike[str]) -> str | None:
    """The node's uuid; None if it never came so far as to have one (nor shared memory)."""
    import msgspec

    try:
        with open(os.path.join(data_folder(folder), "node.json"), "rb") as file:
            uuid = msgspec.json.decode(file.read(), type=dict[str, object]).get("uuid")
    except (OSError, msgspec.MsgspecError):
        return None
    return uuid if isinstance(uuid, str) else None
