"""ZeroMQ's protocol (ZMTP 3.1, NULL) over a connected socket of our own, from either end.

A thread of ZeroMQ's between the network and ours is two more wakes of each message, which is most
of what a record waits for. The other end cannot tell the difference.

    connecting --> greeting --> readying --> up        each of them --> over

Bytes on the way (all frames; `more` 1, `long` 2, `command` 4 in their flags):

    greeting  ff 0 0 0 0 0 0 0 1 7f | 3 1 | mechanism, 20 bytes | as-server | 31 zeros
    frame     flags | size: 1 byte, 8 if long | body
    command   a frame whose body begins with a short name and its length: READY, ERROR, PING, PONG

Owns a connection's bytes. Knows no epoll: who made the connection does, and is told by `_blocked`
when there is something to be sent as soon as there is room.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import deque
from enum import IntEnum
from typing import Final

from penstock.cluster.frames.codec import Piece

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_GREETING_BYTES: Final = 64
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = b"\xff" + bytes(7) + b"\1\x7f" + b"\3\1" + _MECHANISM + bytes(32)
_LEAST_VERSION: Final = 3
_READY: Final = b"\5READY"
_PING: Final = b"\4PING"
_PONG: Final = b"\4PONG"
_PING_CONTEXT_AT: Final = len(_PING) + 2
_PING_CONTEXT_MAX: Final = 16
COMMAND_BYTES_MAX: Final = 4096
"""Bytes of a command."""
COMMANDS_MAX: Final = 1000
"""Commands that may come between two messages."""
KEPT_FROM: Final = 64 << 10
"""Payloads of at least so many bytes are sent from where they lie, as their sender knows."""
assert len(_GREETING) == _GREETING_BYTES


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _properties(said: bytes) -> dict[bytes, bytes] | None:
    """Returns properties by their names; None where it is no list of such."""
    found, at = {}, 0
    while at < len(said):
        value_at = at + 1 + said[at] + 4
        end = value_at + int.from_bytes(said[value_at - 4 : value_at], "big")
        if end > len(said):
            return None
        found[said[at + 1 : value_at - 4].lower()] = said[value_at:end]
        at = end
    return found


def _frame_head(size: int, flags: int) -> bytes:
    if size < 256:
        return bytes((flags, size))
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def _command(body: bytes) -> bytes:
    return _frame_head(len(body), _COMMAND) + body


class ZmtpStage(IntEnum):
    CONNECTING = 0
    GREETING = 1
    READYING = 2
    UP = 3
    OVER = 4


class ZmtpStream(ABC):
    """One connection without keys. `socket_type`: ours, such as DEALER. `buffer_bytes`: frames that
    are no longer are read into one buffer and copied out of it. `frames_max`: of a message.
    `unsent_max`: messages that wait here for an other side that does not read."""

    def __init__(
        self, socket_type: bytes, *, frame_bytes_max: int, frames_max: int, buffer_bytes: int,
        unsent_max: int = 1,
    ) -> None:  # fmt: skip
        self._bytes_max = frame_bytes_max
        self._frames_max = frames_max
        self._unsent_max = unsent_max
        self._commands_max = COMMANDS_MAX
        self._type = socket_type
        self._socket: socket.socket | None = None
        self._stage = ZmtpStage.CONNECTING
        self._unsent: deque[Piece] = deque()
        self._is_mute = False  # nothing can be sent any more, and the end is told of
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._at = self._end = 0  # what is unread of the buffer
        self._long: memoryview | None = None  # a long frame that has begun
        self._long_end = 0
        self._long_flags = 0
        self._frames: list[Piece] = []  # of a message that has begun
        self._found: list[Piece] | None = None  # the next message, where it was looked for
        self._commands = 0  # since the last message
        self._is_dry = False  # a read brought less than it could: the descriptor tells of more

    # --- what its owner is told ---
    @abstractmethod
    def _shaken(self, said: dict[bytes, bytes]) -> None:
        """The handshake is done. `said`: what the other side says of itself, names in lower
        case."""

    @abstractmethod
    def _ended(self, why: str) -> None:
        """Nothing is read or sent any more. `why`: it broke the protocol; empty: it hung up."""

    @abstractmethod
    def _muted(self) -> None:
        """Nothing can be sent any more. Messages that came before may still be read."""

    @abstractmethod
    def _blocked(self, is_blocked: bool) -> None:
        """Whether to call `_flush` once there is room to send."""

    def _hang_up(self, why: str = "") -> None:
        """Nothing is read or sent any more; what was read before stays."""
        if self._stage is not ZmtpStage.OVER:
            if why or self._stage is not ZmtpStage.UP:
                self._at = self._end = 0  # what follows on that is nothing
                self._long = None
            self._stage = ZmtpStage.OVER
            self._unsent.clear()
            self._ended(why)

    # --- out ---
    def send(self, head: bytes, payload: Piece | None) -> bool:
        """Sends a message. A large payload stays in its place until its answer comes. Returns False
        where there is no room for it, or nobody at the other end."""
        is_able = self._stage is ZmtpStage.UP and not self._is_mute
        if not is_able or len(self._unsent) >= self._unsent_max:
            return False
        return self._say(head, payload)

    def _say(self, head: bytes, payload: Piece | None) -> bool:
        """Sends a message, or keeps it behind what is unsent. Returns False where it cannot."""
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
                self._cannot_send()
                return False
            if sent == len(start) + len(payload):
                return True
            self._blocked(True)
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
            self._cannot_send()
            return
        self._blocked(False)

    def _cannot_send(self) -> None:
        """Tells of the end once, and lets the last words of the other side be read."""
        if self._stage is not ZmtpStage.UP:
            self._hang_up()
        elif not self._is_mute:
            self._is_mute = True
            self._unsent.clear()
            self._blocked(False)
            self._muted()

    # --- in ---
    @property
    def has_messages(self) -> bool:
        self._is_dry = False
        self._found = self._found or self._next()
        return self._found is not None

    def receive(self) -> list[Piece] | None:
        """Returns the frames of the next message; None if there is none now."""
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
                self._commands += 1
                if self._commands > self._commands_max:
                    self._hang_up(f"{self._commands} commands came and no message")
                    return None
                self._commanded(bytes(body))
                continue
            self._frames.append(body)
            if len(self._frames) > self._frames_max or self._stage < ZmtpStage.UP:
                self._hang_up("a message of too many frames, or before the handshake")
                return None
            if not flags & _MORE:
                found, self._frames = self._frames, []
                self._commands = 0
                return found

    def _read(self) -> bool:
        """Reads what has come, as much as there is room for. Returns whether that was anything."""
        made = self._socket
        if made is None or self._stage in (ZmtpStage.CONNECTING, ZmtpStage.OVER):
            return False
        if self._at == self._end:
            self._at = self._end = 0
        elif self._end == len(self._buffer):
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
        if self._stage is ZmtpStage.GREETING and not self._took_greeting():
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
        if flags > _MORE | _LONG | _COMMAND:
            self._hang_up(f"a frame has the flags {flags}")
            return None
        if size > (COMMAND_BYTES_MAX if flags & _COMMAND else self._bytes_max):
            self._hang_up(f"a frame of {size} bytes is too long")
            return None
        if start + size <= self._end:
            self._at = start + size
            return flags, bytes(buffer[start : start + size])
        if size > len(buffer) - 9:
            self._long = long = memoryview(bytearray(size))
            self._long_end, self._long_flags = self._end - start, flags
            long[: self._long_end] = buffer[start : self._end]
            self._at = self._end = 0
        return None

    def _took_greeting(self) -> bool:
        """Returns whether the other side has greeted, and as one without keys."""
        said = bytes(self._buffer[self._at : self._end])
        is_other = said[:1] != _GREETING[:1] or said[9:10] not in (b"", b"\x7f")
        if len(said) >= _GREETING_BYTES:
            is_other = is_other or said[10] < _LEAST_VERSION or said[12:32] != _MECHANISM
        if is_other and len(said):
            self._hang_up("no ZeroMQ without keys")
        if is_other or len(said) < _GREETING_BYTES:
            return False
        self._at += _GREETING_BYTES
        self._stage = ZmtpStage.READYING
        self._write(
            _command(_READY + _property(b"Socket-Type", self._type) + _property(b"Identity", b""))
        )
        return True

    def _greet(self) -> None:
        """Begins: it is connected."""
        self._stage = ZmtpStage.GREETING
        self._write(_GREETING)

    def _commanded(self, body: bytes) -> None:
        if self._stage is ZmtpStage.READYING:
            said = _properties(body[len(_READY) :]) if body.startswith(_READY) else None
            if said is not None:
                self._stage, self._commands = ZmtpStage.UP, 0
                self._shaken(said)
            else:
                self._hang_up("no READY in the handshake")
        elif self._stage is ZmtpStage.UP and body.startswith(_PING) and not self._unsent:
            # One that does not read gets none: they would be kept here without a bound.
            context = body[_PING_CONTEXT_AT:][:_PING_CONTEXT_MAX]
            self._write(_command(_PONG + context))
