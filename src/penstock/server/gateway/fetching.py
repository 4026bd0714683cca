"""What remote consumers are sent: one fair round after another over all cursors of the gateway.

Never blocks and never decodes. Wakes by the doorbells of the endpoints (rule 13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.server.gateway.states import Known, PageStates
from penstock.session import Session

Piece = bytes | bytearray | memoryview

Allow = Callable[[str, str, int, float], float]
"""(principal, client id, bytes going out, now) -> seconds to hold the endpoint back, 0 for none."""
MayRead = Callable[[str, str], None]
"""(principal, topic): raises `AccessDeniedError` where that principal may not read that topic."""


class Endpoint(Protocol):
    """What is needed of an endpoint. `peer`: its connection, the same object for all of them."""

    @property
    def number(self) -> int: ...
    @property
    def peer(self) -> Any: ...
    @property
    def session(self) -> Session: ...
    @property
    def principal(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def states(self) -> PageStates: ...
    def post(self, message: msgspec.Struct, payload: Piece | None = None) -> bool:
        """Send, or keep to be sent; False: the peer is gone."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`payload_bytes`: what one `Fetched` is filled up to (and passed by less than a batch).
    `connection_bytes`: what may be under way to one connection's cursors without `More`; each of
    its endpoints may have one payload under way beyond that. `turn_bytes`: sent in one `turn`.
    `readers_max`: segments open at a time. `pages_every`: seconds between two `Pages` of an
    endpoint."""

    payload_bytes: int = 512 << 10
    connection_bytes: int = 32 << 20
    turn_bytes: int = 4 << 20
    readers_max: int = 512
    pages_every: float = 0.020


NO_QUOTA: Final[Allow] = lambda principal, client_id, nbytes, now: 0.0  # noqa: E731


def anybody(principal: str, topic: str) -> None:
    """No access control."""


class Fetching:
    """See the module. Made once by the gateway, which calls `turn` after each round of events."""

    def __init__(
        self,
        known: Known,
        limits: FetchLimits | None = None,
        *,
        allow: Allow = NO_QUOTA,
        may_read: MayRead = anybody,
    ) -> None:
        self._known = known
        self._limits = limits or FetchLimits()
        self._allow = allow
        self._may_read = may_read

    def fetch(self, endpoint: Endpoint, message: fr.Fetch) -> None:
        """Begin a cursor, or begin it anew."""

    def more(self, endpoint: Endpoint, message: fr.More) -> None:
        """The client has consumed so many bytes."""

    def drop(self, endpoint: Endpoint, message: fr.Drop) -> None:
        """End a cursor."""

    def watch_durable(self, endpoint: Endpoint, page: int, offset: int) -> None:
        """The endpoint waits until that page is durable up to `offset` (exclusive): it is told by
        `Pages`. For producers, after answers whose records are not synced yet."""

    def gone(self, endpoint: Endpoint) -> None:
        """The endpoint ended: free everything."""

    def rung(self, endpoint: Endpoint) -> None:
        """Its doorbell rang, and was cleared: pages may have moved."""

    def turn(self, now: float) -> float | None:
        """One fair round of sending; seconds until it wants another one without any event (None:
        only on events, 0: at once)."""
        return None
