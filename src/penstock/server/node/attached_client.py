"""One attached process and the resources that it holds.

The gateway attaches a client of another host. Such a client has no process here, so no pidfd
reports its death. The node sees only the end of its connection.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.doorbell import Doorbell
from penstock.server.node.lanes import Lane
from penstock.server.security.permits import EVERYTHING, Permits

NO_SLOT: Final = -1
REMOTE_PID: Final = 0
"""The pid, and start time, of whatever belongs to a client on another host."""

Owner = tuple[int, int]
"""The process of a client: its pid and start time, or `REMOTE_PID` and a number made of the
incarnation of a remote one."""

KINDS: Final = {
    lo.KIND_PRODUCER: "producer",
    lo.KIND_CONSUMER: "consumer",
    lo.KIND_ADMIN: "admin",
    lo.KIND_CLEANER: "cleaner",
    lo.KIND_REPLICATOR: "replicator",
}


OF_THE_NODE: Final = (lo.KIND_CLEANER, lo.KIND_REPLICATOR)
"""Kinds of the node's own processes."""
HAVE_LANES: Final = (lo.KIND_PRODUCER, lo.KIND_REPLICATOR)
WATCH_PAGES: Final = (lo.KIND_CONSUMER, lo.KIND_REPLICATOR)


class Connection(Protocol):
    """The client's side of the attach socket, as far as it matters here."""

    def refuse(self, error: str, message: str) -> None:
        """Say why and hang up."""

    def hang_up(self) -> object: ...


class AttachedClient:
    """One attached or absent process, in one of its roles."""

    def __init__(
        self,
        kind: int,
        pid: int,
        start_time: int,
        pidfd: int,
        name: str,
        remote: ms.RemotePeer | None = None,
    ) -> None:
        self.kind = kind
        self.pid = pid
        self.start_time = start_time
        self.pidfd = pidfd
        self.name = name
        self.doorbell = Doorbell()
        self.slot = NO_SLOT
        self.producer_id = 0
        self.lanes: dict[int, Lane] = {}
        self.connection: Connection | None = None
        self.permits: Permits = EVERYTHING
        self.remote = remote
        self.number = 0
        """Of this attachment: it has another one when it comes back."""
        self.since = 0.0
        """When it was attached, in seconds since 1970."""

    @property
    def owner(self) -> Owner:
        if self.remote is None:
            return self.pid, self.start_time
        return REMOTE_PID, int.from_bytes(self.remote.incarnation, "little")

    @property
    def log_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"client": KINDS[self.kind], "client_id": self.name}
        if self.remote is None:
            return fields | {"pid": self.pid}
        return fields | {"principal": self.remote.principal, "address": self.remote.address}

    def __str__(self) -> str:
        who = f"{KINDS[self.kind]} {self.name!r}" if self.name else KINDS[self.kind]
        if self.remote is not None:
            return f"{who} ({self.remote.principal}@{self.remote.address})"
        return f"{who} (pid {self.pid})"
