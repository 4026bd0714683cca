"""CURVE between brokers: all have the same pair of keys, and let in only who shows it.

Without a key everybody is let in, and what is said goes in the clear. Owns the options of sockets
and the answer to ZeroMQ's question (ZAP, RFC 27), which its own thread asks before a hello.
"""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils import z85

from penstock.security.keys import ServerKey

ZAP_URL: Final = "inproc://zeromq.zap.01"
ZAP_VERSION: Final = b"1.0"
DOMAIN: Final = b"penstock-replication"


class Secured:
    """See the module. `serve` each turn, and whenever `fileno` is readable."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: ServerKey | None) -> None:
        self._key = key
        publics = () if key is None else key.publics
        self._known = [[b"CURVE", z85.decode(public.encode())] for public in publics]
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_URL)
        self.refusals = 0

    def fileno(self) -> int:
        return int(self._socket.getsockopt(zmq.FD))

    def listening(self, socket: zmq.Socket[bytes]) -> None:
        """Set up a socket that is to be bound."""
        if self._key is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret.encode())
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def connecting(self, socket: zmq.Socket[bytes], attempt: int = 0) -> None:
        """Set up a socket that is to connect, after so many attempts that failed."""
        if self._key is not None:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret.encode())
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._key.public_at(attempt).encode())

    def serve(self) -> None:
        """Answer what was asked."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            question = self._socket.recv_multipart()
            number = question[1] if len(question) > 1 else b""
            is_known = (
                len(question) == 7 and question[0] == ZAP_VERSION and question[5:] in self._known
            )
            self.refusals += not is_known
            code, text = (b"200", b"OK") if is_known else (b"400", b"not the cluster's key")
            self._socket.send_multipart([ZAP_VERSION, number, code, text, b"broker", b""])

    def close(self) -> None:
        self._socket.close(0)
