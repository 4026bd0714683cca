"""The carrier: one thread that acts as node and writers for a remote client in its own process.

Attachments speak to it as they would to a node: over a socket, through lanes, by state pages and
doorbells. It sends the questions that it cannot answer over a connection to a gateway, in a
cluster over one to each broker that it needs. It publishes what comes back in a writer's order:
pages first, then answers, then it rings.

A lost connection is to its clients what a node that went away is to local ones: they hear the end
of their attachment and attach again. `connections` has the connections, `endpoint` the states of
one attachment. Nothing here blocks but the one wait of the loop.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from penstock.client import threads
from penstock.client.remote.attachments import Attachments
from penstock.client.remote.event_loop import EventLoop
from penstock.client.remote.link import Host, Link
from penstock.cluster.frames import messages as fr
from penstock.security.keys import KeyFile
from penstock.version import __version__

logger = logging.getLogger("penstock.remote")

IDLE: Final = 60.0
LEAVE_WITHIN: Final = 2.0
"""Seconds that a good-bye takes at most."""

_abandoned: list[Carrier] = []
"""Those of a parent process: what they have of ZeroMQ must not be freed in a forked child."""


class Carrier:
    """The thread that is node and writers to a remote client's attachments."""

    def __init__(self, hosts: Sequence[Host], key: KeyFile | None, name: str) -> None:
        self._name = name
        self._loop = loop = EventLoop()
        software = f"penstock {__version__}"[: fr.NAME_BYTES_MAX]
        hello = fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, software, os.urandom(16))
        self._attachments = Attachments(loop, name, hosts, key, hello)
        self._wires = self._attachments.wires
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name="penstock-carrier", daemon=True)

    # --- from any thread ---
    @property
    def is_over(self) -> bool:
        return self._loop.is_over

    def start(self) -> None:
        """Starts the thread. Called again, as after an interrupt, it starts no second one."""
        if self._thread.ident is None:
            threads.start(self._thread)

    def serve(self, link: Link, ends: list[socket.socket]) -> None:
        """Attaches the client at the other end of that socket. It is owned by the one that takes it
        from `ends`: the carrier, or a caller that an exception ended before."""

        def admit() -> None:
            try:
                end = ends.pop()
            except IndexError:
                return
            self._attachments.admit(link, end)

        self._loop.post(admit)

    def finish(self) -> None:
        """Ends once nothing uses it."""
        self._loop.post(self._finish)

    def join(self) -> None:
        """Waits until it has told its brokers that it leaves; bounded."""
        is_begun = self._thread.ident is not None
        if is_begun and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_WITHIN)

    def hopeless(self) -> str:
        """Says why no broker is connected, for a client that waits for one."""
        return self._wires.hopeless()

    @property
    def is_anybody_there(self) -> bool:
        """Returns whether any host listens where brokers are looked for."""
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
        """Returns the greeting of the connected broker; None while none is connected."""
        home = self._wires.home
        return None if home is None else home.welcome

    def abandon(self) -> None:
        """Gives up, in a forked child, copies of descriptors, and touches nothing else."""
        _abandoned.append(self)
        self._loop.abandon()
        self._attachments.abandon()
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
        loop, attachments, wires = self._loop, self._attachments, self._wires
        loop.carry_out()
        now = time.monotonic()
        wires.mind(now, wanted=attachments.are_waiting)
        attachments.pump(now)
        attachments.wake()
        is_busy = loop.has_orders or attachments.have_work or self._is_done or wires.has_news
        loop.wait(0.0 if is_busy else self._bound(now))
        attachments.mind(time.monotonic())

    def _bound(self, now: float) -> float:
        """Returns the seconds until there is something to do without an event."""
        attachments = self._attachments
        due = min(now + IDLE, self._wires.due(now + IDLE, wanted=attachments.are_waiting))
        own = attachments.due()
        if own is not None:
            due = min(due, own)
        return max(0.0, due - now)

    def _finish(self) -> None:
        self._finishing = True

    def _leave(self) -> None:
        self._loop.end()
        self._attachments.close()
        self._loop.close()
        self._wires.close()
