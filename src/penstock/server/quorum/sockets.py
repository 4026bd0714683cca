"""ZeroMQ's sockets in an asyncio loop, with bounds on all that they hold.

Its descriptor is edge-triggered: it says once that there is something, and a send may swallow that.
So after each turn and each send the socket is asked again. Owns the options of both kinds, and who
is let in where a key is given: only who has the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Final

import zmq

from penstock.client.remote.zmqcalls import NOBLOCK, received
from penstock.security.keys import ServerKey
from penstock.server.quorum.messages import MESSAGE_BYTES_MAX
from penstock.server.security.zap import ClusterKeyCheck, zap_socket

Context = zmq.Context[zmq.Socket[bytes]]
TURN_MAX: Final = 64
"""Messages that are taken in one turn of the loop."""
RCVHWM: Final = 256
SNDHWM: Final = 512
"""Messages that ZeroMQ queues for a connection, each way; what is more is dropped and counted."""
BACKLOG: Final = 128
RESOLVED_WITHIN: Final = 3.0
WILDCARDS: Final = ("*", "0.0.0.0", "::", "[::]")
DOMAIN: Final = b"penstock-cluster"


class Watched:
    """A socket of which `take(frames)` is told each message, in the loop."""

    def __init__(self, sock: zmq.Socket[bytes], take: Callable[[list[zmq.Frame]], None]) -> None:
        self.socket = sock
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._fd = int(sock.getsockopt(zmq.FD))
        self._is_due = False
        self._loop.add_reader(self._fd, self._look)
        self.look_soon()

    def send(self, frames: list[bytes]) -> bool:
        """Whether ZeroMQ took it."""
        try:
            self.socket.send_multipart(frames, NOBLOCK)
            return True
        except zmq.ZMQError:  # Again, or no such connection
            return False
        finally:
            self.look_soon()

    def look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        for _ in range(TURN_MAX):
            if self.socket.closed:  # perhaps by what the message before led to
                return
            frames = received(self.socket)
            if frames is None:
                return
            try:
                self._take(frames)
            except BaseException:
                self.look_soon()  # the rest is not told again
                raise
        self.look_soon()

    def close(self) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self._fd)
            self.socket.close(0)


class Doorman:
    """Answers ZeroMQ's question whether a key is let in: the cluster's own is."""

    def __init__(self, context: Context, key: ServerKey, refused: Callable[[], None]) -> None:
        self._check = ClusterKeyCheck(key)
        self._refused = refused
        self._watched = Watched(zap_socket(context), self._asked)

    def _asked(self, frames: list[zmq.Frame]) -> None:
        before = self._check.refusals
        self._watched.send(self._check.answer([frame.bytes for frame in frames]))
        if self._check.refusals > before:
            self._refused()

    def close(self) -> None:
        self._watched.close()


def router(context: Context, url: str, key: ServerKey | None) -> zmq.Socket[bytes]:
    sock = context.socket(zmq.ROUTER)
    sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
    sock.setsockopt(zmq.BACKLOG, BACKLOG)
    _bound(sock, url)
    if key is not None:
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        sock.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    return sock


async def resolved(url: str) -> str:
    """With an address in the place of a host's name: ZeroMQ would look it up in its only thread,
    and hold all other connections up. Raises OSError, of which TimeoutError is one."""
    place = url.removeprefix("tcp://")
    host, _, port = place.rpartition(":")
    if host in WILDCARDS or _is_address(host):
        return url
    async with asyncio.timeout(RESOLVED_WITHIN):
        found = await asyncio.get_running_loop().getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM
        )
    family, *_, address = found[0]
    text = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
    return f"tcp://{text}:{port}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def dealer(
    context: Context, url: str, key: ServerKey | None, within: float, attempt: int = 0
) -> zmq.Socket[bytes]:
    """For one attempt: it never connects again by itself."""
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.RECONNECT_IVL, -1)
    sock.setsockopt(zmq.CONNECT_TIMEOUT, int(within * 1000))
    sock.setsockopt(zmq.HANDSHAKE_IVL, int(within * 1000))
    _bound(sock, url)
    if key is not None:
        sock.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
        sock.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        sock.setsockopt(zmq.CURVE_SERVERKEY, key.public_at(attempt).encode())
    return sock


def _bound(sock: zmq.Socket[bytes], url: str) -> None:
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVHWM, RCVHWM)
    sock.setsockopt(zmq.SNDHWM, SNDHWM)
    sock.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    sock.setsockopt(zmq.TCP_KEEPALIVE, 1)
    sock.setsockopt(zmq.IPV6, int("[" in url))


def close_monitored(watched: Watched, monitor: Watched) -> None:
    """A sock and its monitor."""
    with contextlib.suppress(zmq.ZMQError):
        watched.socket.disable_monitor()
    monitor.close()
    watched.close()
