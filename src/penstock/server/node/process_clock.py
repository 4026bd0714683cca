"""The clock by which records expire in a writer or the cleaner. It begins with the node's believed
time when the node starts the process (`server.node.clock`).
"""

from __future__ import annotations

import time

from penstock.core.expiry import ExpiryClock


def up_us() -> int:
    """Microseconds since the boot, in which sleep of the machine counts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class ProcessClock:
    """`believed_us`: what the node believes."""

    def __init__(self, believed_us: int) -> None:
        self._clock = ExpiryClock(believed_us, up_us())

    def now_us(self) -> int:
        return self._clock.look(time.time_ns() // 1000, up_us())
