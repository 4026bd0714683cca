"""The speed of writes into the page cache: the yardstick beside every throughput.

It makes the same system calls as a segment: `pwrite` of batch-sized buffers to a new file in the
same folder, which grows by 4 MiB steps of `posix_fallocate`. One buffer is written again and again,
so that only the kernel's work is measured. The first run is left out: on a virtual machine it is
the one that fetches memory from the host.
"""

from __future__ import annotations

import errno
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUFFER_BYTES: Final = 256 << 10
STEP_BYTES: Final = 4 << 20
RUN_BYTES_MAX: Final = 4 << 30
RUN_BYTES_MIN: Final = 64 << 20
RUNS: Final = 4


@dataclass(frozen=True, slots=True)
class PageCacheSpeed:
    """Millions of bytes a second: median and best of the runs, and the first one, not counted."""

    median: float
    best: float
    first: float
    runs: int
    run_bytes: int

    @property
    def method(self) -> str:
        return (
            f"median of {self.runs} runs of {self.run_bytes >> 20} MiB after one that is not "
            f"counted: pwrite of {BUFFER_BYTES >> 10} KiB to a fresh file in the data folder grown "
            f"by {STEP_BYTES >> 20} MiB, before the run with the node idle"
        )


def measure(folder: Path, total_bytes: int, runs: int = RUNS) -> PageCacheSpeed:
    """Writes `total_bytes` (within `RUN_BYTES_*`) several times into `folder`."""
    size = min(max(total_bytes, RUN_BYTES_MIN), RUN_BYTES_MAX) // STEP_BYTES * STEP_BYTES
    first = size / _one_run(folder, size) / 1e6
    speeds = [size / _one_run(folder, size) / 1e6 for _ in range(runs)]
    return PageCacheSpeed(statistics.median(speeds), max(speeds), first, runs, size)


def _one_run(folder: Path, size: int) -> float:
    """Returns the seconds for `size` bytes, a multiple of `STEP_BYTES`."""
    buffer = os.urandom(BUFFER_BYTES)
    fd, path = tempfile.mkstemp(prefix="page-cache-", dir=folder)
    os.unlink(path)
    try:
        begun = time.perf_counter()
        for position in range(0, size, BUFFER_BYTES):
            if position % STEP_BYTES == 0:
                _allocate(fd, position)
            if os.pwrite(fd, buffer, position) != BUFFER_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return time.perf_counter() - begun
    finally:
        os.close(fd)


def _allocate(fd: int, position: int) -> None:
    try:
        os.posix_fallocate(fd, position, STEP_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
