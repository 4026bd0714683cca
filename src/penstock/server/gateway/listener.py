"""The gateway's ROUTER socket and the TCP connections behind it.

Every bound of ZeroMQ is set here, for its defaults drop silently and admit frames of any size. It
does not bound connections that never say hello, nor messages that never end, which it would gather
without limit. Their descriptors, which its messages and its monitor name, show them here. Such a
connection is shut down by its descriptor; ZeroMQ then sees its end.

An address that connects again and again waits for a moment (`arrivals`, `synfilter`). Accepting and
ending connections would cost the others more than their messages do.

ZeroMQ's own heartbeats stay off, on both sides. libzmq 4.3.5 aborts the process (`!_io_error`) when
one is due on a broken connection with a full queue. The protocol has pings of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

import zmq

from penstock.client.remote.zmqcalls import NOBLOCK, has_messages, received
from penstock.cluster.frames import messages as fr
from penstock.server.config import NodeConfig
from penstock.server.gateway.arrivals import Arrivals
from penstock.server.gateway.key_check import NOT_AUTHORIZED
from penstock.server.gateway.line import (
    ACCEPT_PAUSE,
    BACKLOG,
    NO_DESCRIPTORS,
    NO_FD,
    NO_HELLO,
    NO_ZEROMQ,
    STRANGER_BYTES_MAX,
    STRANGERS_EXTRA,
    TOO_MANY,
    TOO_MUCH,
    cannot_listen,
)
from penstock.server.gateway.synfilter import keep_waiting

logger = logging.getLogger("penstock.gateway")

RCVHWM: Final = 32
SNDHWM: Final = 64
"""Messages that ZeroMQ queues for a connection, each way."""
UNREAD_MAX: Final = 64 << 20
"""Bytes that a connection may have sent and that made no message yet."""
TCP_INFO_BYTES: Final = 232
RECEIVED_AT: Final = 128
"""Where Linux keeps the bytes received in `struct tcp_info`."""
LOOK_MAX: Final = 4096
"""Events that one look takes in. The monitor's queue holds 2000 (ZeroMQ's bound on both sides). So
a look takes in all earlier events, and comes to an end while more happens."""
_TOLD: Final = struct.Struct("=HI")
"""An event of the monitor: which, and its descriptor, or number of an error."""
_U64: Final = struct.Struct("=Q")
MONITORED: Final = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
FAILED_HANDSHAKES: Final[dict[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: NO_ZEROMQ,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: NOT_AUTHORIZED,
}

Frames = list[zmq.Frame]


class Listener:
    """The ROUTER socket and its connections. `gone` gets each connection's end by its descriptor.
    `refused` gets the reason of connections that were ended here; `held`: an address waits from now
    on."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: NodeConfig,
        *,
        gone: Callable[[int], None],
        refused: Callable[[str], None],
        secure: Callable[[zmq.Socket[bytes]], None],
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._gone = gone
        self._refused = refused
        self._held = held
        self._arrivals = Arrivals(config.connections_max)
        self._listening = NO_FD
        self.url = ""
        self._strangers: dict[int, float] = {}
        self._known: set[int] = set()
        self._resume_at = 0.0
        sock = self.socket = context.socket(zmq.ROUTER)
        silence = int(config.client_silence_max * 1000)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        sock.setsockopt(zmq.RCVHWM, RCVHWM)
        sock.setsockopt(zmq.SNDHWM, SNDHWM)
        sock.setsockopt(zmq.BACKLOG, BACKLOG)
        sock.setsockopt(zmq.MAXMSGSIZE, max(config.batch_bytes_max, fr.CLIENT_HEADER_MAX))
        sock.setsockopt(zmq.HANDSHAKE_IVL, int(config.hello_timeout * 1000))
        sock.setsockopt(zmq.TCP_KEEPALIVE, 1)
        sock.setsockopt(zmq.TCP_MAXRT, silence)
        sock.setsockopt(zmq.IPV6, int("[" in (config.listen or "")))
        self._secure = secure
        secure(sock)
        self._monitor = sock.get_monitor_socket(MONITORED)

    def bind(self, url: str) -> str:
        """Listen; the URL with the real port. Raises `ConfigError`."""
        try:
            self.socket.bind(url)
        except zmq.ZMQError as error:
            raise cannot_listen(url, error.errno) from error
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return self.url

    def bind_soon(self, url: str) -> None:
        """Listens there as soon as its port is free; nowhere, if that is empty."""
        self.url, self._resume_at = url, time.monotonic() if url else 0.0

    def renew(self) -> None:
        """Listen again at the same place, because `secure` says something else now. ZeroMQ ends the
        connections that are there: their clients connect again."""
        if not self.url:
            return
        self._unbind()
        self._secure(self.socket)
        self._resume_at = time.monotonic()  # its port is free in a moment

    def _unbind(self) -> None:
        self._listening = NO_FD
        with contextlib.suppress(zmq.ZMQError):
            self.socket.unbind(self.url)

    # --- descriptors for the loop ---
    def fileno(self) -> int:
        """Edge-triggered: `has_messages` is to be asked before each sleep."""
        return int(self.socket.getsockopt(zmq.FD))

    def monitor_fileno(self) -> int:
        return int(self._monitor.getsockopt(zmq.FD))

    @property
    def has_messages(self) -> bool:
        return has_messages(self.socket)

    def receive(self) -> Frames | None:
        """The next message, None if there is none now."""
        return received(self.socket)

    # --- connections ---
    def look(self) -> None:
        """Take in what the monitor has told by now."""
        receive = self._monitor.recv
        for _ in range(LOOK_MAX):
            try:
                told = receive(NOBLOCK)
            except zmq.Again:
                return
            receive()  # where it happened: always ours
            what, fd = _TOLD.unpack(told)
            if what == zmq.EVENT_ACCEPTED:
                self._accepted(fd)
            elif what == zmq.EVENT_DISCONNECTED:
                self._strangers.pop(fd, None)
                self._known.discard(fd)
                self._gone(fd)
            elif what == zmq.EVENT_LISTENING:
                self._listening = fd
                self._hold()
            elif what == zmq.EVENT_ACCEPT_FAILED:
                self._pause(os.strerror(fd))
            else:
                self._refused(FAILED_HANDSHAKES[what])

    def _accepted(self, fd: int) -> None:
        now = time.monotonic()
        self._known.discard(fd)
        self._strangers[fd] = now
        address = _address_of(fd)
        if address and self._arrivals.came(address, now):
            logger.warning("%s connects too often: it is kept waiting", address)
            self._held()
            self._hold()
        if len(self._strangers) + len(self._known) > self._config.connections_max + STRANGERS_EXTRA:
            self._end_stranger(fd, TOO_MANY)

    def _hold(self) -> None:
        """Keeps clients waiting that are to wait, where the kernel does that."""
        if self._listening == NO_FD:
            return
        try:
            with _borrowed(self._listening) as listening:
                keep_waiting(listening, self._arrivals.held)
        except OSError as error:
            logger.warning("connections cannot be kept waiting here: %s", error)

    def said_hello(self, fd: int) -> None:
        """The connection with that descriptor is a peer from now on."""
        self._strangers.pop(fd, None)
        self._known.add(fd)

    def sweep(self, now: float) -> None:
        """End connections that never say hello; listen again if that was given up."""
        self.look()
        if self._arrivals.let_go(now):
            self._hold()
        for fd, since in list(self._strangers.items()):
            if now - since > self._config.hello_timeout:
                self._end_stranger(fd, NO_HELLO)
            elif self.bytes_received(fd) > STRANGER_BYTES_MAX:
                self._end_stranger(fd, TOO_MUCH)
        if self._resume_at and now >= self._resume_at:
            self._resume_at = 0.0
            with contextlib.suppress(zmq.ZMQError):
                self.socket.bind(self.url)
                return
            self._resume_at = now + ACCEPT_PAUSE

    def _end_stranger(self, fd: int, reason: str) -> None:
        del self._strangers[fd]
        logger.debug("connection %d dropped before its hello: %s", fd, reason)
        self._refused(reason)
        self.shut_down(fd)

    def _pause(self, why: str) -> None:
        """ZeroMQ would try again at once, and for ever, while there are no descriptors. It ends the
        connections that are there, too, when it stops listening."""
        if self._resume_at:
            return
        logger.error("no connection accepted for %g s: %s", ACCEPT_PAUSE, why)
        self._refused(NO_DESCRIPTORS)
        self._resume_at = time.monotonic() + ACCEPT_PAUSE
        self._unbind()

    @staticmethod
    def bytes_received(fd: int) -> int:
        """Returns the bytes that the kernel has received from the peer so far; 0 where that is not
        known."""
        try:
            with _borrowed(fd) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            return 0
        if len(info) < RECEIVED_AT + _U64.size:
            return 0
        return int(_U64.unpack_from(info, RECEIVED_AT)[0])

    @staticmethod
    def shut_down(fd: int) -> None:
        """End a connection. ZeroMQ may have closed it already and the number may be another's: only
        a TCP socket is touched, whose client then connects again."""
        with contextlib.suppress(OSError), _borrowed(fd) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def has_connections(self) -> bool:
        return bool(self._known)

    def read_in_vain(self) -> None:
        """Where a socket is closed with something unread, the other side's kernel throws away what
        it has not read either: the goodbye."""
        for _ in range(LOOK_MAX):
            if self.receive() is None:
                break
        self.look()

    def close(self, linger: float) -> None:
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(int(linger * 1000))


def _borrowed(fd: int) -> socket.socket:
    """A descriptor of ZeroMQ's as a socket: a duplicate, to be closed at the end."""
    duplicate = os.dup(fd)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # it is no socket: ZeroMQ closed its own, and the number is another's
        os.close(duplicate)
        raise


def _address_of(fd: int) -> str:
    """Where the other side of a connection is; empty where it has ended."""
    try:
        with _borrowed(fd) as sock:
            return str(sock.getpeername()[0]).partition("%")[0]
    except (OSError, IndexError):
        return ""


def descriptor_of(frame: zmq.Frame) -> int:
    """Of the connection that a frame came by; `NO_FD` where ZeroMQ does not know it any more."""
    try:
        fd = frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return NO_FD
    return fd if isinstance(fd, int) else NO_FD


def property_of(frame: zmq.Frame, name: str) -> str:
    """Returns ZeroMQ's property of the connection that a frame came by; empty where it has none."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""
