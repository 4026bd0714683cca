"""The events of a carrier's thread: descriptors that are readable, and orders of other threads."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call

from penstock.ipc.doorbell import Doorbell


class EventLoop:
    """An epoll loop of one thread. Only `post` may be called from any thread."""

    def __init__(self) -> None:
        self._orders: deque[Callable[[], None]] = deque()
        self._bell = Doorbell()
        self._gate = threading.RLock()  # again, where a finalizer posts within a post
        self._poll = select.epoll()
        self._calls: dict[int, Callable[[], object]] = {}
        self.is_over = False
        self.watch(self._bell.fileno(), self._bell.clear)

    def post(self, order: Callable[[], None]) -> None:
        """Runs this soon in the loop's thread, unless the loop is over."""
        with self._gate:  # or the number of the bell may be another one's by now
            if not self.is_over:
                ring = partial(os.eventfd_write, self._bell.fileno(), 1)
                # By one call: no interrupt comes between the order and the ring.
                deque(map(call, (partial(self._orders.append, order), ring)), maxlen=0)

    # --- the carrier's thread ---
    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """Calls this whenever that descriptor is readable."""
        self._calls[fd] = call
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    @property
    def has_orders(self) -> bool:
        return bool(self._orders)

    def carry_out(self) -> None:
        """Runs the posted orders."""
        while self._orders:
            self._orders.popleft()()

    def wait(self, seconds: float) -> None:
        """Sleeps until a descriptor is readable, at most so long, and makes its call."""
        for fd, _ in self._poll.poll(seconds):
            call = self._calls.get(fd)
            if call is not None:
                call()

    def end(self) -> None:
        """Ends the loop: nothing is run any more; descriptors can be unwatched until `close`."""
        with self._gate:
            self.is_over = True
            self._bell.close()
        self._orders.clear()

    def close(self) -> None:
        self._poll.close()

    def abandon(self) -> None:
        """Gives up, in a forked child, copies of descriptors."""
        self.is_over, self._gate = True, threading.RLock()
        self._poll.close()
        self._bell.close()
