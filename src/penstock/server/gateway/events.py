"""One thread's events: descriptors, clocks, and calls that wait (`penstock.ipc.waits`).

A `Task` carries a generator of waits out beside all else. Nothing here blocks but `poll`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import select
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.gateway")

WAIT_MAX: Final = 0.5
"""Seconds for which `poll` sleeps at most (rule 13)."""


CANCELLED_KEPT: Final = 1000
"""Timers that may wait for a time at which nobody wants them any more."""


class Timer:
    """A call to come; `cancel` any number of times."""

    __slots__ = ("_cancelled", "call")

    def __init__(self, call: Callable[[], None], cancelled: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        self._cancelled = cancelled

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._cancelled()


class Events:
    """The gateway's event loop: descriptors, timers and tasks."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable, instead of the handler before."""
        self._handlers[fd] = handler
        with contextlib.suppress(FileExistsError):
            self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Before `fd` is closed, or at once after it was."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call, self._one_less)
        due = time.monotonic() + seconds
        heapq.heappush(self._timers, (due, next(self._numbers), timer))
        return timer

    def _one_less(self) -> None:
        self._cancelled += 1
        if self._cancelled > CANCELLED_KEPT and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def spawn(
        self,
        steps: Waits[Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> Task:
        """Carry `steps` out; one of the two is called in the end, maybe before this returns."""
        task = Task(self, steps, done, failed)
        task.step()
        return task

    def poll(self, timeout: float) -> None:
        """Sleep until something happens, at most so long, and tell whom it concerns."""
        timeout = min(timeout, WAIT_MAX)
        if self._timers:
            timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
        for fd, _ in self._epoll.poll(math.ceil(timeout * 1000) / 1000):
            handler = self._handlers.get(fd)
            if handler is not None:
                _call(handler)
        if self._timers:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                call = (timer := heapq.heappop(self._timers)[2]).call
                if call is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    timer.call = None
                    _call(call)

    def close(self) -> None:
        self._epoll.close()


def _call(what: Callable[[], None]) -> None:
    """Calls a handler and logs its failure. The handler's owner copes with that; everybody else is
    served on."""
    try:
        what()
    except Exception:
        logger.exception("an event failed in the gateway")


class Task:
    """A call that is under way. Nobody is told any more once it is cancelled."""

    __slots__ = ("_done", "_events", "_failed", "_fd", "_is_over", "_steps", "_timer")

    def __init__(
        self,
        events: Events,
        steps: Waits[Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._events = events
        self._steps = steps
        self._done = done
        self._failed = failed
        self._fd = -1
        self._timer: Timer | None = None
        self._is_over = False

    def step(self) -> None:
        """Continues the task: its awaited event may have come."""
        if self._is_over:
            return
        self._pause()
        try:
            wait = next(self._steps)
        except StopIteration as stop:
            self._is_over = True
            self._done(stop.value)
        except Exception as error:
            self._is_over = True
            self._failed(error)
        else:
            if wait.on is not None:
                self._fd = wait.on.fileno()
                self._events.watch(self._fd, self.step)
            self._timer = self._events.later(wait.seconds, self.step)

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            self._events.unwatch(self._fd)
            self._fd = -1

    def cancel(self) -> None:
        """Give it up: it lets go of what it holds."""
        if not self._is_over:
            self._is_over = True
            self._pause()
            self._steps.close()
