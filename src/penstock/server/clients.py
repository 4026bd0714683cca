"""One attached process and what it holds."""

from __future__ import annotations

from typing import Final, Protocol

from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell
from penstock.server.lanes import Lane
from penstock.server.permits import EVERYTHING, Permits

NO_SLOT: Final = -1
KINDS: Final = {
    lo.KIND_PRODUCER: "producer",
    lo.KIND_CONSUMER: "consumer",
    lo.KIND_ADMIN: "admin",
    lo.KIND_CLEANER: "cleaner",
}


class Connection(Protocol):
    """The client's side of the attach socket, as far as it matters here."""

    def refuse(self, error: str, message: str) -> None:
        """Say why and hang up."""

    def hang_up(self) -> object: ...


class Client:
    """One attached or absent process, in one of its roles."""

    def __init__(self, kind: int, pid: int, start_time: int, pidfd: int, name: str) -> None:
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

    @property
    def log_fields(self) -> dict[str, object]:
        return {"client": KINDS[self.kind], "client_id": self.name, "pid": self.pid}

    def __str__(self) -> str:
        who = f"{KINDS[self.kind]} {self.name!r}" if self.name else KINDS[self.kind]
        return f"{who} (pid {self.pid})"
