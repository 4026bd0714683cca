"""The slots of the node and its cleaner about the host, in the head of the state table.

Each slot has one writing process. The node writes the room on the data folder's disk, and the pages
that may have no more of it. The cleaner writes its signs of life. Writers and clients read them
without a request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.ipc import layout as lo
from penstock.ipc.shm import Region

_DISK: Final = lo.DISK_SLOT_AT // 8
_CLEANER: Final = lo.CLEANER_SLOT_AT // 8


class DiskRoom(NamedTuple):
    """Room in bytes, what the node makes of it (`layout.DISK_*`), and the bounds for that."""

    level: int
    free: int
    total: int
    warn_below: int
    stop_below: int


class DiskSlot:
    """Room on the disk of the data folder, as the node last saw it."""

    __slots__ = ("_q",)

    def __init__(self, region: Region) -> None:
        self._q = region.q

    def publish(self, disk: DiskRoom) -> None:
        q = self._q
        q[_DISK + lo.Q_DISK_FREE] = disk.free
        q[_DISK + lo.Q_DISK_TOTAL] = disk.total
        q[_DISK + lo.Q_DISK_WARN] = disk.warn_below
        q[_DISK + lo.Q_DISK_STOP] = disk.stop_below
        q[_DISK + lo.Q_DISK_LEVEL] = disk.level

    @property
    def is_stopped(self) -> bool:
        """Whether writers are to append nothing."""
        return bool(self._q[_DISK + lo.Q_DISK_LEVEL] == lo.DISK_STOP)

    def read(self) -> DiskRoom:
        return DiskRoom(*self._q[_DISK : _DISK + len(DiskRoom._fields)].tolist())


class FullPages:
    """Pages of partitions whose namespace has as many bytes on the disk as it may."""

    __slots__ = ("_q",)

    def __init__(self, region: Region) -> None:
        self._q = region.q

    def publish(self, pages: Iterable[int]) -> None:
        """These, and no others."""
        words = [0] * (lo.PAGES_MAX // 64)
        for page in pages:
            words[page >> 6] |= 1 << (page & 63)
        for at, word in enumerate(words, lo.FULL_PAGES_AT // 8):
            if self._q[at] != word:
                self._q[at] = word

    def has(self, page: int) -> bool:
        return bool(self._q[lo.FULL_PAGES_AT // 8 + (page >> 6)] >> (page & 63) & 1)


class CleanerState(NamedTuple):
    """`heartbeat` is monotonic, `last_run` since the epoch, both in microseconds; `errors` counts
    partitions that could not be looked at or cleaned; `unread` offsets that retention took though
    they were held for a group; `held` are bytes that it did not take."""

    pid: int
    heartbeat: int
    runs: int
    errors: int
    last_run: int
    unread: int
    held: int


class CleanerSlot:
    """Signs of life of the cleaner process."""

    __slots__ = ("_q",)

    def __init__(self, region: Region) -> None:
        self._q = region.q

    def claim(self, pid: int) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_PID] = pid
        self.beat()

    def beat(self) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_HEARTBEAT] = time.monotonic_ns() // 1000

    def count_run(self, now_us: int) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_LAST_RUN] = now_us
        self._q[_CLEANER + lo.Q_CLEANER_RUNS] += 1

    def count_error(self) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_ERRORS] += 1

    def count_unread(self, offsets: int) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_UNREAD] += offsets

    def hold(self, nbytes: int) -> None:
        self._q[_CLEANER + lo.Q_CLEANER_HELD] = nbytes

    def read(self) -> CleanerState:
        return CleanerState(*self._q[_CLEANER : _CLEANER + len(CleanerState._fields)].tolist())
