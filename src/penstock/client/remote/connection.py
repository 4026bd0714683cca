"""One connection to one broker: connecting, greeting, sending, hearing, and how it ended.

A `Wire` is made for one attempt and never repaired. ZeroMQ is told not to reconnect, so that
no message of an old connection can be taken for the new one's. Used by the carrier's thread only;
never blocks.

    connecting --handshake--> greeting --Welcome--> up      each of them --> failed
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.client.remote.hostname import HostName, looked_up
from penstock.client.remote.link import Host, host_text
from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.header import BATCH_BYTES_MAX
from penstock.security.keys import ClientKey

logger = logging.getLogger("penstock.remote")

CONNECT_WITHIN: Final = 3.0
"""Seconds for the TCP connection and ZeroMQ's handshake."""
WELCOME_WITHIN: Final = 5.0
MESSAGES_UNSENT_MAX: Final = 200_000
"""Messages that ZeroMQ keeps for a broker that does not read. The windows of lanes and the credits
of cursors bound them long before."""
ZERO_COPY_FROM: Final = 64 << 10
"""Payloads of at least so many bytes: a copy is memory that the system has to clear each time."""
MESSAGES_UNREAD_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = BATCH_BYTES_MAX + fr.GATEWAY_HEADER_MAX
LINGER_MAX: Final = 0.5
"""Seconds that a good-bye may take to leave."""
LOOK_UP_EVERY: Final = 0.02
"""Seconds between looks at whether the host's name is known."""
LATE_MAX: Final = 1.0
"""Seconds by which a look may be late before it was this process that was not there."""

LAST_WORDS: Final = 0.02
"""Seconds for which a connection that ended is read: ZeroMQ tells of the end before it hands over
what came last."""
HUNG_UP: Final = "it hung up"
_FAILED: Final = {
    zmq.EVENT_CLOSED: "nothing listens there",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know this client's key",
    zmq.EVENT_DISCONNECTED: HUNG_UP,
}
_UNLIKE: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
)
"""One side wants keys and the other shows none, or another one: which of the two is told depends on
who hangs up first."""
_HUNG_UP_ON_KEY: Final = (
    "it hung up in the handshake: it uses no keys, or has another one than this client's key file "
    "says (`penstock keys show-server` tells it), or is no Penstock broker"
)
_HUNG_UP: Final = (
    "it hung up in the handshake: it wants a key (`penstock keys create`; then keys=FILE or "
    "$PENSTOCK_KEY), or is no Penstock broker"
)
_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


