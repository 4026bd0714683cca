"""The line of a node without keys: sockets of the gateway's own, which speak `zmtp`.

    accepted --greeting, READY--> shaken --its hello is taken--> known     each of them --> closed

A thread of ZeroMQ's between network and gateway costs a record two wakes and a fifth of its system
calls. So the gateway accepts by itself, and each connection has its bounds here: its time and bytes
until it says hello, the length of a frame and of a message, commands between two messages. Each
has one buffer, and the long frame that has begun. At most the rest of one message is unsent: all
else waits in the outbox (`peers`).

Connections that have something take turns, a message each. A connection over its budget is not read
for a while: the budget of its peer counts messages, one of its own counts commands and tiny pieces.
A flood waits in TCP, and wakes nobody.

An address that connects again and again waits for a moment (`arrivals`, `synfilter`). Accepting and
ending connections would cost the others more than their messages do.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from penstock.client.remote.zmtp import ZmtpStage, ZmtpStream
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece
from penstock.server.config import NodeConfig, check_listen
from penstock.server.gateway.arrivals import Arrivals
from penstock.server.gateway.events import Events
from penstock.server.gateway.line import (
    ACCEPT_PAUSE,
    BACKLOG,
    CHOSE_IDENTITY,
    NO_DESCRIPTORS,
    NO_HELLO,
    NO_ZEROMQ,
    STRANGER_BYTES_MAX,
    STRANGERS_EXTRA,
    TOO_MANY,
    TOO_MUCH,
    ClientParts,
    ConnectionGone,
    PeerSource,
    cannot_listen,
)
from penstock.server.gateway.slow_readers import PAUSE, Budget
from penstock.server.gateway.synfilter import keep_waiting

logger = logging.getLogger("penstock.gateway")

BUFFER_BYTES: Final = 16 << 10
"""Bytes that are read of a connection at once, besides the rest of a long frame."""
COMMANDS_MAX: Final = 64
"""Commands that a client may send between two messages: its pings are messages."""
PIECE_BYTES: Final = 512
"""A read of fewer bytes that completes nothing counts as a message of those that nothing bounds."""
ACCEPTS_PER_TURN: Final = 64
LOOK_MAX: Final = 4096
"""Messages that are read in vain at once."""
TAKEN_AT_ONCE: Final = 256
"""Connections that one look at descriptors takes in."""
_REASONS: Final = {NO_HELLO, TOO_MUCH, CHOSE_IDENTITY}
_OUT_OF_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class PlainConnection(ZmtpStream):
    """A client's connection."""

    def __init__(
        self, line: PlainLine, made: socket.socket, number: int, address: str, now: float
    ) -> None:
        super().__init__(
            b"ROUTER", frame_bytes_max=fr.CLIENT_HEADER_MAX, frames_max=1 + fr.PAYLOADS_MAX,
            buffer_bytes=BUFFER_BYTES,
        )  # fmt: skip
        self._line = line
        self._socket = made
        self._commands_max = COMMANDS_MAX
        self.fd = made.fileno()
        self.identity = b"\0" + number.to_bytes(8, "big")
        self.address = address
        self.since = now
        self.is_known = False
        self.is_ready = False
        """Whether it has its place among those that may have something."""
        self.is_paused = self.is_blocked = False
        self.why = ""
        self.budget = Budget(now)
        self._read_now = self._bytes_before = 0  # bytes: by the last look; before its hello

    @property
    def is_closed(self) -> bool:
        return self._socket is None

    @property
    def is_mute(self) -> bool:
        return self._is_mute

    @property
    def is_over(self) -> bool:
        return self._stage is ZmtpStage.OVER

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def greet(self) -> None:
        self._greet()

    def known(self, frame_bytes_max: int) -> None:
        """It is a peer from now on."""
        self.is_known, self._bytes_max = True, frame_bytes_max

    def came(self) -> None:
        """Its descriptor tells of something."""
        self._is_dry = False

    def next(self) -> list[Piece] | None:
        """Returns its next message, None while there is none."""
        self._read_now = 0
        found = self._next()
        if found is None and 0 < self._read_now < PIECE_BYTES:
            self._charge()
        return found

    def say(self, head: bytes, payload: Piece | None) -> bool:
        """Returns False where there is no room. Raises `ConnectionGone`."""
        if self._unsent:
            self._flush()
        if self._is_mute or self._stage not in (ZmtpStage.UP, ZmtpStage.OVER):
            raise ConnectionGone
        if self._unsent:
            return False
        if not self._say(head, payload):
            raise ConnectionGone
        return True

    def flush(self) -> None:
        if self._unsent:
            self._flush()

    def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    def _read(self) -> bool:
        before = self._end - self._at + self._long_end
        if not super()._read():
            return False
        came = self._end - self._at + self._long_end - before
        self._read_now += came
        if not self.is_known:
            self._bytes_before += came
            if self._bytes_before > STRANGER_BYTES_MAX:
                self._hang_up(TOO_MUCH)
                return False
        return True

    def _charge(self) -> None:
        if self.budget.take(time.monotonic(), 1):
            self._line.note_flood(self)

    def _commanded(self, body: bytes) -> None:
        self._charge()
        super()._commanded(body)

    def _shaken(self, said: dict[bytes, bytes]) -> None:
        if said.get(b"identity"):
            self._hang_up(CHOSE_IDENTITY)

    def _ended(self, why: str) -> None:
        self.why = why

    def _muted(self) -> None:
        """The kernel tells of its end when it is read, or the next sweep ends it."""

    def _blocked(self, is_blocked: bool) -> None:
        self.is_blocked = is_blocked
        self._line.interest(self)


