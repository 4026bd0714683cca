"""The types that an address and its carrier share: host names, and an attachment's link.

Owns no thread and no connection.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.remote.cursors import Fetcher

Host = tuple[str, int]


class Link:
    """One attachment's end of a carrier: its socket, and once it is welcome, what fetches for it.

    Filled by the carrier before it sends the node's `Welcome`.
    """

    __slots__ = ("far", "socket")

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.far: Fetcher | None = None


def host_text(host: Host) -> str:
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
