"""A connection without keys: ZeroMQ's protocol (ZMTP 3.1, NULL) over a socket of the carrier's own.

A thread of ZeroMQ's between the carrier and the network is two more wakes of each message there and
back, which is most of what a record waits for. A gateway cannot tell the difference.

    idle --connect--> connecting --> greeting --> readying --> up        each of them --> over

Bytes on the way (all frames; `more` 1, `long` 2, `command` 4 in their flags):

    greeting  ff 0 0 0 0 0 0 0 1 7f | 3 1 | mechanism, 20 bytes | as-server | 31 zeros
    frame     flags | size: 1 byte, 8 if long | body
    command   a frame whose body begins with a short name and its length: READY, ERROR, PING, PONG
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

from penstock.client.remote.wiresocket import SocketEvent
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece

Address = tuple[int, Any]
"""Family and address of a socket."""

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_GREETING_BYTES: Final = 64
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = b"\xff" + bytes(7) + b"\1\x7f" + b"\3\1" + _MECHANISM + bytes(32)
_LEAST_VERSION: Final = 3
_PING: Final = b"\4PING"
_PONG: Final = b"\4PONG"
_PING_CONTEXT_AT: Final = len(_PING) + 2
_PING_CONTEXT_MAX: Final = 16
BUFFER_BYTES: Final = 64 << 10
"""Frames that are no longer are read into one buffer and copied out of it."""
KEPT_FROM: Final = 64 << 10
"""Payloads of at least so many bytes are sent from where they lie, as their sender knows."""
HEARD_OUT_FOR: Final = 0.1
"""Seconds for which a broker that was said good-bye to may take to hang up."""
assert len(_GREETING) == _GREETING_BYTES


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _frame_head(size: int, flags: int) -> bytes:
    if size < 256:
        return bytes((flags, size))
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def _command(body: bytes) -> bytes:
    return _frame_head(len(body), _COMMAND) + body


_READY: Final = _command(
    b"\5READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", b"")
)


class _Stage(IntEnum):
    CONNECTING = 0
    GREETING = 1
    READYING = 2
    UP = 3
    OVER = 4


class PlainSocket:
    """A connection without keys to one of the addresses of a host. `unsent_max`: messages that
    wait here for a broker that does not read."""

    tells_once = False
    servers_tried: tuple[str, ...] = ()

    def __init__(self, *, message_bytes_max: int, unsent_max: int) -> None:
        self._bytes_max = message_bytes_max
        self._unsent_max = unsent_max
        self._poll = select.epoll()  # one descriptor, whichever address is tried
        self._socket: socket.socket | None = None
        self._stage = _Stage.CONNECTING
        self._addresses: deque[Address] = deque()
        self._news: deque[SocketEvent] = deque()
        self._unsent: deque[Piece] = deque()
        self._is_mute = False  # nothing can be sent any more, and the end is told of
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._at = self._end = 0  # what is unread of the buffer
        self._long: memoryview | None = None  # a long frame that has begun
        self._long_end = 0
        self._long_flags = 0
        self._frames: list[Piece] = []  # of a message that has begun
        self._found: list[Piece] | None = None
        self._is_dry = False  # a read brought less than it could: the descriptor tells of more

    # --- its life ---
    def connect(self, addresses: Iterable[Address]) -> None:
        """Tries these one after the other."""
        self._addresses.extend(addresses)
        self._try_next()

    def _try_next(self) -> None:
        while self._addresses:
            family, address = self._addresses.popleft()
            try:
                made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue
                raise
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if made.connect_ex(address) in (0, errno.EINPROGRESS):
                self._socket = made
                self._poll.register(made.fileno(), select.EPOLLOUT)
                return
            made.close()
        self._end_with(SocketEvent.ABSENT)

    def _connected(self, made: socket.socket) -> None:
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._poll.unregister(made.fileno())
            made.close()
            self._socket = None
            self._try_next()
            return
        self._stage = _Stage.GREETING
        self._news.append(SocketEvent.CONNECTED)
        self._poll.modify(made.fileno(), select.EPOLLIN)
        self._write(_GREETING)

    def _end_with(self, event: SocketEvent) -> None:
        """Nothing is read or sent any more; what was read before stays."""
        if self._stage is not _Stage.OVER:
            self._stage = _Stage.OVER
            if not self._is_mute:
                self._news.append(event)
            self._unsent.clear()
            if self._socket is not None:
                self._poll.unregister(self._socket.fileno())

    def _hang_up(self) -> None:
        is_up = self._stage is _Stage.UP
        self._end_with(SocketEvent.HUNG_UP if is_up else SocketEvent.UNLIKE)

    def close(self, linger: float) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            if linger and self._stage is _Stage.UP:
                with contextlib.suppress(OSError):
                    self._say_last(made, time.monotonic() + linger)
            made.close()
        self._stage = _Stage.OVER
        self._unsent.clear()
        self._poll.close()

    def _say_last(self, made: socket.socket, until: float) -> None:
        """Sends what is unsent, and waits for the other side to close. To close with something
        unread would throw away what that side has not read either."""
        for piece in self._unsent:
            made.settimeout(max(until - time.monotonic(), 0.001))
            made.sendall(piece)
        made.shutdown(socket.SHUT_WR)
        until = min(until, time.monotonic() + HEARD_OUT_FOR)
        made.settimeout(HEARD_OUT_FOR)
        while made.recv_into(self._buffer) and time.monotonic() < until:
            pass

    def abandon(self, port: int) -> None:
        if self._socket is not None:
            self._socket.close()
        self._poll.close()

    # --- news ---
    def filenos(
        self, messages_came: Callable[[], None], events_came: Callable[[], None]
    ) -> dict[int, Callable[[], None]]:
        def came() -> None:
            self._is_dry = False
            made = self._socket
            if made is not None and self._stage is _Stage.CONNECTING:
                self._connected(made)
            elif self._unsent:
                self._flush()
            messages_came()
            if self._stage is not _Stage.UP:
                self._found = self._found or self._next()  # the handshake goes on
            if self._news:
                events_came()

        return {self._poll.fileno(): came}

    @property
    def has_events(self) -> bool:
        return bool(self._news)

    def events(self) -> Iterator[SocketEvent]:
        while self._news:
            yield self._news.popleft()

    # --- out ---
    def send(self, head: bytes, payload: Piece | None) -> bool:
        is_able = self._stage is _Stage.UP and not self._is_mute
        if not is_able or len(self._unsent) >= self._unsent_max:
            return False
        if payload is None:
            return self._write(_frame_head(len(head), 0) + head)
        size = len(payload)
        start = _frame_head(len(head), _MORE) + head + _frame_head(size, 0)
        return self._write(start, payload)

    def _write(self, start: bytes, payload: Piece = b"") -> bool:
        """Sends bytes, or keeps them behind those that are unsent."""
        made = self._socket
        assert made is not None
        sent = 0
        if not self._unsent:
            try:
                sent = made.sendmsg((start, payload)) if payload else made.send(start)
            except BlockingIOError:
                pass
            except OSError:
                self._cannot_send(made)
                return False
            if sent == len(start) + len(payload):
                return True
            self._poll.modify(made.fileno(), select.EPOLLIN | select.EPOLLOUT)
        if sent < len(start):
            self._unsent.append(start[sent:])
        if payload:
            rest = memoryview(payload)[max(0, sent - len(start)) :]
            self._unsent.append(rest if len(payload) >= KEPT_FROM else bytes(rest))
        return True

    def _flush(self) -> None:
        made, unsent = self._socket, self._unsent
        assert made is not None
        try:
            while unsent:
                sent = made.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = memoryview(unsent[0])[sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._cannot_send(made)
            return
        self._poll.modify(made.fileno(), select.EPOLLIN)

    def _cannot_send(self, made: socket.socket) -> None:
        """Tells of the end once, and lets the last words of the other side be read."""
        if self._stage is not _Stage.UP:
            self._hang_up()
            return
        if self._is_mute:
            return
        self._is_mute = True
        self._unsent.clear()
        self._news.append(SocketEvent.HUNG_UP)
        self._poll.modify(made.fileno(), select.EPOLLIN)

    # --- in ---
    @property
    def has_messages(self) -> bool:
        self._is_dry = False
        self._found = self._found or self._next()
        return self._found is not None

    def receive(self) -> list[Piece] | None:
        found, self._found = self._found or self._next(), None
        return found

    def _next(self) -> list[Piece] | None:
        """Returns the next whole message, None while there is none. Takes commands in."""
        while True:
            frame = self._take()
            if frame is None:
                if self._is_dry or not self._read():
                    return None
                continue
            flags, body = frame
            if flags & _COMMAND:
                self._commanded(bytes(body))
                continue
            self._frames.append(body)
            if len(self._frames) > 1 + fr.PAYLOADS_MAX or self._stage < _Stage.UP:
                self._hang_up()
                return None
            if not flags & _MORE:
                found, self._frames = self._frames, []
                return found

    def _read(self) -> bool:
        """Reads what has come, as much as there is room for. Returns whether that was anything."""
        made = self._socket
        if made is None or self._stage in (_Stage.CONNECTING, _Stage.OVER):
            return False
        if self._at == self._end:
            self._at = self._end = 0
        elif self._end == BUFFER_BYTES:
            left = bytes(self._buffer[self._at : self._end])
            self._buffer[: len(left)] = left
            self._at, self._end = 0, len(left)
        room, rest = self._buffer[self._end :], self._long
        try:
            if rest is None:
                count = wanted = made.recv_into(room)
            else:
                rest = rest[self._long_end :]
                count, *_ = made.recvmsg_into((rest, room))
                wanted = min(count, len(rest))
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            self._hang_up()
            return False
        if rest is None:
            self._end += count
            self._is_dry = count < len(room)
        else:
            self._long_end += wanted
            self._end += count - wanted
            self._is_dry = count < len(rest) + len(room)
        return True

    def _take(self) -> tuple[int, Piece] | None:
        """Takes the next frame out of what was read, None while it is not whole."""
        rest = self._long
        if rest is not None:
            if self._long_end < len(rest):
                return None
            self._long = None
            return self._long_flags, rest.toreadonly()
        if self._stage is _Stage.GREETING and not self._took_greeting():
            return None
        buffer, at = self._buffer, self._at
        have = self._end - at
        if have < 2:
            return None
        flags = buffer[at]
        start, size = at + 2, buffer[at + 1]
        if flags & _LONG:
            if have < 9:
                return None
            start, size = at + 9, int.from_bytes(buffer[at + 1 : at + 9], "big")
        if flags > _MORE | _LONG | _COMMAND or size > self._bytes_max:
            self._hang_up()
            return None
        if start + size <= self._end:
            self._at = start + size
            return flags, bytes(buffer[start : start + size])
        if size > BUFFER_BYTES - 9:
            self._long = long = memoryview(bytearray(size))
            self._long_end, self._long_flags = self._end - start, flags
            long[: self._long_end] = buffer[start : self._end]
            self._at = self._end = 0
        return None

    def _took_greeting(self) -> bool:
        """Returns whether the other side has greeted, and as a broker without keys."""
        said = bytes(self._buffer[self._at : self._end])
        is_other = said[:1] != _GREETING[:1] or said[9:10] not in (b"", b"\x7f")
        if len(said) >= _GREETING_BYTES:
            is_other = is_other or said[10] < _LEAST_VERSION or said[12:32] != _MECHANISM
        if is_other and len(said):
            self._hang_up()
        if is_other or len(said) < _GREETING_BYTES:
            return False
        self._at += _GREETING_BYTES
        self._stage = _Stage.READYING
        self._write(_READY)
        return True

    def _commanded(self, body: bytes) -> None:
        if self._stage is _Stage.READYING:
            if body.startswith(b"\5READY"):
                self._stage = _Stage.UP
                self._news.append(SocketEvent.SHAKEN)
            else:
                self._hang_up()
        elif self._stage is _Stage.UP and body.startswith(_PING) and not self._unsent:
            # A broker that does not read gets none: they would be kept here without a bound.
            context = body[_PING_CONTEXT_AT:][:_PING_CONTEXT_MAX]
            self._write(_command(_PONG + context))
