"""The waits of a call, for the code that carries it out: a thread that blocks, or an event loop.

A call that may have to wait is written once, as a generator of `Wait`s that returns its result. It
blocks nowhere itself. `run` carries one out in a thread; `penstock.aio` does it in a loop. A wait
may end early and for no reason: the call checks again. To give a call up at a wait, close its
generator: it lets go of what it holds.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Generator
from typing import NamedTuple, Protocol, TypeVar

from penstock.ipc.doorbell import Doorbell

Result = TypeVar("Result")


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Wait(NamedTuple):
    """Waits until `on` is readable, for at most `seconds`; without `on` for that long."""

    seconds: float
    on: HasDescriptor | None = None


Waits = Generator[Wait, None, Result]


def run(steps: Waits[Result]) -> Result:
    """Carry a call out, blocking the thread."""
    try:
        while True:
            _block(next(steps))
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        steps.close()


def _block(wait: Wait) -> None:
    on = wait.on
    if on is None:
        time.sleep(wait.seconds)
    elif isinstance(on, Doorbell):
        on.wait(wait.seconds, clear=False)
    else:
        poll = select.poll()
        poll.register(on.fileno(), select.POLLIN)
        poll.poll(math.ceil(wait.seconds * 1000))
