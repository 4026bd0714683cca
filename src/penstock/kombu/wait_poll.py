"""Waits of several consumers in one thread: each is suspended, and one descriptor tells that some
of them may go on.

A wait is a generator of `penstock.ipc.waits`, suspended where it sleeps. It is given up to wake it:
the caller looks again anyway. The descriptor is an epoll's, for an event loop to watch. The bell
belongs to other threads, and to callers that want to be called again.

Owns what it registers. Knows nothing of records.
"""

from __future__ import annotations

import select
import time
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.client import fork_safety
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.waits import Waits

Key = TypeVar("Key", bound=Hashable)


class _Suspended(NamedTuple):
    """A wait: until `until` (monotonic), or `fd` is readable; -1: there is none."""

    steps: Waits[None]
    until: float
    fd: int


_of_parents: Final[list[Waits[None]]] = []
"""In a forked child: what its parent waits for. It is never ended here, since the end of a wait
writes to memory that both share."""


class WaitPoll(Generic[Key]):
    """For one thread, but for the bell."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.bell = Doorbell()
        self._epoll.register(self.bell.fileno(), select.EPOLLIN)
        self._waits: dict[Key, _Suspended] = {}
        self._by_fd: dict[int, Key] = {}
        self.is_closed = False
        fork_safety.remember(self)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def suspend(self, key: Key, steps: Waits[None]) -> bool:
        """Begins a wait. False: it is over at once."""
        try:
            wait = next(steps)
        except StopIteration:
            return False
        fd = -1 if wait.on is None else wait.on.fileno()
        self._waits[key] = _Suspended(steps, time.monotonic() + wait.seconds, fd)
        if fd >= 0:
            self._by_fd[fd] = key
            self._epoll.register(fd, select.EPOLLIN)
        return True

    def give_up(self, key: Key) -> None:
        """Ends a wait, if there is one."""
        wait = self._waits.pop(key, None)
        if wait is None:
            return
        if wait.fd >= 0:
            del self._by_fd[wait.fd]
            self._epoll.unregister(wait.fd)
        wait.steps.close()

    def poll(self, seconds: float) -> list[Key]:
        """Sleeps for so long at most, and ends the waits that are over: returns which. A ring of
        the bell ends the sleep, too."""
        now = time.monotonic()
        until = min([now + seconds, self.next_at()])
        found = []
        for fd, _ in self._epoll.poll(max(until - now, 0.0)):
            if fd == self.bell.fileno():
                self.bell.clear()
            else:
                found.append(self._by_fd[fd])
        now = time.monotonic()
        found += [
            key for key, wait in self._waits.items() if wait.until <= now and key not in found
        ]
        for key in found:
            self.give_up(key)
        return found

    def next_at(self) -> float:
        """When the first wait is over by itself (monotonic); infinity without one."""
        return min((wait.until for wait in self._waits.values()), default=float("inf"))

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        fork_safety.forget(self)
        for key in [*self._waits]:
            self.give_up(key)
        self._epoll.close()
        self.bell.close()

    def after_fork_in_child(self) -> None:
        """The epoll is the parent's still, with all that is registered: let go of, and not used."""
        _of_parents.extend(wait.steps for wait in self._waits.values())
        self._waits.clear()
        self._by_fd.clear()
        self.is_closed = True
        self._epoll.close()
        self.bell.close()
