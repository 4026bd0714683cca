"""Looks host names up, in a thread of its own.

The system's look-up blocks for as long as its servers are silent, so a thread of its own does it.
ZeroMQ looks names up on its own and does not report one that does not exist.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from penstock.client.remote.link import Host


class HostName(threading.Thread):
    """One look-up. `unknown` says what is wrong with the name; None: nothing that is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"penstock-look-up-{name}", daemon=True)
        self.host = name
        self.unknown: str | None = None
        self._found: list[tuple[int, Any]] = []

    def run(self) -> None:
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
            self._found = [(family, address) for family, _, _, _, address in found]
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.unknown = f"the host name is not known ({reason}): see to its spelling and to DNS"

    def at(self, port: int) -> list[tuple[int, Any]]:
        """Returns families and addresses of that port of the host, once the thread is over."""
        return [(family, (host, port, *rest)) for family, (host, _, *rest) in self._found]


def numeric(host: Host) -> list[tuple[int, Any]]:
    """Returns family and address of a host that is named by its address."""
    found = socket.getaddrinfo(*host, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [(family, address) for family, _, _, _, address in found]


def looked_up(name: str) -> HostName | None:
    """Begins a look-up and returns it; None for an address, which needs none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
        except OSError:
            continue
        return None
    look_up = HostName(name)
    look_up.start()
    return look_up
