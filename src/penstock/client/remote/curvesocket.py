"""A connection with keys: ZeroMQ's socket, which encrypts, and its monitor, which tells of events.

ZeroMQ is told not to reconnect, so that no message of an old connection can be taken for the new
one's.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.client.remote.wiresocket import SocketEvent
from penstock.client.remote.zmqcalls import MORE, NOBLOCK, has_messages, received
from penstock.cluster.frames.codec import Piece
from penstock.security.keys import ClientKey

MESSAGES_UNREAD_MAX: Final = 10_000
ZERO_COPY_FROM: Final = 64 << 10
"""Payloads of at least so many bytes: a copy is memory that the system has to clear each time."""
_EVENTS: Final = {
    zmq.EVENT_CONNECTED: SocketEvent.CONNECTED,
    zmq.EVENT_HANDSHAKE_SUCCEEDED: SocketEvent.SHAKEN,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: SocketEvent.UNLIKE,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: SocketEvent.UNLIKE,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: SocketEvent.UNKNOWN_KEY,
    zmq.EVENT_DISCONNECTED: SocketEvent.HUNG_UP,
    zmq.EVENT_CLOSED: SocketEvent.ABSENT,
}


class CurveSocket:
    """A connection by ZeroMQ with a client's key. `refused`: public keys of the host that were
    tried before."""

    tells_once = True

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        place: str,
        key: ClientKey,
        refused: tuple[str, ...],
        *,
        connect_within: float,
        message_bytes_max: int,
        unsent_max: int,
    ) -> None:
        self._tcp = -1  # the descriptor of the connection, which is ZeroMQ's
        self._socket = made = context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        left = [server for server in key.servers if server not in refused]
        server = left[0] if left else key.server
        self.servers_tried = (*refused, server)
        try:
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.IMMEDIATE, 1)
            made.setsockopt(zmq.RECONNECT_IVL, -1)
            made.setsockopt(zmq.CONNECT_TIMEOUT, int(connect_within * 1000))
            made.setsockopt(zmq.HANDSHAKE_IVL, int(connect_within * 1000))
            made.setsockopt(zmq.SNDHWM, unsent_max)
            made.setsockopt(zmq.RCVHWM, MESSAGES_UNREAD_MAX)
            made.setsockopt(zmq.MAXMSGSIZE, message_bytes_max)
            made.setsockopt(zmq.TCP_KEEPALIVE, 1)
            made.setsockopt(zmq.IPV6, 1)
            made.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            made.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
            made.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            self._monitor = made.get_monitor_socket(sum(_EVENTS))
            self._monitor.setsockopt(zmq.LINGER, 0)
            made.connect(f"tcp://{place}")
        except BaseException:
            self.close(0.0)
            raise

    def filenos(
        self, messages_came: Callable[[], None], events_came: Callable[[], None]
    ) -> dict[int, Callable[[], None]]:
        assert self._monitor is not None
        return {self._socket.fileno(): messages_came, self._monitor.fileno(): events_came}

    @property
    def has_events(self) -> bool:
        return self._monitor is not None and has_messages(self._monitor)

    def events(self) -> Iterator[SocketEvent]:
        while self._monitor is not None:
            try:
                parts = self._monitor.recv_multipart(NOBLOCK)
            except zmq.Again:
                return
            told = parse_monitor_message(parts)
            event = _EVENTS[zmq.Event(told["event"])]
            if event is SocketEvent.CONNECTED:
                self._tcp = int(told["value"])
            yield event

    def send(self, head: bytes, payload: Piece | None) -> bool:
        try:
            if payload is None:
                self._socket.send(head, NOBLOCK)
            else:
                self._socket.send(head, MORE)
                self._send_payload(payload)
        except zmq.Again:
            return False
        return True

    def _send_payload(self, payload: Piece) -> None:
        if len(payload) >= ZERO_COPY_FROM:
            try:
                self._socket.send(payload, NOBLOCK, copy=False)
                return
            except RuntimeError:  # the process ends, and with it what pyzmq needs for that
                pass
        self._socket.send(payload, NOBLOCK, copy=True)

    @property
    def has_messages(self) -> bool:
        return has_messages(self._socket)

    def receive(self) -> list[Piece] | None:
        frames = received(self._socket)
        return None if frames is None else [frame.buffer for frame in frames]

    def close(self, linger: float) -> None:
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._socket.close(int(linger * 1000))

    def abandon(self, port: int) -> None:
        """Nothing but the descriptor is touched: the rest belongs to threads that the child has
        not."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._tcp)) as copy:
            if copy.getpeername()[1] == port:
                os.close(self._tcp)
