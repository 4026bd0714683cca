"""A connection to the leader of partitions that are followed here.

    down --connected--> greeting --Welcome--> up --silent, cut one way, garbage--> down, for a while
                           ^---- Refused: its other end is a new one ----'

Requests wait while it is down. When it goes down all its requests have to be repeated: it calls
`lost`. Owns a socket and its signs of life; knows nothing of partitions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from penstock.client.backoff import SOON, Retries
from penstock.client.remote.zmqcalls import NOBLOCK, has_messages, received
from penstock.cluster.replica import FetchRequest
from penstock.server.replicator import protocol

logger = logging.getLogger("penstock.replicator")

RETRY_FIRST: Final = 0.05
RETRY_LAST: Final = 1.0
STEADY: Final = 5.0
"""Seconds up after which the next pause is a short one again."""
RECONNECT_MS: Final = 50
RECONNECT_LAST_MS: Final = 500
RCVHWM: Final = 16
SNDHWM: Final = 64
"""Messages that ZeroMQ queues."""

# As plain numbers: enums are slow to look up and to combine.

Secure = Callable[["zmq.Socket[bytes]", int], None]
"""(a socket that is to connect, how many attempts failed before)"""


class LeaderLink:
    """The link to one leader. `hello` makes the greeting, which names this broker's present
    epoch."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        broker: int,
        epoch: int,
        url: str,
        *,
        bytes_max: int,
        secure: Secure,
        hello: Callable[[int], protocol.Hello],
        lost: Callable[[LeaderLink], None],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self._context = context
        self.broker = broker
        self.epoch = epoch
        self.url = url
        self._bytes_max = bytes_max
        self._secure = secure
        self._hello = hello
        self._lost = lost
        self._watch = watch
        self._unwatch = unwatch
        self._socket: zmq.Socket[bytes] | None = None
        self._retries = Retries(RETRY_FIRST, RETRY_LAST, growth=SOON)
        self._retry_at = 0.0
        self._failures = 0
        self._has_greeted = False
        self._has_rung = False
        self.is_up = False
        self._wanted: deque[tuple[int, bytes, FetchRequest]] = deque()
        self._serial = 0
        self._unheard: deque[tuple[int, float]] = deque()  # (serial, when it was sent)
        self._heard_at = 0.0
        self._said_at = 0.0
        self._up_at = 0.0

    def __str__(self) -> str:
        return f"broker {self.broker} at {self.url}"

    # --- saying ---
    def ask(self, page: int, topic_id: bytes, request: FetchRequest) -> None:
        self._wanted.append((page, topic_id, request))

    def flush(self, now: float) -> int:
        """Say what is to be said; how many requests went out."""
        if self._socket is None:
            if now < self._retry_at:
                return 0
            self._connect(now)
        if not self._has_greeted:
            self._greet(now)
        if not self.is_up:
            return 0
        sent = 0
        while self._wanted or now - self._said_at >= protocol.BEAT:
            items = list(self._wanted)[: protocol.ITEMS_MAX]
            if not self._send(protocol.encode(protocol.Fetch(self._serial + 1, items))):
                break
            self._serial += 1
            self._said_at = now
            self._unheard.append((self._serial, now))
            for _ in items:
                self._wanted.popleft()
            sent += len(items)
        return sent

    def _send(self, head: bytes) -> bool:
        assert self._socket is not None
        self._has_rung = True
        try:
            self._socket.send(head, NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _greet(self, now: float) -> None:
        if self._send(protocol.encode(self._hello(self.broker))):
            self._has_greeted = True
            self._heard_at = now  # from now on it may be expected to speak

    # --- hearing ---
    @property
    def has_messages(self) -> bool:
        """Asked before each sleep: from then on its descriptor tells of what comes. The socket is
        asked only where that sign may have been taken away: by sending, or at its making."""
        if self._has_rung:
            socket = self._socket
            self._has_rung = socket is not None and has_messages(socket)
        return self._has_rung

    def _rang(self) -> None:
        self._has_rung = True

    def receive(self, now: float) -> tuple[protocol.Answers, list[zmq.Frame]] | None:
        """Returns the next answers with their frames; None where there are none now. Takes in all
        other messages."""
        while self._socket is not None and self._has_rung:
            frames = received(self._socket)
            if frames is None:
                self._has_rung = False
                return None
            try:
                message = protocol.from_leader([frame.buffer for frame in frames])
            except protocol.WireError as error:
                self.fail(now, f"it says what is no message here: {error}")
                return None
            self._heard_at = now
            if isinstance(message, protocol.Answers):
                if not self.is_up:
                    continue  # of the connection before
                while self._unheard and self._unheard[0][0] <= message.heard:
                    self._unheard.popleft()
                return message, frames[1:]
            if isinstance(message, protocol.Refused):
                self._refused(now, message.why)
            else:
                self._welcomed(now, message)
        return None

    def _welcomed(self, now: float, message: protocol.Welcome) -> None:
        if message.version != protocol.VERSION or message.broker != self.broker:
            self.fail(now, f"broker {message.broker} answers, version {message.version}")
            return
        self.is_up = True
        self._said_at = now
        self._up_at = now
        logger.debug("fetching from %s", self)

    def _refused(self, now: float, why: str) -> None:
        """Its end of the connection is a new one, or it serves nobody like this one."""
        if self.is_up:
            self._forget()
            self._lost(self)
            return
        self.fail(now, f"it refuses: {why}")

    # --- life ---
    def _connect(self, now: float) -> None:
        sock = self._socket = self._context.socket(zmq.DEALER)
        self._has_rung = True
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.IMMEDIATE, 1)
        sock.setsockopt(zmq.RCVHWM, RCVHWM)
        sock.setsockopt(zmq.SNDHWM, SNDHWM)
        sock.setsockopt(zmq.MAXMSGSIZE, self._bytes_max)
        sock.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_LAST_MS)
        sock.setsockopt(zmq.CONNECT_TIMEOUT, int(protocol.SILENCE * 1000))
        sock.setsockopt(zmq.IPV6, int("[" in self.url))
        self._secure(sock, self._failures)
        sock.connect(self.url)
        self._watch(int(sock.getsockopt(zmq.FD)), self._rang)
        self._heard_at = now

    def listened(self, now: float) -> None:
        """It was this process that did not listen: nobody's silence counts."""
        self._heard_at = now
        self._unheard = deque((serial, now) for serial, _ in self._unheard)

    def check(self, now: float) -> None:
        """Give it up if nothing comes by it, or nothing goes."""
        if self._socket is None:
            return
        if self.is_up and now - self._up_at > STEADY:
            self._retries.reset()
        if now - self._heard_at > protocol.SILENCE:
            self.fail(now, f"nothing came for {protocol.SILENCE:g} s")
        elif self._unheard and now - self._unheard[0][1] > protocol.SILENCE + protocol.BEAT:
            self.fail(now, "nothing of what was asked arrives there")

    def fail(self, now: float, why: str) -> None:
        """Begin again after a pause."""
        pause = self._retries.next()
        self._failures += not self.is_up
        (logger.warning if self.is_up else logger.info)(
            "the connection to %s is given up, again in %.2f s: %s", self, pause, why
        )
        self._retry_at = now + pause
        self.close()
        self._lost(self)

    def _forget(self) -> None:
        self._has_greeted = self.is_up = False
        self._serial = 0
        self._wanted.clear()
        self._unheard.clear()

    def close(self) -> None:
        self._forget()
        sock, self._socket = self._socket, None
        if sock is not None:
            self._unwatch(int(sock.getsockopt(zmq.FD)))
            sock.close(0)
