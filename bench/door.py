"""The address by which the processes of a run reach its node."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.client import Client, connect


@dataclass(frozen=True, slots=True)
class Door:
    """`key`: the client's key file, where the node wants one."""

    url: str
    key: str | None = None

    def connect(self) -> Client:
        """Connects, by TCP where the URL says so, also if the node is on this host: it is measured
        here."""
        is_remote = self.url.startswith("tcp://")
        return connect(self.url, transport="tcp" if is_remote else "auto", keys=self.key)
