"""A process that dies between two stores into shared memory, without a process.

A `DyingRegion` stands before a region and lets a chosen number of cursor stores through; the next
one raises `Died`. What is in memory then is what a kill at that point leaves.
"""

from __future__ import annotations

import os
from typing import Any, cast

from penstock.ipc.shm import Region


class Died(Exception):
    """Raised in place of the store that no longer happens."""


class _Cursors:
    """The u64 view of a region, counting stores."""

    def __init__(self, q: memoryview) -> None:
        self._q = q
        self.left: int | None = None

    def __len__(self) -> int:
        return len(self._q)

    def __getitem__(self, index: Any) -> Any:
        return self._q[index]

    def __setitem__(self, index: int, value: int) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Died
            self.left -= 1
        self._q[index] = value


class DyingRegion:
    """Looks like a `Region`; `dies_after(n)` lets n more stores through `q` happen."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._cursors = _Cursors(region.q)

    @property
    def bytes(self) -> memoryview:
        return self._region.bytes

    @property
    def q(self) -> memoryview:
        return cast(memoryview, self._cursors)

    def dies_after(self, stores: int | None) -> None:
        self._cursors.left = stores

    def close(self) -> bool:
        return True

    def as_region(self) -> Region:
        """For the type checker: whoever takes a region takes this."""
        return cast(Region, self)


def memory(size: int) -> tuple[int, Region]:
    """Anonymous shared memory of zeros: its descriptor and a mapping of it."""
    fd = os.memfd_create("penstock-test")
    os.ftruncate(fd, size)
    return fd, Region.of_fd(os.dup(fd))
