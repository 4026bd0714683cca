"""One connection to one broker: connecting, greeting, sending, hearing, and how it ended.

A `Wire` is made for one attempt and never repaired: no message of an old connection can be taken
for the new one's. Its socket is `plainsocket`, with a key `curvesocket`. Used by the carrier's
thread only; never blocks.

    connecting --handshake--> greeting --Welcome--> up      each of them --> failed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import zmq

from penstock.client.remote.curvesocket import CurveSocket
from penstock.client.remote.hostname import HostName, looked_up, numeric
from penstock.client.remote.link import Host, host_text
from penstock.client.remote.plainsocket import PlainSocket
from penstock.client.remote.wiresocket import SocketEvent, WireSocket
from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.header import BATCH_BYTES_MAX
from penstock.security.keys import ClientKey

logger = logging.getLogger("penstock.remote")

CONNECT_WITHIN: Final = 3.0
"""Seconds for the TCP connection and ZeroMQ's handshake."""
WELCOME_WITHIN: Final = 5.0
MESSAGES_UNSENT_MAX: Final = 200_000
"""Messages that are kept for a broker that does not read. The windows of lanes and the credits
of cursors bound them long before."""
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
    SocketEvent.ABSENT: "nothing listens there",
    SocketEvent.UNKNOWN_KEY: "it does not know this client's key",
    SocketEvent.HUNG_UP: HUNG_UP,
}
_HUNG_UP_ON_KEY: Final = (
    "it hung up in the handshake: it uses no keys, or has another one than this client's key file "
    "says (`penstock keys show-server` tells it), or is no Penstock broker"
)
_HUNG_UP: Final = (
    "it hung up in the handshake: it wants a key (`penstock keys create`; then keys=FILE or "
    "$PENSTOCK_KEY), or is no Penstock broker"
)

TakeFetched = Callable[["Wire", fr.Fetched, codec.Piece | None], object]


