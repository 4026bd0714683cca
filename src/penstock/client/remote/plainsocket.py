"""A connection without keys to a gateway: a socket of the carrier's own, which speaks `zmtp`.

addresses, one after the other --connected--> greeting ... (`zmtp`) --> over
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from penstock.client.remote.wiresocket import SocketEvent
from penstock.client.remote.zmtp import ZmtpStage, ZmtpStream
from penstock.cluster.frames import messages as fr

Address = tuple[int, Any]
"""Family and address of a socket."""

BUFFER_BYTES: Final = 64 << 10
"""Frames that are no longer are read into one buffer and copied out of it."""
HEARD_OUT_FOR: Final = 0.1
"""Seconds for which a broker that was said good-bye to may take to hang up."""


class PlainSocket(ZmtpStream):
    """A connection without keys to one of the addresses of a host."""

    tells_once = False
    servers_tried: tuple[str, ...] = ()

    def __init__(self, *, message_bytes_max: int, unsent_max: int) -> None:
        super().__init__(
            b"DEALER", frame_bytes_max=message_bytes_max, frames_max=1 + fr.PAYLOADS_MAX,
            buffer_bytes=BUFFER_BYTES, unsent_max=unsent_max,
        )  # fmt: skip
        self._poll = select.epoll()  # one descriptor, whichever address is tried
        self._addresses: deque[Address] = deque()
        self._news: deque[SocketEvent] = deque()
        self._was_up = False

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
        self._stage = ZmtpStage.OVER
        self._news.append(SocketEvent.ABSENT)

    def _connected(self, made: socket.socket) -> None:
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._poll.unregister(made.fileno())
            made.close()
            self._socket = None
            self._try_next()
            return
        self._news.append(SocketEvent.CONNECTED)
        self._poll.modify(made.fileno(), select.EPOLLIN)
        self._greet()

    def _shaken(self, said: dict[bytes, bytes]) -> None:
        self._was_up = True
        self._news.append(SocketEvent.SHAKEN)

    def _ended(self, why: str) -> None:
        if not self._is_mute:
            self._news.append(SocketEvent.HUNG_UP if self._was_up else SocketEvent.UNLIKE)
        if self._socket is not None:
            self._poll.unregister(self._socket.fileno())

    def _muted(self) -> None:
        self._news.append(SocketEvent.HUNG_UP)

    def _blocked(self, is_blocked: bool) -> None:
        assert self._socket is not None
        events = select.EPOLLIN | select.EPOLLOUT if is_blocked else select.EPOLLIN
        self._poll.modify(self._socket.fileno(), events)

    def close(self, linger: float) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            if linger and self._stage is ZmtpStage.UP:
                with contextlib.suppress(OSError):
                    self._say_last(made, time.monotonic() + linger)
            made.close()
        self._stage = ZmtpStage.OVER
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
            if made is not None and self._stage is ZmtpStage.CONNECTING:
                self._connected(made)
            elif self._unsent:
                self._flush()
            messages_came()
            if self._stage is not ZmtpStage.UP:
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