class PlainLine:
    """The listening socket and its connections. `gone` gets the end of each, by its descriptor;
    `broke`: it does not keep to the protocol, and is to be told and shut down; `refused` gets the
    reason of strangers that were ended here; `held`: an address waits from now on; `flooded`: a
    connection is read slowly."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        gone: Callable[[int], None],
        broke: Callable[[int, str], None],
        refused: Callable[[str], None],
        held: Callable[[], None] = lambda: None,
        flooded: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self.url = ""
        self._gone = gone
        self._broke = broke
        self._refused = refused
        self._held = held
        self._flooded = flooded
        self._frame_bytes_max = max(config.batch_bytes_max, fr.CLIENT_HEADER_MAX)
        self._arrivals = Arrivals(config.connections_max)
        self._poll = select.epoll()
        self._listening: socket.socket | None = None
        self._resume_at = 0.0
        self._number = 0
        self._connections: dict[int, PlainConnection] = {}
        self._by_identity: dict[bytes, PlainConnection] = {}
        self._strangers: dict[int, PlainConnection] = {}
        self._ready: deque[PlainConnection] = deque()
        self._paused: OrderedDict[PlainConnection, float] = OrderedDict()  # until when, in order
        self._unwatch: Callable[[], None] = lambda: None

    def bind(self, url: str) -> str:
        host, port = check_listen(url)
        try:
            made = _listen(host, port, int(self._config.client_silence_max * 1000))
        except OSError as error:
            raise cannot_listen(url, error.errno) from error
        self._listening = made
        self._poll.register(made.fileno(), select.EPOLLIN)
        at, port = made.getsockname()[:2]
        self.url = (
            f"tcp://[{at}]:{port}" if made.family == socket.AF_INET6 else f"tcp://{at}:{port}"
        )
        return self.url

    def watch(self, events: Events) -> None:
        fd = self._poll.fileno()
        events.watch(fd, self.look)
        self._unwatch = lambda: events.unwatch(fd)

    # --- messages ---
    def pause(self, now: float) -> float | None:
        if self._ready:
            return 0.0
        return max(0.0, next(iter(self._paused.values())) - now) if self._paused else None

    def take(self, now: float) -> ClientParts | None:
        while self._paused and next(iter(self._paused.values())) <= now:
            self._go_on(self._paused.popitem(last=False)[0])
        ready = self._ready
        while ready:
            connection = ready.popleft()
            connection.is_ready = False
            if connection.is_paused or connection.is_closed:
                continue
            parts = connection.next()
            if parts is not None:
                self._get_ready(connection)
                return ClientParts(connection.identity, parts, connection)
            if connection.is_over:
                self._over(connection)
            elif connection.budget.is_over:
                self._pause(connection, now)
        return None

    def took(self, identity: bytes, is_over: bool, now: float) -> None:
        connection = self._by_identity.get(identity)
        if connection is not None and (is_over or connection.budget.is_over):
            self._pause(connection, now)

    def _get_ready(self, connection: PlainConnection) -> None:
        if not connection.is_ready:
            connection.is_ready = True
            self._ready.append(connection)

    def _pause(self, connection: PlainConnection, now: float) -> None:
        """All that are paused have one message together in each `PAUSE`."""
        if not connection.is_paused:
            connection.is_paused = True
            after = max(now, next(reversed(self._paused.values()), now))
            self._paused[connection] = after + PAUSE
            self.interest(connection)

    def _go_on(self, connection: PlainConnection) -> None:
        connection.is_paused = False
        self.interest(connection)
        connection.came()
        self._get_ready(connection)

    def source(self, arrived: ClientParts) -> PeerSource | None:
        connection: PlainConnection = arrived.origin
        return PeerSource(connection.fd, connection.address, "")

    def send(self, identity: bytes, head: bytes, payload: Piece | None) -> bool:
        connection = self._by_identity.get(identity)
        if connection is None:
            raise ConnectionGone
        return connection.say(head, payload)

    def note_flood(self, connection: PlainConnection) -> None:
        self._flooded()
        logger.warning(
            "%s floods with commands or tiny pieces: it is read slowly from now on",
            connection.address, extra={"address": connection.address},
        )  # fmt: skip

    # --- connections ---
    def look(self) -> None:
        for fd, events in self._poll.poll(0, TAKEN_AT_ONCE):
            connection = self._connections.get(fd)
            if connection is None:
                self._accept()
                continue
            if events & select.EPOLLOUT:
                connection.flush()
            if connection.is_paused and events & (select.EPOLLHUP | select.EPOLLERR):
                self._end(connection, "")  # it would wake us for as long as the pause is
                continue
            connection.came()
            self._get_ready(connection)

    def interest(self, connection: PlainConnection) -> None:
        """Asks its descriptor for news: messages unless it is paused, room if some are unsent."""
        events = 0 if connection.is_paused else select.EPOLLIN
        if connection.is_blocked:
            events |= select.EPOLLOUT
        self._poll.modify(connection.fd, events)

    def _accept(self) -> None:
        listening = self._listening
        for _ in range(ACCEPTS_PER_TURN):
            if listening is None or self._resume_at:
                return
            try:
                made, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_ROOM:
                    self._stop_accepting(listening, error)
                    return
                continue  # that one has gone again
            self._accepted(made, str(address[0]).partition("%")[0])

    def _accepted(self, made: socket.socket, address: str) -> None:
        now = time.monotonic()
        if self._arrivals.came(address, now):
            logger.warning("%s connects too often: it is kept waiting", address)
            self._held()
            self._hold()
        if len(self._connections) >= self._config.connections_max + STRANGERS_EXTRA:
            self._refused(TOO_MANY)
            made.close()
            return
        made.setblocking(False)
        self._number += 1
        connection = PlainConnection(self, made, self._number, address, now)
        self._connections[connection.fd] = self._strangers[connection.fd] = connection
        self._by_identity[connection.identity] = connection
        self._poll.register(connection.fd, select.EPOLLIN)
        connection.greet()

    def _hold(self) -> None:
        """Keeps clients waiting that are to wait, where the kernel does that."""
        if self._listening is not None:
            try:
                keep_waiting(self._listening, self._arrivals.held)
            except OSError as error:
                logger.warning("connections cannot be kept waiting here: %s", error)

    def _stop_accepting(self, listening: socket.socket, error: OSError) -> None:
        logger.error("no connection accepted for %g s: %s", ACCEPT_PAUSE, error.strerror)
        self._refused(NO_DESCRIPTORS)
        self._resume_at = time.monotonic() + ACCEPT_PAUSE
        self._poll.unregister(listening.fileno())

    def said_hello(self, fd: int) -> None:
        connection = self._strangers.pop(fd, None)
        if connection is not None:
            connection.known(self._frame_bytes_max)

    def sweep(self, now: float) -> None:
        if self._arrivals.let_go(now):
            self._hold()
        for connection in list(self._strangers.values()):
            if now - connection.since <= self._config.hello_timeout:
                break  # those behind it came later
            self._end(connection, NO_HELLO)
        for connection in [each for each in self._connections.values() if each.is_mute]:
            self._end(connection, "")  # it may not know of its end
        if self._resume_at and now >= self._resume_at and self._listening is not None:
            self._resume_at = 0.0
            self._poll.register(self._listening.fileno(), select.EPOLLIN)

    def _end(self, connection: PlainConnection, why: str) -> None:
        if connection.is_closed:
            return
        fd = connection.fd
        self._poll.unregister(fd)
        del self._connections[fd], self._by_identity[connection.identity]
        self._strangers.pop(fd, None)
        self._paused.pop(connection, None)
        if why and not connection.is_known:
            logger.debug("connection of %s dropped before its hello: %s", connection.address, why)
            # A metric must not get a label for each length: the log alone has it.
            self._refused(why if why in _REASONS else NO_ZEROMQ)
        self._gone(fd)
        connection.close()

    def _over(self, connection: PlainConnection) -> None:
        """Nothing more is read of it."""
        if connection.why and connection.is_known and not connection.is_mute:
            connection.is_paused = True  # for good: `broke` has it shut down
            self.interest(connection)
            self._broke(connection.fd, connection.why)
        else:
            self._end(connection, connection.why)

    def shut_down(self, fd: int) -> None:
        connection = self._connections.get(fd)
        if connection is not None:
            self._end(connection, "")

    def bytes_received(self, fd: int) -> int:
        return 0  # a message has two frames at most

    @property
    def has_connections(self) -> bool:
        return len(self._connections) > len(self._strangers)

    # --- the end ---
    def read_in_vain(self) -> None:
        self.look()
        for _ in range(LOOK_MAX):
            if self.take(time.monotonic()) is None:
                break

    def close(self, linger: float) -> None:
        self._unwatch()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        until = time.monotonic() + linger
        while any(each.has_unsent for each in self._connections.values()):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._poll.poll(left, 1)
            self.read_in_vain()
        for connection in list(self._connections.values()):
            self._end(connection, "")
        self._poll.close()


def _listen(host: str, port: int, silence_ms: int) -> socket.socket:
    """Raises OSError. Connections inherit the options that are set here."""
    asked = socket.AF_INET6 if host.startswith("[") else socket.AF_INET  # as with keys
    host = host.removeprefix("[").removesuffix("]")
    name = None if host == "*" else host
    try:
        found = socket.getaddrinfo(name, port, asked, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, error.strerror) from error
    family, kind, _, _, address = found[0]
    made = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
