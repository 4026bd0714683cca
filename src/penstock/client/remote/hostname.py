"""Checks whether a host name is known, in a thread of its own.

ZeroMQ looks names up on its own and does not report one that does not exist. The system's look-up
blocks for as long as its servers are silent, so a thread of its own does it.
"""

from __future__ import annotations

import socket
import threading


class HostName(threading.Thread):
    """One look-up. `unknown` says what is wrong with the name; None: nothing that is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"penstock-look-up-{name}", daemon=True)
        self.host = name
        self.unknown: str | None = None

    def run(self) -> None:
        try:
            socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.unknown = f"the host name is not known ({reason}): see to its spelling and to DNS"


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
