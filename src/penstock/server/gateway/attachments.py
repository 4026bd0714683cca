"""Endpoints as they come and go: each has a session to the node while it is open.

    Attach ──session──> Attached ──Detach──────────────> its session says goodbye
                           ├── Detach(returns), or
                           │   its connection ends ────> the session just ends
                           └── the node ends it ───────> Ended

A session that ends without a goodbye is to the node what a broken connection is: members have their
session timeout, lanes are drained. Owns the windows that producers were promised, which bound what
the gateway can have to hold.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from penstock.client.session import Session
from penstock.cluster.frames import messages as fr
from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    NotConnectedError,
    PenstockError,
    ResourceLimitError,
)
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.server.config import NodeConfig
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.gateway.events import Events
from penstock.server.gateway.partition_states import Known, PageStates
from penstock.server.gateway.peers import Peer
from penstock.server.gateway.request_queue import RequestQueue
from penstock.server.gateway.tokens import Tokens

logger = logging.getLogger("penstock.gateway")

ATTACH_TIMEOUT: Final = 5.0
WINDOW_SHARE: Final = 4
"""A producer is given at most one part in so many of what its connection has left."""
KINDS: Final = (lo.KIND_PRODUCER, lo.KIND_CONSUMER, lo.KIND_ADMIN)
_NONE: Final[dict[int, GatewayEndpoint]] = {}


class EndpointRegistry:
    """`rung` is told when an endpoint's doorbell rang, `gone` when it is over, before its session
    is closed. `bytes_max`: the bound of a principal, given the one of all;
    `clients_max`: how many endpoints it may have; `may_know`: whether it may hear of a topic."""

    def __init__(
        self,
        config: NodeConfig,
        events: Events,
        counts: GatewayCounts,
        known: Known,
        socket: Path,
        tokens: Tokens,
        *,
        rung: Callable[[GatewayEndpoint], None],
        gone: Callable[[GatewayEndpoint], None],
        bytes_max: Callable[[str, int], int],
        clients_max: Callable[[str], int | None],
        may_know: Callable[[str, bytes], bool],
    ) -> None:
        self._config = config
        self._events = events
        self._counts = counts
        self._known = known
        self._socket = socket
        self._tokens = tokens
        self._rung = rung
        self._gone = gone
        self._bytes_max = bytes_max
        self._clients_max = clients_max
        self._may_know = may_know
        self._clients: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        self._producers: dict[int, GatewayEndpoint] = {}
        self._endpoints: dict[Peer, dict[int, GatewayEndpoint]] = {}
        self.stopping = ""

    def find(self, peer: Peer, number: int) -> GatewayEndpoint | None:
        """The endpoint of that number of a connection."""
        return self._endpoints.get(peer, _NONE).get(number)

    def of(self, peer: Peer) -> list[GatewayEndpoint]:
        """All endpoints of a connection."""
        return list(self._endpoints.get(peer, _NONE).values())

    # --- coming ---
    def attach(self, peer: Peer, message: fr.Attach) -> str:
        """Begin an endpoint. Returns why the connection is to be dropped, empty if it is not."""
        number = message.endpoint
        if self.find(peer, number) is not None:
            return f"it attached endpoint {number} twice"
        endpoint = GatewayEndpoint(peer, number, message.kind, message.client_id)
        try:
            self._admit(endpoint, message)
        except PenstockError as error:
            self._refuse(endpoint, error)
            return ""
        self._endpoints.setdefault(peer, {})[number] = endpoint
        self._clients[peer.principal] += 1
        self._counts.endpoints += 1
        endpoint.task = self._events.spawn(
            Session.attaching(
                self._socket,
                message.kind,
                client_id=message.client_id,
                timeout=ATTACH_TIMEOUT,
                resume=message.resume,
                remote=ms.RemotePeer(peer.principal, peer.address, peer.incarnation),
            ),
            lambda session: self._attached(endpoint, session),
            lambda error: self._failed(endpoint, error),
        )
        return ""

    def _admit(self, endpoint: GatewayEndpoint, message: fr.Attach) -> None:
        peer = endpoint.peer
        if self.stopping:
            raise NotConnectedError(self.stopping)  # a producer that is refused gives its id up
        if message.kind not in KINDS:
            raise ConfigError(f"kind {message.kind} is no kind of client: allowed are {KINDS}")
        if len(self._endpoints.get(peer, _NONE)) >= fr.ENDPOINTS_MAX:
            raise ResourceLimitError(
                f"this connection has {fr.ENDPOINTS_MAX} endpoints (ENDPOINTS_MAX): close some, or "
                "use another Client for further ones"
            )
        most = self._clients_max(peer.principal)
        if most is not None and self._clients[peer.principal] >= most:
            raise ResourceLimitError(
                f"principal {peer.principal!r} has {most} producers, consumers and admins, its "
                "limit clients_max: close some, or have the node's operator raise it (`penstock "
                "quota set`)"
            )
        if message.resume is not None:
            if not self._tokens.is_good(message.token, message.resume, peer.principal):
                raise AttachRefusedError(
                    f"producer id {message.resume} was not given to {peer.principal!r} by this "
                    "node: attach without `resume`"
                )
            before = self._producers.get(message.resume)
            if before is not None:
                self.end(before, "its producer came back by another connection")
        if endpoint.is_producer:
            self._reserve(endpoint)

    def _reserve(self, endpoint: GatewayEndpoint) -> None:
        """Promise it a window that there is room for."""
        config, peer = self._config, endpoint.peer
        writers = config.writers
        least = config.lane_capacity // lo.FRAME_SHARE
        of_principal = self._bytes_max(peer.principal, config.principal_bytes_max)
        for bound, left in (
            ("client_bytes_max", config.client_bytes_max - peer.bytes_reserved),
            ("principal_bytes_max", of_principal - self._reserved[peer.principal]),
        ):
            if left < least * writers:
                raise ResourceLimitError(
                    f"the producers of {peer} may have as many bytes under way as {bound} allows: "
                    "close some, or start the node with a larger one"
                )
            share = max(least, left // (WINDOW_SHARE * writers))
            most = min(config.client_window, config.lane_capacity)
            endpoint.window = min(endpoint.window or most, max(share, least))
        peer.bytes_reserved += endpoint.window * writers
        self._reserved[peer.principal] += endpoint.window * writers

    def _attached(self, endpoint: GatewayEndpoint, session: Session) -> None:
        peer = endpoint.peer
        endpoint.task = None
        endpoint.session = session
        endpoint.states = PageStates(
            session.state,
            self._known,
            wide=endpoint.kind == lo.KIND_ADMIN,
            may_know=partial(self._may_know, peer.principal),
        )
        endpoint.requests = RequestQueue(self._events, lambda: self._watch_channel(endpoint))
        endpoint.is_open = True
        self._watch_channel(endpoint)
        self._events.watch(session.doorbell.fileno(), lambda: self._bell(endpoint))
        token = b""
        if endpoint.is_producer:
            self._producers[session.producer_id] = endpoint
            token = self._tokens.make(session.producer_id, peer.principal)
        if session.slot is not None:
            endpoint.notice = session.slot.notice
        endpoint.post(
            fr.Attached(
                endpoint.number,
                session.writers,
                session.welcome.lane_capacity,
                session.producer_id,
                token,
                endpoint.window,
                endpoint.notice,
            )
        )

    def _failed(self, endpoint: GatewayEndpoint, error: Exception) -> None:
        endpoint.task = None
        self._leave(endpoint)
        if not isinstance(error, PenstockError):
            logger.error("%s cannot be attached", endpoint, exc_info=error)
        self._refuse(endpoint, error)

    def _refuse(self, endpoint: GatewayEndpoint, error: Exception) -> None:
        name = type(error).__name__ if isinstance(error, PenstockError) else "PenstockError"
        logger.info("%s refused: %s", endpoint, error, extra={"reason": name})
        self._counts.refusals[name] += 1
        endpoint.post(fr.Refused(endpoint.number, name, str(error)[:4000]))

    # --- while it is there ---
    def _watch_channel(self, endpoint: GatewayEndpoint) -> None:
        if endpoint.is_open:
            self._events.watch(endpoint.session.fileno(), lambda: self._heard(endpoint))

    def _heard(self, endpoint: GatewayEndpoint) -> None:
        """The node says something that nobody asked for: mostly that it is over."""
        reason = endpoint.session.farewell()
        if reason is not None:
            self.end(endpoint, reason)

    def _bell(self, endpoint: GatewayEndpoint) -> None:
        session = endpoint.session
        session.doorbell.clear()
        if session.slot is not None and session.slot.notice != endpoint.notice:
            endpoint.notice = session.slot.notice
            endpoint.post(fr.Notice(endpoint.number, endpoint.notice))
        self._rung(endpoint)

    # --- going ---
    def detach(self, peer: Peer, message: fr.Detach) -> None:
        endpoint = self.find(peer, message.endpoint)
        if endpoint is not None:
            self.end(endpoint, "", goodbye=not message.returns)

    def end(self, endpoint: GatewayEndpoint, reason: str, *, goodbye: bool = False) -> None:
        """It is over. With a `reason` its client is told."""
        if self.find(endpoint.peer, endpoint.number) is not endpoint:
            return
        self._leave(endpoint)
        if endpoint.task is not None:
            endpoint.task.cancel()
            endpoint.task = None
        if endpoint.is_open:
            self._gone(endpoint)
            endpoint.is_open = False
            session = endpoint.session
            if endpoint.requests is not None:
                endpoint.requests.close()
            self._events.unwatch(session.fileno())
            self._events.unwatch(session.doorbell.fileno())
            if self._producers.get(session.producer_id) is endpoint:
                del self._producers[session.producer_id]
            session.close(polite=goodbye, patience=0.0)
        if reason:
            logger.info("%s ended: %s", endpoint, reason)
            endpoint.post(fr.Ended(endpoint.number, reason[:1000]))

    def _leave(self, endpoint: GatewayEndpoint) -> None:
        peer = endpoint.peer
        endpoints = self._endpoints[peer]
        del endpoints[endpoint.number]
        if not endpoints:
            del self._endpoints[peer]
        self._clients[peer.principal] -= 1
        if not self._clients[peer.principal]:
            del self._clients[peer.principal]
        self._counts.endpoints -= 1
        if endpoint.is_producer:
            nbytes = endpoint.window * self._config.writers
            peer.bytes_reserved -= nbytes
            self._reserved[peer.principal] -= nbytes
            if not self._reserved[peer.principal]:
                del self._reserved[peer.principal]
