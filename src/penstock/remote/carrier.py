"""The carrier: node and writers of a remote client, played in its own process by one thread.

Attachments speak to it as they would to a node: over a socket, through lanes, by state pages and
doorbells. What it cannot answer itself it carries over one connection to a gateway, and what comes
back it publishes in the order in which a writer would: pages first, then answers, then it rings.

A lost connection is to its clients what a node that went away is to local ones: they hear the end
of their attachment and attach anew. The carrier connects again, trying one host after the other.
`endpoint` has the states of one attachment, `wire` those of one connection. Nothing here blocks but
the one wait of the loop.
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
from typing import Final

import zmq

from penstock import __version__
from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError
from penstock.ipc.doorbell import Doorbell
from penstock.keys import ClientKey
from penstock.remote.address import Host, Link, host_text
from penstock.remote.attachments import Attachments
from penstock.remote.wire import LINGER_MAX, Wire
from penstock.retrying import Retries

logger = logging.getLogger("penstock.remote")

RETRY_FIRST: Final = 0.05
RETRY_LAST: Final = 2.0
HEALTHY_AFTER: Final = 1.0
"""Seconds for which a connection stands before it counts as one that worked."""
MESSAGES_A_TURN: Final = 256
IDLE: Final = 60.0
REASONS_MAX: Final = 8
LEAVE_WITHIN: Final = 2.0
"""Seconds that a good-bye takes at most."""

_HINT: Final = ": is one started there with `penstock serve --listen`, and is the way to it open?"

_abandoned: list[Carrier] = []
"""Those of a parent process: what they have of ZeroMQ must not be freed in a forked child."""


class Carrier:
    """See the module."""

    def __init__(self, hosts: Sequence[Host], key: ClientKey | None, name: str) -> None:
        self._hosts = tuple(hosts)
        self._key = key
        self._name = name
        self._incarnation = os.urandom(16)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wire: Wire | None = None
        self._attachments = Attachments(self, name)
        self._orders: deque[Callable[[], None]] = deque()
        self._bell = Doorbell()
        self._gate = threading.Lock()
        self._asleep = False
        self._poll = select.epoll()
        self._calls: dict[int, Callable[[], object]] = {}
        self._at = 0  # the host that is tried
        self._tried: list[str] = []
        self._is_up = False
        self._up_since = 0.0
        self._met_other = self._takes_other = False  # another node than the one before
        self._reasons: list[str] = []
        self._retries = Retries(RETRY_FIRST, RETRY_LAST)
        self._retry_at = 0.0
        self._finishing = False
        self.is_over = False
        self._counts = dict.fromkeys(
            ("connects", "reconnects", "failed_connects", "bytes_sent", "bytes_received"), 0
        )
        self._thread = threading.Thread(target=self._run, name="penstock-carrier", daemon=True)
        self.watch(self._bell.fileno(), self._bell.clear)

    # --- from any thread ---
    def start(self) -> None:
        self._thread.start()

    def serve(self, link: Link, end: socket.socket) -> None:
        """Attach what speaks at the other end of that socket."""
        self.post(lambda: self._attachments.admit(link, end))

    def post(self, order: Callable[[], None]) -> None:
        """Have this done soon."""
        self._orders.append(order)
        if self._asleep:
            with self._gate:  # or its number may be another one's by now
                if not self.is_over:
                    self._bell.ring()

    def finish(self) -> None:
        """End once nothing uses it."""
        self.post(self._finish)

    def join(self) -> None:
        """Wait until it has said good-bye; bounded."""
        if self._thread is not threading.current_thread():
            self._thread.join(LEAVE_WITHIN)

    def why(self) -> str:
        """Which brokers were tried last, and what came of it."""
        wire = self._wire
        trying = [] if wire is None or self._is_up else [f"{host_text(wire.host)}: no answer yet"]
        return "; ".join(self._reasons or [*self._tried, *trying])

    def hopeless(self) -> str:
        """What to say to who waits for a broker."""
        if self._is_up:
            return f"the gateway at {self._name} answers, but its node does not in time"
        why = self.why()
        return f"no broker answers at {self._name}" + (f" ({why})" if why else "") + _HINT

    def metrics(self) -> dict[str, float]:
        """Counters since it was made, and gauges of now."""
        wire, attachments = self._wire, self._attachments
        return {
            **self._counts,
            **attachments.counts,
            "bytes_sent": self._counts["bytes_sent"] + (wire.bytes_sent if wire else 0),
            "bytes_received": self._counts["bytes_received"] + (wire.bytes_received if wire else 0),
            "throttled_seconds": attachments.throttled,
            "connected": float(self._is_up),
            "attachments": attachments.open_now,
            "bytes_in_flight": attachments.in_flight,
            "round_trip": wire.round_trip if wire else 0.0,
        }

    @property
    def welcome(self) -> fr.Welcome | None:
        """What the broker said of itself; None while none is connected."""
        wire = self._wire
        return wire.welcome if wire is not None and self._is_up else None

    def abandon(self) -> None:
        """This process was forked off: give up copies of descriptors, touch nothing else."""
        _abandoned.append(self)
        self.is_over, self._asleep = True, False
        self._poll.close()
        self._attachments.abandon()
        self._bell.close()
        if self._wire is not None:
            self._wire.abandon()

    # --- the loop ---
    def _run(self) -> None:
        try:
            while not (self._finishing and self._attachments.is_empty):
                try:
                    self._turn()
                except Exception:  # clients would wait for it in vain
                    logger.exception("the connection to %s is dropped after an error", self._name)
                    self._lose("an error in this client, see its log")
        finally:
            self._leave()

    def _turn(self) -> None:
        attachments = self._attachments
        while self._orders:
            self._orders.popleft()()
        now = time.monotonic()
        self._mind_wire(now)
        attachments.pump()
        attachments.wake()
        self._asleep = True  # before the last look: who posts after it rings
        is_busy = self._orders or attachments.have_work or self._finishing
        wire = self._wire
        is_busy = is_busy or (wire is not None and (wire.failed is not None or wire.has_news))
        found = self._poll.poll(0.0 if is_busy else self._bound(now))
        self._asleep = False
        for fd, _ in found:
            call = self._calls.get(fd)
            if call is not None:
                call()
        now = time.monotonic()
        attachments.forget_orphans(now)
        attachments.tell(now)

    def _bound(self, now: float) -> float:
        """Seconds until there is something to do without anything coming."""
        due = now + IDLE
        if self._wire is not None:
            due = min(due, self._wire.due())
        elif self._attachments.are_waiting:
            due = min(due, self._retry_at)
        orphan = self._attachments.due()
        if orphan is not None:
            due = min(due, orphan)
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
        if self._wire is not None:
            self._wire.close(linger=LINGER_MAX if self._is_up else 0.0)
        self._poll.close()
        self._context.term()

    # --- the connection ---
    def _mind_wire(self, now: float) -> None:
        """Connect if need be, hear what came, notice the end."""
        wire = self._wire
        if wire is None:
            if not self._attachments.are_waiting or now < self._retry_at:
                return
            wire = self._connect()
            if wire is None:
                return
        wire.look(now)
        for message, payload in wire.messages(MESSAGES_A_TURN):
            if isinstance(message, fr.Welcome):
                self._greeted(wire, message)
            elif isinstance(message, fr.Ended) and message.endpoint == -1:
                wire.failed = message.reason
            else:
                self._attachments.hear(message, payload)
        if wire.failed is not None:
            self._lose(wire.failed)

    def _connect(self) -> Wire | None:
        host = self._hosts[self._at]
        hello = fr.Hello(
            fr.PROTOCOL_VERSION, fr.APIS, f"penstock {__version__}"[: fr.NAME_BYTES_MAX],
            self._incarnation,
        )  # fmt: skip
        try:
            wire = self._wire = Wire(self._context, host, self._key, hello)
        except (zmq.ZMQError, PenstockError) as error:
            self._next_host(host, str(error))
            return None
        for fd in wire.filenos():
            self.watch(fd, lambda: None)  # the next turn looks
        return wire

    def _greeted(self, wire: Wire, welcome: fr.Welcome) -> None:
        known = self._attachments.pages
        if known is not None and known.node_uuid != welcome.node_uuid and not self._takes_other:
            self._met_other = True  # the one before may answer at another of the addresses
            wire.failed = "another node (another data folder) answers there now"
            return
        counts = self._counts
        counts["reconnects"] += counts["connects"] > 0
        counts["connects"] += 1
        self._up_since = time.monotonic()
        self._tried, self._reasons = [], []
        self._is_up, self._met_other, self._takes_other = True, False, False
        logger.info("connected to %s", host_text(wire.host))
        self._attachments.connected(wire, welcome)

    def _lose(self, why: str) -> None:
        """The connection is over, or did not come to be."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        for fd in wire.filenos():
            self.unwatch(fd)
        self._counts["bytes_sent"] += wire.bytes_sent
        self._counts["bytes_received"] += wire.bytes_received
        was_up, self._is_up = self._is_up, False
        refused = wire.refused
        wire.close()
        if was_up:
            said = f"lost the connection to {host_text(wire.host)}: {why}"
            logger.warning("%s", said)
            self._reasons = [said]
            self._attachments.lost(said)
            if time.monotonic() - self._up_since > HEALTHY_AFTER:
                self._retries.reset()
            self._retry_at = time.monotonic() + self._retries.next()
            return
        self._counts["failed_connects"] += 1
        self._next_host(wire.host, why, refused)

    def _next_host(self, host: Host, why: str, refused: fr.Refused | None = None) -> None:
        """That one was nothing: try the next, and after the last tell those who wait."""
        self._tried.append(f"{host_text(host)}: {why}")
        self._at = (self._at + 1) % len(self._hosts)
        if len(self._tried) < len(self._hosts):
            self._retry_at = 0.0
            return
        self._reasons, self._tried = self._tried[:REASONS_MAX], []
        self._met_other, self._takes_other = False, self._met_other
        self._retry_at = time.monotonic() + self._retries.next()
        error = "NotConnectedError" if refused is None else refused.error
        said = self.hopeless() if refused is None else refused.message
        logger.info("%s", said)
        self._attachments.hopeless(error, said)
