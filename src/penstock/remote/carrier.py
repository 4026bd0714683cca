"""The carrier: node and writers of a remote client, played in its own process by one thread.

Work in progress: the ports only.
"""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.core.errors import NotConnectedError
from penstock.remote.address import Host, Link


class Carrier:
    """See the module."""

    def __init__(self, hosts: tuple[Host, ...], keys: Path | None) -> None:
        self._hosts = hosts
        self._keys = keys

    @property
    def is_over(self) -> bool:
        return False

    def start(self) -> None:
        """Begin."""

    def serve(self, link: Link, end: socket.socket) -> None:
        """Attach what speaks at the other end of that socket."""
        raise NotConnectedError("remote clients are not there yet")

    def finish(self) -> None:
        """End once nothing uses it."""

    def abandon(self) -> None:
        """Forget everything: this process was forked off."""

    def why(self) -> str:
        return ""

    def metrics(self) -> dict[str, float]:
        return {}
