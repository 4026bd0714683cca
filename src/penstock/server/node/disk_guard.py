"""Room on the disk of the data folder: watched, warned of, and kept.

    ok --free < disk_warn--> low --free < disk_stop--> full: writers append nothing
    ok <--free > warn * 1.1-- low <--free > stop * 1.1-- full

Writers read the level in shared memory before they append, so it holds from the moment that it is
published, for successors as well. Looks are the closer together the less room there is: a disk that
fills at `FILL_RATE` is met in time. Owns the level; deletes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from penstock.ipc import layout as lo
from penstock.ipc.hostslots import DiskRoom, DiskSlot
from penstock.server.config import NodeConfig

logger = logging.getLogger("penstock.node")

LOOK_MAX: Final = 1.0
LOOK_MIN: Final = 0.05
FILL_RATE: Final = 4 << 30
"""Bytes a second that a disk may fill up with, between two looks."""
AGAIN: Final = 1.1
"""How much above a bound the room must be before the level falls again."""

Space = Callable[[str], tuple[int, int]]


def space_of(folder: str) -> tuple[int, int]:
    """Bytes that this user may still write, and bytes in all, as `df` counts."""
    found = os.statvfs(folder)
    used = found.f_blocks - found.f_bfree
    return found.f_bavail * found.f_frsize, (used + found.f_bavail) * found.f_frsize


class DiskGuard:
    """One for a node, on its event loop."""

    def __init__(self, config: NodeConfig, slot: DiskSlot, space: Space = space_of) -> None:
        self._config = config
        self._folder = config.data_folder
        self._slot = slot
        self._space = space
        self._level = lo.DISK_OK
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and from now on."""
        wait = self.look()
        self._timer = asyncio.get_running_loop().call_later(wait, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> float:
        """Publish what there is; how many seconds later to look again."""
        try:
            free, total = self._space(self._folder)
        except OSError as error:
            logger.error("the room on the disk of %s is unknown: %s", self._folder, error)
            return LOOK_MAX
        config = self._config
        warn, stop = _bytes(config.disk_warn, total), _bytes(config.disk_stop, total)
        level = self._judge(free, warn, stop)
        self._slot.publish(DiskRoom(level, free, total, warn, stop))
        if level != self._level:
            before, self._level = self._level, level
            self._tell(before, free, total, warn if level == lo.DISK_WARN else stop)
        return min(max((free - stop) / FILL_RATE, LOOK_MIN), LOOK_MAX)

    def _judge(self, free: int, warn: int, stop: int) -> int:
        if free < stop or (self._level == lo.DISK_STOP and free < stop * AGAIN):
            return lo.DISK_STOP
        if free < warn or (self._level != lo.DISK_OK and free < warn * AGAIN):
            return lo.DISK_WARN
        return lo.DISK_OK

    def _tell(self, before: int, free: int, total: int, bound: int) -> None:
        told = {"folder": self._folder, "free": free, "bound": bound}
        room = f"{free} of {total} bytes are free on the disk of {self._folder}"
        if self._level == lo.DISK_STOP:
            logger.error(
                "%s, below disk_stop (%d bytes): nothing is appended until there is room; producers"
                " wait, consumers go on. Delete or trim topics, shorten their retention, or enlarge"
                " the disk", room, bound, extra={**told, "reason": "disk_stop"},
            )  # fmt: skip
        elif before == lo.DISK_STOP:
            logger.warning("%s: writing goes on, there is still little room", room, extra=told)
        elif self._level == lo.DISK_WARN:
            logger.warning(
                "%s, below disk_warn (%d bytes): at disk_stop writing stops. Delete or trim topics,"
                " shorten their retention, or enlarge the disk", room, bound,
                extra={**told, "reason": "disk_warn"},
            )  # fmt: skip
        else:
            logger.info("%s: there is room again", room, extra=told)


def _bytes(bound: float, total: int) -> int:
    """A bound below 1 is a share of the disk, any other bytes."""
    return int(bound * total) if bound < 1 else int(bound)