class Wire:
    """A connection to one broker, for one attempt. `failed` tells why it ended, None while it has
    not. `fetched` takes the batches that come; other messages have no payload."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: Host,
        key: ClientKey | None,
        hello: fr.Hello,
        fetched: TakeFetched,
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
        self.refused: fr.Refused | None = None
        self.welcome: fr.Welcome | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.round_trip = 0.0
        self._hello = hello
        self._fetched = fetched
        self._key = key
        self._shaken = False
        self._name: HostName | None = None
        self.was_reached = self.is_closed = False
        """Whether anything listens there; whether it was closed here."""
        now = time.monotonic()
        self._deadline = now + CONNECT_WITHIN
        self._heard = now
        self._due = self._deadline
        self._pinged = 0.0
        self._hung_up_at: float | None = None
        # Both are asked for what they have only where they may have something: asking costs system
        # calls.
        self.may_have_messages = self._may_have_events = True
        self._plain: PlainSocket | None = None
        """Its socket, until that has an address to connect to."""
        self._socket = self._made(context, refused)
        self._name = looked_up(host[0])
        if self._name is None and self._plain is not None:
            self._plain.connect(numeric(host))
            self._plain = None

    def _made(
        self, context: zmq.Context[zmq.Socket[bytes]], refused: tuple[str, ...]
    ) -> WireSocket:
        if self._key is None:
            self._plain = PlainSocket(
                message_bytes_max=MESSAGE_BYTES_MAX, unsent_max=MESSAGES_UNSENT_MAX
            )
            return self._plain
        return CurveSocket(
            context, host_text(self.host), self._key, refused,
            connect_within=CONNECT_WITHIN, message_bytes_max=MESSAGE_BYTES_MAX,
            unsent_max=MESSAGES_UNSENT_MAX,
        )  # fmt: skip

    def _begin(self, plain: PlainSocket, name: HostName) -> None:
        """Connects to the addresses of that name."""
        self._plain = None
        try:
            plain.connect(name.at(self.host[1]))
        except OSError as error:  # out of descriptors: others of this carrier go on
            self.failed = f"no socket can be made: {error.strerror}"

    @property
    def servers_tried(self) -> tuple[str, ...]:
        """Public keys of the host that were tried by now."""
        return self._socket.servers_tried

    @property
    def is_up(self) -> bool:
        """Returns whether it can be used."""
        return self.is_accepted and self.failed is None

    def filenos(self) -> dict[int, Callable[[], None]]:
        """Returns descriptors that are readable on news, each with the call that notes this."""
        return self._socket.filenos(self._messages_came, self._events_came)

    def _messages_came(self) -> None:
        self.may_have_messages = True

    def _events_came(self) -> None:
        self._may_have_events = True

    @property
    def has_news(self) -> bool:
        """Returns whether there is something to read that makes no descriptor readable again."""
        if self.may_have_messages and self.has_messages:
            return True
        return self._may_have_events and self._socket.has_events

    def end_if_hung_up(self, now: float) -> None:
        """Ends a connection whose other side has hung up, once all that it said before is read."""
        if self._hung_up_at is None or self.failed is not None or self.has_messages:
            return
        if now - self._hung_up_at >= LAST_WORDS:
            self.failed = HUNG_UP

    @property
    def has_messages(self) -> bool:
        self.may_have_messages = self._socket.has_messages
        return self.may_have_messages

    # --- out ---
    def send(self, message: msgspec.Struct, payload: codec.Piece | None = None) -> None:
        """Sends a message. A connection that has failed or hung up drops it. A large payload is
        sent from its place: it stays there until its answer comes."""
        if self.failed is not None:
            return
        head = codec.encode(message)
        self.bytes_sent += len(head) + (0 if payload is None else len(payload))
        if self._socket.tells_once:
            self.may_have_messages = True  # sending may take the sign away that some came
        if not self._socket.send(head, payload):
            self._watch()  # with nobody at the other end there is no room either: that is told here
            if self.failed is None and self._hung_up_at is None:
                self.failed = f"{MESSAGES_UNSENT_MAX} messages wait to be read by it"

    # --- in ---
    def messages(self, count: int) -> Iterator[fr.GatewayMessage]:
        """Yields at most so many messages. Handles a welcome and pongs itself, and hands on what
        was fetched."""
        socket = self._socket
        for _ in range(count):
            if self.failed is not None:
                return
            frames = socket.receive()
            if frames is None:
                self.may_have_messages = False
                self._may_have_events = self._may_have_events or socket.has_events
                return
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
                yield message
            elif isinstance(message, fr.Refused) and message.endpoint == -1:
                self.refused = message
                self.failed = f"it refused: {message.message}"
                return
            elif self.welcome is None:
                self.failed = f"it said {type(message).__name__} before it greeted"
                return
            elif isinstance(message, fr.Fetched):
                self._fetched(self, message, payload)
            else:
                yield message

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
                if self._plain is not None and self.failed is None:
                    self._begin(self._plain, name)
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
        for event in self._socket.events():
            self._happened(event)
            if self.failed is not None:
                return
        self._may_have_events = False

    def _happened(self, event: SocketEvent) -> None:
        key = self._key
        match event:
            case SocketEvent.CONNECTED:
                self.was_reached = True
            case SocketEvent.SHAKEN:
                self._shaken = True
                self._deadline = time.monotonic() + WELCOME_WITHIN
                self.send(self._hello)
            case SocketEvent.HUNG_UP if self.welcome is not None:
                self._hung_up_at = time.monotonic()
            case SocketEvent.UNLIKE:
                self.is_unlike = True
                self.failed = _HUNG_UP if key is None else _HUNG_UP_ON_KEY
            case _:
                self.failed = _FAILED[event]
                if key is not None and key.is_expired(time.time()):
                    self.failed = f"this client's key expired at {key.expires_text}"

    def close(self, *, linger: float = 0.0) -> None:
        """Hangs up, after what was sent last has left or `linger` seconds have passed."""
        self.is_closed = True
        self._socket.close(linger)
        if self.failed is None:
            self.failed = "closed"

    def abandon(self) -> None:
        """Closes, in a forked child, its copy of the connection, which ends with the parent then.
        Nothing else is touched: the rest belongs to threads that the child has not."""
        self._socket.abandon(self.host[1])
