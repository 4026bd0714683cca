"""One broker that this one connects to: a fresh socket for each attempt, with longer waits between.

    waiting --> connecting --Welcome--> up --end, silence, refusal--> waiting

ZeroMQ is told not to reconnect, so that nothing of an old connection is taken for the new one's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.core.errors import PenstockError
from penstock.security.keys import ServerKey
from penstock.server.quorum import messages as qm
from penstock.server.quorum.sockets import Context, Watched, close_monitored, dealer, resolved

logger = logging.getLogger("penstock.quorum")

WELCOME_WITHIN: Final = 3.0
BACKOFF: Final = 0.05
BACKOFF_MAX: Final = 1.0
REFUSALS: Final = 2
"""Attempts that were refused one after the other: nothing listens there any more."""
AT_ONCE: Final = 1.0
"""Within so many seconds a host that is there refuses."""
PINGS: Final = 4
"""In the time after which silence is an end."""
_ENDS: Final = {
    zmq.EVENT_CLOSED: "nothing listens there",
    zmq.EVENT_DISCONNECTED: "it hung up",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "its handshake failed: has it the same cluster_key?",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "its handshake failed: has it the same cluster_key?",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not let this broker's cluster_key in",
}


class Dial:
    """`hello()` makes the greeting; `welcomed(node, Welcome)` raises where the other one is not who
    it should be; `received(node, message)`: anything but greetings and pings."""

    def __init__(
        self,
        context: Context,
        node: int,
        url: str,
        key: ServerKey | None,
        silence: float,
        counts: Counter[str],
        *,
        hello: Callable[[], qm.Hello],
        welcomed: Callable[[int, qm.Welcome], None],
        received: Callable[[int, qm.LinkMessage], None],
    ) -> None:
        self.node = node
        self.url = url
        self.is_up = False
        self.trouble = ""
        """Why it is not up; empty before the first attempt has ended."""
        self._context = context
        self._key = key
        self._silence = silence
        self._counts = counts
        self._hello = hello
        self._welcomed = welcomed
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._backoff = BACKOFF
        self._heard_at = self._due = 0.0
        self._is_closed = False
        self._socket: Watched | None = None
        self._monitor: Watched | None = None
        self._refusals = 0
        self._failures = 0
        self._began_at = 0.0
        self._attempt: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(0.0, self._begin)

    @property
    def is_gone(self) -> bool:
        """Whether its host says that nothing listens there."""
        return self._refusals >= REFUSALS

    def send(self, data: bytes) -> bool:
        return self.is_up and self._socket is not None and self._socket.send([data])

    def close(self) -> None:
        self._is_closed = True
        self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        self._hang_up()

    # --- an attempt ---
    def _begin(self) -> None:
        self._attempt = self._loop.create_task(self._connect(), name=f"dial {self.node}")

    async def _connect(self) -> None:
        try:
            url = await resolved(self.url)
        except (OSError, ValueError, OverflowError) as error:
            self._fail(f"no address is found for it in time: {error}")
            return
        try:
            socket = dealer(self._context, url, self._key, WELCOME_WITHIN, self._failures)
        except zmq.ZMQError as error:  # no descriptors
            self._fail(f"it cannot be tried: {error.strerror}")
            return
        monitor = socket.get_monitor_socket(sum(_ENDS))
        monitor.setsockopt(zmq.LINGER, 0)
        self._monitor = Watched(monitor, self._told)
        self._socket = Watched(socket, self._take)
        try:
            socket.connect(url)
        except zmq.ZMQError as error:
            self._fail(f"it cannot be tried: {error.strerror}")
            return
        self._socket.send([qm.encode(self._hello())])
        self._heard_at = self._began_at = self._loop.time()
        self._timer = self._loop.call_later(WELCOME_WITHIN, self._late)

    def _late(self) -> None:
        self._fail(
            f"something listens there, and says no welcome within {WELCOME_WITHIN:g} s: is it "
            "stopped?"
        )

    def _fail(self, why: str, level: int = logging.INFO) -> None:
        """Hang up, and try again after a while."""
        if self._is_closed:
            return
        if self.is_up or why != self.trouble:
            logger.log(level, "control link to broker %d at %s: %.300s", self.node, self.url, why)
        self._counts["links_lost" if self.is_up else "attempts_failed"] += 1
        self._failures += not self.is_up
        self.trouble = why
        self._hang_up()
        self._timer.cancel()
        self._timer = self._loop.call_later(self._backoff, self._begin)
        self._backoff = min(2 * self._backoff, BACKOFF_MAX)

    def _hang_up(self) -> None:
        self.is_up = False
        if self._socket is not None and self._monitor is not None:
            close_monitored(self._socket, self._monitor)
        self._socket = self._monitor = None

    # --- what is heard ---
    def _told(self, frames: list[zmq.Frame]) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])
        what = zmq.Event(int(event["event"]))
        is_refused = what == zmq.EVENT_CLOSED and self._loop.time() - self._began_at < AT_ONCE
        self._refusals = self._refusals + 1 if is_refused else 0
        waited = self._loop.time() - self._began_at
        if what == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and waited > WELCOME_WITHIN / 2:
            self._late()  # no refusal: nobody said anything
        else:
            self._fail(_ENDS[what])

    def _take(self, frames: list[zmq.Frame]) -> None:
        self._heard_at = self._loop.time()
        self._refusals = 0
        try:
            if len(frames) != 1:
                raise qm.LinkError(f"{len(frames)} frames where one is due")
            message = qm.decode(frames[0].buffer)
            if isinstance(message, qm.Welcome):
                self._welcomed(self.node, message)
        except PenstockError as error:
            self._counts["refused: welcome"] += 1
            self._fail(str(error), logging.WARNING)
            return
        if isinstance(message, qm.Welcome):
            self._up()
        elif isinstance(message, qm.Refused):
            self._fail(f"it refused: {message.message}", logging.WARNING)
        elif not self.is_up:
            self._fail(f"it said {type(message).__name__} before it greeted")
        elif not isinstance(message, qm.Pong):
            self._received(self.node, message)

    def _up(self) -> None:
        self.is_up = True
        self.trouble = ""
        self._backoff = BACKOFF
        self._timer.cancel()
        self._due = self._loop.time()
        self._ping()

    def _ping(self) -> None:
        now = self._loop.time()
        if now - self._due > self._silence / PINGS:
            self._heard_at = now  # this process was not there: that says nothing of the other
        if now - self._heard_at > self._silence:
            self._fail(f"no sign of life for {now - self._heard_at:.1f} s")
            return
        self.send(qm.encode(qm.Ping(int(now * 1e6))))
        self._due = now + self._silence / PINGS
        self._timer = self._loop.call_at(self._due, self._ping)
