"""Queues the requests of an endpoint to its session with the node: one call at a time, in order.

Its client's requests wait here for each other, and so do the gateway's own requests to the node for
the endpoint (a lane).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.ipc.waits import Waits
from penstock.server.gateway.events import Events, Task


class _Job(NamedTuple):
    make: Callable[[], Waits[Any]]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class RequestQueue:
    """The queued requests of all endpoints. `idle` is called when an endpoint's session has
    answered."""

    def __init__(self, events: Events, idle: Callable[[], None]) -> None:
        self._events = events
        self._idle = idle
        self._jobs: deque[_Job] = deque()
        self._task: Task | None = None
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self,
        make: Callable[[], Waits[Any]],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Carry `make()` out when what came before is done."""
        self._jobs.append(_Job(make, done, failed))
        self._next()

    def _next(self) -> None:
        if self._jobs and not self._is_busy:
            job = self._jobs.popleft()
            self._is_busy = True
            self._task = self._events.spawn(
                job.make(), partial(self._over, job.done), partial(self._over, job.failed)
            )

    def _over(self, tell: Callable[[Any], None], what: Any) -> None:
        self._idle()
        tell(what)
        self._is_busy = False
        self._next()

    def close(self) -> None:
        """Nobody is told of anything any more."""
        self._jobs.clear()
        self._is_busy = True
        if self._task is not None:
            self._task.cancel()
