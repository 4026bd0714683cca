"""A connection of a browser, within bounds: how many one address has, and how long one may keep
quiet before its request is complete."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

ADDRESS_CONNECTIONS_MAX: Final = 128
"""Connections of one address but the proxy's: half of all."""
QUIET_SECONDS: Final = 15.0
"""A connection without a request that began since the last look, or is answered, ends then."""


def protocol_of(proxy: str | None) -> type[H11Protocol]:
    """Makes the class of connections. `proxy`: the address that all of them come from."""

    class BoundedConnection(_BoundedConnection):
        trusted = proxy

    return BoundedConnection


class _BoundedConnection(H11Protocol):
    trusted: str | None = None
    _looks: asyncio.TimerHandle | None = None
    _seen: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = None if self.client is None else self.client[0]
        own = sum(
            isinstance(each, H11Protocol) and each.client is not None and each.client[0] == address
            for each in self.connections
        )
        if address != self.trusted and own > ADDRESS_CONNECTIONS_MAX:
            transport.abort()
            return
        self._looks = self.loop.call_later(QUIET_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._looks is not None:
            self._looks.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        cycle = self.cycle
        is_quiet = cycle is self._seen and (cycle is None or cycle.response_complete)
        if is_quiet:
            self.transport.abort()
            return
        self._seen = cycle
        self._looks = self.loop.call_later(QUIET_SECONDS, self._look)
