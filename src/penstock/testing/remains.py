"""Taking away all of a throw-away node, however it ended: processes, shared memory, its folder.

Used by the owner at the end, and by the reaper when the owner is dead. A folder made here is the
node's alone, so whatever process names it on its command line is the node or one of its writers.
"""

from __future__ import annotations

import os
import shutil
from typing import Final

from penstock.testing.processes import GONE_WITHIN, end_processes_on, processes_on

DATA: Final = "data"
"""The data folder within the throw-away folder."""


def data_folder(folder: str | os.PathLike[str]) -> str:
    return os.path.join(folder, DATA)


def processes_of(folder: str) -> list[int]:
    """Returns the node and the writers on a throw-away folder, under any parent."""
    return processes_on(data_folder(folder))


def end_processes(folder: str, timeout: float = GONE_WITHIN) -> bool:
    """Sends SIGKILL to all of them, see `end_processes_on`."""
    return end_processes_on(data_folder(folder), timeout)


def remove(folder: str) -> None:
    """Removes all of it. A missing folder is no error."""
    from penstock.ipc.ownership import unlink_own

    end_processes(folder)
    unlink_own(data_folder(folder))
    shutil.rmtree(folder, ignore_errors=True)
