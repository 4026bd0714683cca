"""CURVE between brokers: all have the same pair of keys, and admit only connections with it.

Without a key everybody is admitted, and messages go in the clear. Owns the options of sockets.
"""

from __future__ import annotations

from typing import Final

import zmq

from penstock.client.remote.zmqcalls import has_messages
from penstock.security.keys import ServerKey
from penstock.server.security.zap import ClusterKeyCheck, zap_socket

DOMAIN: Final = b"penstock-replication"


class Secured:
    """The CURVE options and the key check of a context. Call `serve` each turn, and whenever
    `fileno` is readable."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: ServerKey | None) -> None:
        self._key = key
        self._check = ClusterKeyCheck(key)
        self._socket = zap_socket(context)

    @property
    def refusals(self) -> int:
        return self._check.refusals

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
        while has_messages(self._socket):
            self._socket.send_multipart(self._check.answer(self._socket.recv_multipart()))

    def close(self) -> None:
        self._socket.close(0)