class Wire:
    """A connection to one broker, for one attempt. `failed` tells why it ended, None while it has
    not."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: Host,
        key: ClientKey | None,
        hello: fr.Hello,
        refused: tuple[str, ...] = (),
    ) -> None:
        """Begins to connect. `refused`: public keys of the host that were tried before."""
        self.host = host
        self.broker = fr.NOBODY
        """The broker of a cluster that it goes to."""
        self.is_accepted = False
        """Whether the host that has greeted is the one that was meant."""
        self.failed: str | None = None
        self.is_unlike = False
        """Whether it failed because one side has no key, or another one."""
        self.servers_tried = refused
        self.refused: fr.Refused | None = None
        self.welcome: fr.Welcome | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.round_trip = 0.0
        self._hello = hello
        self._key = key
        self._shaken = False
        self._name: HostName | None = None
        self._tcp = -1  # the descriptor of the connection, which is ZeroMQ's
        now = time.monotonic()
        self._deadline = now + CONNECT_WITHIN
        self._heard = now
        self._due = self._deadline
        self._pinged = 0.0
        self._socket = socket = context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        self._hung_up_at: float | None = None
        # Both are asked for what they have only where they may have something: asking costs two
        # system calls and more.
        self.may_have_messages = self._may_have_events = True
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.setsockopt(zmq.RECONNECT_IVL, -1)
            socket.setsockopt(zmq.CONNECT_TIMEOUT, int(CONNECT_WITHIN * 1000))
            socket.setsockopt(zmq.HANDSHAKE_IVL, int(CONNECT_WITHIN * 1000))
            socket.setsockopt(zmq.SNDHWM, MESSAGES_UNSENT_MAX)
            socket.setsockopt(zmq.RCVHWM, MESSAGES_UNREAD_MAX)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.setsockopt(zmq.IPV6, 1)
            if key is not None:
                socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
                socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
                left = [server for server in key.servers if server not in refused]
                server = left[0] if left else key.server
                self.servers_tried = (*refused, server)
                socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            self._monitor = socket.get_monitor_socket(_EVENTS)
            self._monitor.setsockopt(zmq.LINGER, 0)
            socket.connect(f"tcp://{host_text(host)}")
            self._name = looked_up(host[0])
        except BaseException:
            self.close()
            raise

    @property
    def was_reached(self) -> bool:
        """Returns whether anything listens there."""
        return self._tcp >= 0

    @property
    def is_up(self) -> bool:
        """Returns whether it can be used."""
        return self.is_accepted and self.failed is None

    @property
    def is_closed(self) -> bool:
        return self._monitor is None

    def filenos(self) -> dict[int, Callable[[], None]]:
        """Returns descriptors that are readable on news, each with the call that notes this."""
        assert self._monitor is not None
        return {
            self._socket.fileno(): self._messages_came,
            self._monitor.fileno(): self._events_came,
        }

    def _messages_came(self) -> None:
        self.may_have_messages = True

    def _events_came(self) -> None:
        self._may_have_events = True

    @property
    def has_news(self) -> bool:
        """Returns whether there is something to read that makes no descriptor readable again."""
        assert self._monitor is not None
        if self.may_have_messages and self.has_messages:
            return True
        return self._may_have_events and bool(
            int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        )

    def end_if_hung_up(self, now: float) -> None:
        """Ends a connection whose other side has hung up, once all that it said before is read."""
        if self._hung_up_at is None or self.failed is not None or self.has_messages:
            return
        if now - self._hung_up_at >= LAST_WORDS:
            self.failed = HUNG_UP

    @property
    def has_messages(self) -> bool:
        self.may_have_messages = bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
        return self.may_have_messages

    # --- out ---
    def send(self, message: msgspec.Struct, payload: codec.Piece | None = None) -> None:
        """Hands a message to ZeroMQ. A connection that has failed or hung up drops it. A large
        payload is sent from its place: it stays there until its answer comes."""
        if self.failed is not None:
            return
        head = codec.encode(message)
        self.bytes_sent += len(head)
        self.may_have_messages = True  # sending may take the sign away that some came
        try:
            if payload is None:
                self._socket.send(head, zmq.NOBLOCK)
            else:
                self._socket.send(head, zmq.NOBLOCK | zmq.SNDMORE)
                self._send_payload(payload)
                self.bytes_sent += len(payload)
        except zmq.Again:
            self._watch()  # with nobody at the other end there is no room either: that is told here
            if self.failed is None and self._hung_up_at is None:
                self.failed = f"{MESSAGES_UNSENT_MAX} messages wait to be read by it"

    def _send_payload(self, payload: codec.Piece) -> None:
        if len(payload) >= ZERO_COPY_FROM:
            try:
                self._socket.send(payload, zmq.NOBLOCK, copy=False)
                return
            except RuntimeError:  # the process ends, and with it what pyzmq needs for that
                pass
        self._socket.send(payload, zmq.NOBLOCK, copy=True)

    # --- in ---
    def messages(self, count: int) -> Iterator[tuple[fr.GatewayMessage, codec.Piece | None]]:
        """Yields at most so many messages. Handles a welcome and pongs itself."""
        socket = self._socket
        for _ in range(count):
            if self.failed is not None:
                return
            try:
                frames: list[codec.Piece] = [socket.recv(zmq.NOBLOCK)]
            except zmq.Again:
                self.may_have_messages = False
                return
            while socket.getsockopt(zmq.RCVMORE):
                frames.append(socket.recv(zmq.NOBLOCK, copy=False).buffer)
            self._heard = time.monotonic()
            self.bytes_received += sum(map(len, frames))
            try:
                message, payload = codec.from_gateway(frames)
            except codec.FrameError as error:
                self.failed = f"it sent what is no message of this protocol: {error}"
                return
            if isinstance(message, fr.Pong):
                self.round_trip = max(0.0, time.monotonic() - message.stamp / 1e9)
            elif isinstance(message, fr.Welcome):
                self._greeted(message)
                yield message, None
            elif isinstance(message, fr.Refused) and message.endpoint == -1:
                self.refused = message
                self.failed = f"it refused: {message.message}"
                return
            elif self.welcome is None:
                self.failed = f"it said {type(message).__name__} before it greeted"
                return
            else:
                yield message, payload

    def _greeted(self, welcome: fr.Welcome) -> None:
        if self.welcome is not None:
            self.failed = "it greeted twice"
        elif welcome.protocol != fr.PROTOCOL_VERSION:
            self.refused = fr.Refused(
                -1, "UnsupportedVersionError",
                f"the broker at {host_text(self.host)} speaks version {welcome.protocol} of the "
                f"protocol ({welcome.software}), this client {fr.PROTOCOL_VERSION}",
            )  # fmt: skip
            self.failed = self.refused.message
        else:
            self.welcome = welcome

    # --- time ---
    def is_to_be_looked_at(self, now: float) -> bool:
        """Returns whether `look` may find something."""
        if self._may_have_events or self.welcome is None or self._hung_up_at is not None:
            return True
        return now - self._pinged >= self.welcome.heartbeat

    def look(self, now: float) -> None:
        """Checks the connection's state, sends pings, and ends it after a long silence."""
        self._watch()
        if self.failed is not None:
            return
        welcome = self.welcome
        if welcome is None:
            name = self._name
            if name is not None and not name.is_alive():
                self.failed, self._name = name.unknown, None
            if self.failed is None and now > self._deadline:
                self.failed = (
                    f"no greeting within {WELCOME_WITHIN:g} s: is that a Penstock broker?"
                    if self._shaken
                    else f"no answer within {CONNECT_WITHIN:g} s: is it on, no firewall between?"
                )
            return
        if now - self._due > LATE_MAX:
            self._heard = now  # this process was stopped or starved: that says nothing of the other
        if now - self._heard > welcome.silence_max and not self.has_messages:
            self.failed = f"no sign of life for {now - self._heard:.1f} s"
        elif now - self._pinged >= welcome.heartbeat:
            self._pinged = now
            self.send(fr.Ping(time.monotonic_ns()))

    def due(self) -> float:
        """Returns when `look` has to be called next, at the latest (monotonic)."""
        self._due = (
            self._deadline if self.welcome is None else self._pinged + self.welcome.heartbeat
        )
        if self._hung_up_at is not None:
            return min(self._due, self._hung_up_at + LAST_WORDS)
        if self._name is None or self.welcome is not None:
            return self._due
        return min(self._due, time.monotonic() + LOOK_UP_EVERY)

    def _watch(self) -> None:
        monitor = self._monitor
        assert monitor is not None
        while self.failed is None:
            try:
                parts = monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._may_have_events = False
                return
            told = parse_monitor_message(parts)
            event = int(told["event"])
            if event == zmq.EVENT_CONNECTED:
                self._tcp = int(told["value"])
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._shaken = True
                self._deadline = time.monotonic() + WELCOME_WITHIN
                self.send(self._hello)
            elif event == zmq.EVENT_DISCONNECTED and self.welcome is not None:
                self._hung_up_at = time.monotonic()
                return
            elif event in _UNLIKE:
                self.is_unlike = True
                self.failed = _HUNG_UP if self._key is None else _HUNG_UP_ON_KEY
            elif event in _FAILED:
                self.failed = _FAILED[zmq.Event(event)]
                if self._key is not None and self._key.is_expired(time.time()):
                    self.failed = f"this client's key expired at {self._key.expires_text}"

    def close(self, *, linger: float = 0.0) -> None:
        """Hangs up, after what was sent last has left or `linger` seconds have passed."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._socket.close(int(linger * 1000))
        if self.failed is None:
            self.failed = "closed"

    def abandon(self) -> None:
        """Closes, in a forked child, its copy of the connection, which ends with the parent then.
        Nothing else is touched: the rest belongs to threads that the child has not."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._tcp)) as copy:
            if copy.getpeername()[1] == self.host[1]:
                os.close(self._tcp)
