"""What one client may: its principal and the guard, as those see it who answer its requests."""

from __future__ import annotations

import os
from typing import Final, Protocol

from penstock.cluster.access import Kind, Operation
from penstock.core.errors import AttachRefusedError
from penstock.ipc import messages as ms
from penstock.server.guard import Guard, is_local, local_principal


class Permits(Protocol):
    def check(self, message: ms.ClientMessage) -> None:
        """Raise unless the client may have this request answered."""

    def sees(self, kind: str, name: str) -> bool:
        """Whether it may know of this."""

    def reads(self, topic: str) -> bool:
        """Whether it may read this topic."""


class Everything:
    """Of the node's own user (rule 28)."""

    def check(self, message: ms.ClientMessage) -> None:
        pass

    def sees(self, kind: str, name: str) -> bool:
        return True

    def reads(self, topic: str) -> bool:
        return True

    def __str__(self) -> str:
        return local_principal(os.geteuid())


EVERYTHING: Final = Everything()


class RemotePermits:
    """Of a client that the gateway attached."""

    def __init__(self, guard: Guard, principal: str) -> None:
        if is_local(principal):
            raise AttachRefusedError(
                f"a client on another host cannot be {principal[:100]!r}, a user of this one"
            )
        self._guard = guard
        self._principal = principal

    def check(self, message: ms.ClientMessage) -> None:
        self._guard.check_request(self._principal, message)

    def sees(self, kind: str, name: str) -> bool:
        return self._guard.sees(self._principal, kind, name)

    def reads(self, topic: str) -> bool:
        return self._guard.allows(self._principal, Operation.read, Kind.topic, topic)

    def __str__(self) -> str:
        return self._principal
