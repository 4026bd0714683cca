"""Moves the clock of a node's coordinator, by a socket that the node inherits."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.core.errors import ConfigError, PenstockError
from penstock.server.node.moved_clock import SECONDS

WITHIN: Final = 10.0
"""Seconds that a node has for its word that its clock is moved."""
AHEAD_MAX: Final = 10 * 365 * 86_400.0


class ClockOfNode:
    """`ahead`: by how many seconds it was moved so far."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._socket: socket.socket | None = None

    @contextmanager
    def launching(self) -> Iterator[int]:
        """A node's end, as long as it takes to hand it over. It begins with what holds by now."""
        self.close()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(WITHIN)
        with other:
            if self.ahead:
                self._socket.send(SECONDS.pack(self.ahead))
            yield other.fileno()

    def advance(self, seconds: float, *, is_running: bool) -> None:
        if not (math.isfinite(seconds) and 0.0 < seconds <= AHEAD_MAX - self.ahead):
            raise ConfigError(
                f"advance({seconds!r}): a clock goes ahead by more than 0 seconds, and by "
                f"{AHEAD_MAX:g} in all at most; it is {self.ahead:g} ahead"
            )
        self.ahead += seconds
        if self._socket is None or not is_running:
            return
        wanted = SECONDS.pack(self.ahead)
        try:
            self._socket.send(wanted)
            while (said := self._socket.recv(SECONDS.size)) and said != wanted:
                pass  # of what was told when it started
        except OSError as error:
            said = b""
            why = str(error)
        else:
            why = "it has ended"
        if said != wanted:
            raise PenstockError(f"the node does not say that its clock is moved: {why}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
