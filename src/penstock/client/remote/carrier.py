"""The carrier: node and writers of a remote client, played in its own process by one thread.

Attachments speak to it as they would to a node: over a socket, through lanes, by state pages and
doorbells. What it cannot answer itself it carries over a connection to a gateway, in a cluster over
one to each broker that it takes, and what comes back it publishes in the order in which a writer
would: pages first, then answers, then it rings.

A lost connection is to its clients what a node that went away is to local ones: they hear the end
of their attachment and attach again. `connections` has the connections, `endpoint` the states of
one attachment. Nothing here blocks but the one wait of the loop.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Final

from penstock.client import threads
from penstock.client.remote.attachments import Attachments
from penstock.client.remote.link import Host, Link
from penstock.cluster.frames import messages as fr
from penstock.ipc.doorbell import Doorbell
from penstock.security.keys import KeyFile
from penstock.version import __version__

logger = logging.getLogger("penstock.remote")

IDLE: Final = 60.0
LEAVE_WITHIN: Final = 2.0
"""Seconds that a good-bye takes at most."""

_abandoned: list[Carrier] = []
"""Those of a parent process: what they have of ZeroMQ must not be freed in a forked child."""


class Carrier:
    """See the module."""

    def __init__(self, hosts: Sequence[Host], key: KeyFile | None, name: str) -> None:
        self._name = name
        self._orders: deque[Callable[[], None]] = deque()
        self._bell = Doorbell()
        self._gate = threading.RLock()  # again, where a finalizer posts within a post
        self._poll = select.epoll()
        self._calls: dict[int, Callable[[], object]] = {}
        software = f"penstock {__version__}"[: fr.NAME_BYTES_MAX]
        hello = fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, software, os.urandom(16))
        self._attachments = Attachments(self, name, hosts, key, hello)
        self._wires = self._attachments.wires
        self._finishing = False
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="penstock-carrier", daemon=True)
        self.watch(self._bell.fileno(), self._bell.clear)

    # --- from any thread ---
    def start(self) -> None:
        """Done again, as after an interrupt, it starts no second thread."""
        if self._thread.ident is None:
            threads.start(self._thread)

    def serve(self, link: Link, end: socket.socket) -> None:
        """Attach what speaks at the other end of that socket."""
        self.post(lambda: self._attachments.admit(link, end))

    def post(self, order: Callable[[], None]) -> None:
        """Have this done soon."""
        with self._gate:  # or the number of the bell may be another one's by now
            if not self.is_over:
                ring = partial(os.eventfd_write, self._bell.fileno(), 1)
                # By one call: no interrupt comes between the order and the ring.
                deque(map(call, (partial(self._orders.append, order), ring)), maxlen=0)

    def finish(self) -> None:
        """End once nothing uses it."""
        self.post(self._finish)

    def join(self) -> None:
        """Wait until it has said good-bye; bounded."""
        is_begun = self._thread.ident is not None
        if is_begun and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_WITHIN)

    def hopeless(self) -> str:
        """What to say to who waits for a broker."""
        return self._wires.hopeless()

    @property
    def is_anybody_there(self) -> bool:
        """Whether something listens where brokers are looked for."""
        return self._wires.is_somebody_there

    def metrics(self) -> dict[str, float]:
        """Counters since it was made, and gauges of now."""
        attachments = self._attachments
        return {
            **self._wires.metrics(),
            **attachments.counts,
            "attachments": attachments.open_now,
            "bytes_in_flight": attachments.in_flight,
        }

    @property
    def welcome(self) -> fr.Welcome | None:
        """What the broker said of itself; None while none is connected."""
        home = self._wires.home
        return None if home is None else home.welcome

    def abandon(self) -> None:
        """This process was forked off: give up copies of descriptors, touch nothing else."""
        _abandoned.append(self)
        self.is_over, self._gate = True, threading.RLock()
        self._poll.close()
        self._attachments.abandon()
        self._bell.close()
        self._wires.abandon()

    # --- the loop ---
    def _run(self) -> None:
        try:
            while not self._is_done:
                try:
                    self._turn()
                except Exception:  # clients would wait for it in vain
                    logger.exception("the connection to %s is dropped after an error", self._name)
                    self._wires.lose_all("an error in this client, see its log")
        finally:
            self._leave()

    @property
    def _is_done(self) -> bool:
        return self._finishing and self._attachments.is_empty

    def _turn(self) -> None:
        attachments, wires = self._attachments, self._wires
        while self._orders:
            self._orders.popleft()()
        now = time.monotonic()
        wires.mind(now, wanted=attachments.are_waiting)
        attachments.pump(now)
        attachments.wake()
        is_busy = self._orders or attachments.have_work or self._is_done or wires.has_news
        found = self._poll.poll(0.0 if is_busy else self._bound(now))
        for fd, _ in found:
            call = self._calls.get(fd)
            if call is not None:
                call()
        attachments.mind(time.monotonic())

    def _bound(self, now: float) -> float:
        """Seconds until there is something to do without anything coming."""
        attachments = self._attachments
        due = min(now + IDLE, self._wires.due(now + IDLE, wanted=attachments.are_waiting))
        own = attachments.due()
        if own is not None:
            due = min(due, own)
        return max(0.0, due - now)

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """Call this whenever that descriptor is readable."""
        self._calls[fd] = call
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _finish(self) -> None:
        self._finishing = True

    def _leave(self) -> None:
        with self._gate:
            self.is_over = True
            self._bell.close()
        self._orders.clear()
        self._attachments.close()
        self._poll.close()
        self._wires.close()
