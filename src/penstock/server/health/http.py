"""A small HTTP server: GET and HEAD of a few paths, everything else is refused.

    reading --head complete, bad or late--> answering --sent--> lingering --EOF or time--> closed

One thread, so one answer is made at a time. Requests are bounded in size, connections in number and
in time; each connection serves one request. Lingering reads what the client sends beyond its head
for a moment: closing at once would reset the connection under the answer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8 << 10
REQUEST_TIMEOUT: Final = 5.0
"""Seconds within which the whole head must have come."""
ANSWER_TIMEOUT: Final = 10.0
"""Seconds within which the answer must be read."""
LINGER_TIMEOUT: Final = 1.0
_CHUNK: Final = 64 << 10

STATUS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 421: "Misdirected Request", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip
TEXT: Final = "text/plain; charset=utf-8"


class HttpReply(NamedTuple):
    status: int
    body: bytes
    content_type: str = TEXT


def plain(status: int, text: str) -> HttpReply:
    return HttpReply(status, text.encode() + b"\n")


class _Connection:
    """`deadline` is that of the present state. `left` is what was not sent yet."""

    __slots__ = ("deadline", "head", "is_lingering", "left", "sock")

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.head = b""
        self.left: memoryview | None = None
        self.is_lingering = False


class HttpServer:
    """`serve` runs until `stop`, which any thread may call. `answer` is given a path; it may take
    its time, meanwhile the others wait. `hosts`: which names of this host are served."""

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[str], HttpReply],
        *,
        hosts: Callable[[str], bool] | None = None,
        request_timeout: float = REQUEST_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._hosts = hosts
        self._request_timeout = request_timeout
        self._answer_timeout = answer_timeout
        self._wakeup, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self.replies: Counter[int] = Counter()
        """By status; 0 counts connections that ended without an answer."""

    def stop(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    def serve(self) -> None:
        try:
            while True:
                now = time.monotonic()
                for key, _ in self._selector.select(self._wait(now)):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is None:
                        return
                    else:
                        self._go_on(key.data)
                self._time_out(time.monotonic())
        finally:
            self._close()

    def _wait(self, now: float) -> float | None:
        first = min((each.deadline for each in self._connections), default=None)
        return None if first is None else max(0.0, first - now)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the client has gone again, or there is no descriptor left for it
            if not self._connections:
                time.sleep(0.01)  # out of descriptors: do not spin
            return
        sock.setblocking(False)
        connection = _Connection(sock, time.monotonic() + self._request_timeout)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if len(self._connections) > CONNECTIONS_MAX:
            self._reply(connection, plain(503, f"over {CONNECTIONS_MAX} connections: try again"))

    def _go_on(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            if connection.left is not None:
                self._send(connection)
            elif connection.is_lingering:
                if not connection.sock.recv(_CHUNK):
                    self._drop(connection)
            else:
                self._read(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._gone(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(HEAD_BYTES_MAX + 1)
        if not data:
            self._gone(connection)
            return
        connection.head += data
        if b"\r\n\r\n" in connection.head or b"\n\n" in connection.head:
            self._reply(connection, *self._answered(connection.head))
        elif len(connection.head) > HEAD_BYTES_MAX:
            self._reply(connection, plain(431, f"a request has at most {HEAD_BYTES_MAX} bytes"))

    def _answered(self, head: bytes) -> tuple[HttpReply, bool]:
        """The reply, and whether its body is left out."""
        words = head.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
            return plain(400, "this is no HTTP/1.1 request for a path"), False
        method, target = words[0], words[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return plain(405, "only GET and HEAD are served"), False
        if self._hosts is not None and not all(map(self._hosts, _named_hosts(head))):
            return plain(421, "only localhost and addresses of this host are served here"), False
        try:
            return self._answer(target.decode("ascii")), method == b"HEAD"
        except UnicodeDecodeError:
            return plain(400, "a path has ASCII letters only"), False

    def _reply(self, connection: _Connection, reply: HttpReply, headless: bool = False) -> None:
        self.replies[reply.status] += 1
        lines = [
            f"HTTP/1.1 {reply.status} {STATUS[reply.status]}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            "Connection: close",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
        ]
        if reply.status == 405:
            lines.append("Allow: GET, HEAD")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        connection.left = memoryview(head if headless else head + reply.body)
        connection.head = b""
        connection.deadline = time.monotonic() + self._answer_timeout
        self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        with contextlib.suppress(BlockingIOError):
            self._send(connection)

    def _send(self, connection: _Connection) -> None:
        assert connection.left is not None
        connection.left = connection.left[connection.sock.send(connection.left) :]
        if not connection.left:
            connection.left = None
            connection.is_lingering = True
            connection.deadline = time.monotonic() + LINGER_TIMEOUT
            connection.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)

    def _time_out(self, now: float) -> None:
        for connection in [each for each in self._connections if each.deadline <= now]:
            if connection.is_lingering:
                self._drop(connection)
            elif connection.left is not None:
                self._gone(connection)
            else:
                try:
                    self._reply(
                        connection, plain(408, f"no request within {self._request_timeout:g} s")
                    )
                except OSError:
                    self._gone(connection)

    def _gone(self, connection: _Connection) -> None:
        """It ended in the middle."""
        if not connection.is_lingering:
            self.replies[0] += 1
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _close(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._wakeup)
        os.close(self._waker)


def _named_hosts(head: bytes) -> list[str]:
    """Returns the values of the `Host` lines."""
    fields = (line.partition(b":") for line in head.split(b"\n")[1:])
    found = (value for name, _, value in fields if name.strip().lower() == b"host")
    return [value.strip().decode("latin-1") for value in found]
