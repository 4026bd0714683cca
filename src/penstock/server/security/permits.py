"""The rights of one client: its principal and the guard, for the code that answers its requests."""

from __future__ import annotations

import os
from typing import Final, Protocol

from penstock.cluster.access import Kind, Operation
from penstock.core.errors import AttachRefusedError, PenstockError
from penstock.ipc import messages as ms
from penstock.server.security.authorizer import Guard, is_local, local_principal


class Permits(Protocol):
    def check(self, message: ms.ClientMessage) -> None:
        """Raise unless the client may have this request answered."""

    def sees(self, kind: str, name: str) -> bool:
        """Whether it may know of this."""

    def reads(self, topic: str) -> bool:
        """Whether it may read this topic."""

    def denied(self, topic_id: bytes) -> PenstockError | None:
        """Why it may not read this topic, with the topic's name: the client knows it. None where
        it may, UnknownTopicError where there is none."""

    def acts_for(self, principal: str) -> bool:
        """Whether it may speak for what that principal made."""


class Everything:
    """Of the node's own user (rule 28)."""

    def check(self, message: ms.ClientMessage) -> None:
        pass

    def sees(self, kind: str, name: str) -> bool:
        return True

    def reads(self, topic: str) -> bool:
        return True

    def denied(self, topic_id: bytes) -> PenstockError | None:
        return None

    def acts_for(self, principal: str) -> bool:
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

    def denied(self, topic_id: bytes) -> PenstockError | None:
        return self._guard.denied(self._principal, Operation.read, topic_id)

    def acts_for(self, principal: str) -> bool:
        # Versions before this one noted no principal: such a member is of the client that asks.
        return principal in ("", self._principal) or self._guard.access.policy.is_open

    def __str__(self) -> str:
        return self._principal
