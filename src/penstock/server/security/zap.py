"""ZeroMQ's question whether to admit a connection (ZAP, RFC 27), and the answer among brokers.

ZeroMQ's own thread asks it in each process by a REP socket, before a hello. Owns the socket's place
and the form of both. `gateway.key_check` admits clients.
"""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils import z85

from penstock.security.keys import ServerKey

ZAP_URL: Final = "inproc://zeromq.zap.01"
ZAP_VERSION: Final = b"1.0"


def zap_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Where the question comes."""
    sock = context.socket(zmq.REP)
    sock.setsockopt(zmq.LINGER, 0)
    sock.bind(ZAP_URL)
    return sock


class ClusterKeyCheck:
    """Lets in who shows the cluster's own key. `refusals` counts the others."""

    def __init__(self, key: ServerKey | None) -> None:
        publics = () if key is None else key.publics
        self._known = [[b"CURVE", z85.decode(public.encode())] for public in publics]
        self.refusals = 0

    def answer(self, question: list[bytes]) -> list[bytes]:
        number = question[1] if len(question) > 1 else b""
        is_known = len(question) == 7 and question[0] == ZAP_VERSION and question[5:] in self._known
        self.refusals += not is_known
        code, text = (b"200", b"OK") if is_known else (b"400", b"not the cluster's key")
        return [ZAP_VERSION, number, code, text, b"broker", b""]
