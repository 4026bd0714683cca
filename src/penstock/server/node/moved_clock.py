"""The clock of the coordinator, moved by a test that started the node.

A test has one end of a socket pair, and the node the other one, which it inherits: nobody else can
move the clock, and a node that is started in any other way has none. A message is by how many
seconds the clock is ahead in all (a double); it is answered with the same once that holds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

SECONDS: Final = struct.Struct("<d")


class MovedClock:
    """Calls `move` with what it is told, and first of all with what it was told before."""

    def __init__(
        self, fd: int, loop: asyncio.AbstractEventLoop, move: Callable[[float], None]
    ) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._loop = loop
        self._move = move
        loop.add_reader(fd, self._on_message)
        self._on_message()

    def _on_message(self) -> None:
        try:
            data = self._socket.recv(SECONDS.size)
        except BlockingIOError:
            return
        if len(data) < SECONDS.size:  # who started the node is gone
            self._loop.remove_reader(self._socket)
            self._socket.close()
            return
        self._move(*SECONDS.unpack(data))
        self._socket.send(data)
