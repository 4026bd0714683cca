"""The gateway's loop: one line to clients, many sessions to the node, and nothing that blocks.

    a connection:   TCP ──hello──> peer ──silent, gone, against the rules──> dropped
    each turn:      events, messages, lanes, fetches, what waits to be sent, who is lost; then sleep

Owns the order of a turn and says which message goes to which part. A forbidden message ends its
connection, and only that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import zmq

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.paths import socket_in
from penstock.server.config import NodeConfig
from penstock.server.gateway.attachments import EndpointRegistry
from penstock.server.gateway.authorization import Authorization
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.curveline import CurveLine
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.gateway.events import Events
from penstock.server.gateway.fetch import FetchHandler
from penstock.server.gateway.forward import RequestForwarder
from penstock.server.gateway.handshake import Handshake
from penstock.server.gateway.key_check import NOT_AUTHORIZED, KeyCheck
from penstock.server.gateway.line import NO_FD, ClientLine, ClientParts
from penstock.server.gateway.listener import FAILED_HANDSHAKES, UNREAD_MAX
from penstock.server.gateway.lookup_thread import LookupThread
from penstock.server.gateway.membership import Membership
from penstock.server.gateway.partition_states import Known
from penstock.server.gateway.peers import Peer, Peers
from penstock.server.gateway.plainline import PlainLine
from penstock.server.gateway.produce import ProduceHandler
from penstock.server.gateway.tokens import Tokens
from penstock.server.node.topic_names import TopicNames

logger = logging.getLogger("penstock.gateway")

MESSAGES_PER_TURN: Final = 32
BYTES_PER_TURN: Final = 8 << 20
SWEEP: Final = 0.25
"""Seconds between two looks at silence, at lanes that nobody rang for, at what connections send."""
RETRY_SEND: Final = 0.002
"""Seconds until a full connection is tried again."""
UNREAD_AFTER: Final = 0.5
"""Seconds without a message after which it is looked whether bytes come all the same."""
COSTS: Final[dict[type, int]] = {fr.Produce: 0, fr.More: 0, fr.Ask: 0, fr.Attach: 3}
"""The cost of a message from its connection's budget, 1 if it is not named here. Those that cost
nothing have other bounds, and an error in one is charged where it is found."""
LEAVING: Final = 0.2
"""Seconds within which clients that were told leave by themselves."""
FAREWELL: Final = 0.5
"""Seconds that a connection has to read why it is dropped, and all have at the end."""


class Gateway:
    """Made, bound, then `run` until `stop`."""

    def __init__(self, config: NodeConfig, node_uuid: bytes) -> None:
        self._config = config
        folder = config.data_folder
        self.counts = GatewayCounts()
        self.events = Events()
        self._names = TopicNames(folder)
        self._standing = standing = Authorization(config, self._names)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._entrance = KeyCheck(self._context, standing.access, standing.guard.audit)
        is_secure = self._entrance.is_secure
        self._line: ClientLine = self._curve_line() if is_secure else self._plain_line()
        self._peers = Peers(self._line, self.counts, config.client_bytes_max)
        self._membership = membership = Membership(config.node_id)
        self._greeting = Handshake(config, node_uuid, membership, standing, self._peers)
        self._by_fd: dict[int, Peer] = {}
        self._leaving: dict[bytes, int] = {}
        known = Known(folder, membership=membership)
        self._tokens = tokens = Tokens.of_folder(folder)
        self._fetching = FetchHandler(
            known,
            self._names.of,
            self.counts,
            may_read=standing.may_read,
            may_know=standing.may_know,
            allow=standing.consumed,
            failed=self._failed,
        )
        self._producing = ProduceHandler(
            self.events,
            self.counts,
            membership,
            socket_in(folder),
            tokens,
            may_write=standing.may_write,
            allow=standing.produced,
            watch_durable=self._fetching.watch_durable,
            failed=self._failed,
        )
        self._forwarding = RequestForwarder(
            self.counts, membership, LookupThread(self.events), standing.may_look_up,
            standing.shown, tokens.prove,
        )  # fmt: skip
        self._attaching = EndpointRegistry(
            config,
            self.events,
            self.counts,
            known,
            socket_in(folder),
            tokens,
            rung=self._rung,
            gone=self._ending,
            bytes_max=standing.bytes_max,
            clients_max=standing.clients_max,
            may_know=standing.may_know,
        )
        self._messages: dict[type, Callable[[Peer, Any, memoryview | None, float], str | None]] = {
            fr.Produce: self._produce,
            fr.Fetch: self._fetch,
            fr.More: self._more,
            fr.Drop: self._drop_cursor,
            fr.Positions: self._positions,
            fr.Ask: self._ask,
            fr.Attach: lambda peer, message, _, __: self._attaching.attach(peer, message),
            fr.Detach: lambda peer, message, _, __: self._attaching.detach(peer, message),
            fr.Ping: self._ping,
            fr.Hello: lambda *_: "it said hello twice",
        }
        self._stopping = False
        self._swept_at = time.monotonic()
        self._fetch_wait: float | None = None

    def _curve_line(self) -> CurveLine:
        return CurveLine(
            self._context, self._config, gone=self._closed, refused=self._refused,
            held=self._held, secure=self._entrance.secure,
        )  # fmt: skip

    def _plain_line(self) -> PlainLine:
        return PlainLine(
            self._config, gone=self._closed, broke=self._broke, refused=self._refused,
            held=self._held, flooded=self._flooded,
        )  # fmt: skip

    def bind(self) -> str:
        """Listen, if clients are to come: the URL with the real port."""
        return self._line.bind(self._config.listen) if self._config.listen is not None else ""

    # --- the loop ---
    def run(self) -> None:
        """Serve until `stop`."""
        self._line.watch(self.events)
        self.events.watch(self._entrance.fileno(), self._entrance.serve)
        self._sweep()
        while not self._stopping:
            self.turn()
        self._farewell()

    def stop(self) -> None:
        """Leave after this turn: connections are told so, and the node drains their lanes."""
        self._stopping = self._greeting.stopping = True

    def turn(self) -> None:
        """One round of everything."""
        self.events.poll(self._pause())
        now = time.monotonic()
        if self._receive(now):  # a writer that sleeps is to begin as soon as possible
            self._producing.turn(now)
            self._fetch_wait = self._fetching.turn(now)
        else:  # consumers wait longer than who has only his answer to come, as at a writer
            self._fetch_wait = self._fetching.turn(now)
            self._producing.turn(now)
        if self._peers.waiting:
            self._peers.flush()
        for lost in self._peers.take_lost():  # not before: nothing ends below a sender
            self._drop(*lost)

    def _pause(self) -> float:
        reading = self._line.pause(time.monotonic())
        if self._producing.is_pending or self._fetching.is_pending:
            return 0.0
        pause = SWEEP if reading is None else reading
        if self._peers.waiting:
            pause = min(pause, RETRY_SEND)
        if self._fetch_wait is not None:
            pause = min(pause, self._fetch_wait)
        return pause

    def _receive(self, now: float) -> bool:
        """Takes in what came; returns whether there was anything."""
        nbytes, has_come = 0, False
        for _ in range(MESSAGES_PER_TURN):
            arrived = self._line.take(now) if nbytes <= BYTES_PER_TURN else None
            if arrived is None:
                break
            has_come = True
            nbytes += sum(map(len, arrived.parts))
            self._take(arrived, now)
            peer = self._peers.by_identity.get(arrived.identity)
            self._line.took(arrived.identity, peer is None or peer.budget.is_over, now)
        return has_come

    def _take(self, arrived: ClientParts, now: float) -> None:
        self.counts.received_bytes += sum(map(len, arrived.parts))
        peer = self._peers.by_identity.get(arrived.identity)
        try:
            message, payload = codec.from_client(arrived.parts)
        except codec.FrameError as error:
            if peer is None:
                self._refused("bad frame")
            else:
                self._drop(peer, "bad frame", str(error))
            return
        name = type(message).__name__.lower()
        self.counts.requests[name] += 1
        if peer is None:
            try:
                self._meet(arrived, message, now)
            except Exception:
                logger.exception("a first %s failed", type(message).__name__)
                self._refused("failure")
            return
        if peer.is_gone:  # it is lost, and ends with this turn
            return
        peer.heard_at = now
        cost = COSTS.get(type(message), 1)
        if cost or peer.budget.is_over:
            peer.charge(cost)
        try:
            view = None if payload is None else memoryview(payload)
            why = self._messages[type(message)](peer, message, view, now)
        except Exception as error:
            logger.exception("%s of %s failed", type(message).__name__, peer)
            self._drop(
                peer, "failure", f"the gateway failed at {type(message).__name__}: {error!r}"
            )
            return
        if why:
            self._drop(peer, "against the rules", why)

    # --- connections ---
    def _meet(self, arrived: ClientParts, message: fr.ClientMessage, now: float) -> None:
        """Takes the first message of a connection, or one of a connection that is being dropped.

        A sender that is not taken for a peer here is cut off when its time to say hello is over.
        Its message's descriptor is not used for that: it may be another connection's by now.
        """
        identity = arrived.identity
        if identity in self._leaving:
            return
        source = self._line.source(arrived)
        if source is None:
            return
        fd, address, user_id = source
        principal = self._entrance.principal_of(user_id)
        address = address or "?"
        if principal is None:
            self._refused(NOT_AUTHORIZED)
            return
        if not isinstance(message, fr.Hello):
            # Its connection was made again under it, or the gateway was: it has to begin again.
            stranger = Peer(self._peers, identity, principal, address, bytes(16))
            ended = fr.Ended(-1, "this connection is not known: say hello")
            self._peers.say_last(stranger, codec.encode(ended))
            return
        peer = Peer(self._peers, identity, principal, address, message.incarnation)
        peer.heard_at = now
        peer.user_id = user_id
        peer.fd = fd
        peer.software = message.software
        refusal = self._greeting.refusal(message, principal)
        if refusal is not None:
            # Without its cluster it refuses every try of every client: what it waits for is told
            # by its node, and here the counter.
            level = logging.INFO if self._membership.is_known else logging.DEBUG
            logger.log(level, "connection of %s refused: %s", peer, refusal.message)
            self.counts.refusals[refusal.error] += 1
            self._peers.say_last(peer, codec.encode(refusal))
            return  # a stranger for as long as it says nothing better
        self._peers.by_identity[identity] = peer
        self.counts.connections += 1
        self.counts.connections_opened += 1
        logger.debug("%s connected: %s", peer, peer.software)
        peer.send(codec.encode(self._greeting.welcome()))
        self._tell_leaders(peer)
        if not peer.is_gone and fd != NO_FD:  # without one its silence tells of its end
            self._line.said_hello(fd)
            self._by_fd[fd] = peer

    # --- the cluster ---
    def cluster_is(self, cluster: ms.GatewayCluster) -> None:
        """Takes the node's report about its cluster, and sends it to all connected clients."""
        if self._membership.told(cluster):
            self._tokens.use(cluster.secret)
            for peer in self._peers.by_identity.values():
                self._tell_leaders(peer)

    def _tell_leaders(self, peer: Peer) -> None:
        """Unless it knows, or reads slowly: it hears of later ones then."""
        if peer.leaders is not self._membership.leaders and peer.has_room:
            peer.leaders = self._membership.leaders
            peer.send(peer.leaders)

    def _drop(self, peer: Peer, kind: str, why: str) -> None:
        """End a connection: for a reason of ours (`kind`), or because it has ended."""
        if self._peers.by_identity.get(peer.identity) is not peer:
            return
        if kind:
            self.counts.drops[kind] += 1
            logger.warning(
                "connection of %s dropped: %s", peer, why,
                extra={"principal": peer.principal, "address": peer.address, "reason": kind},
            )  # fmt: skip
            self._leaving[peer.identity] = peer.fd
            self.events.later(FAREWELL, lambda: self._shut_down(peer))
            self._peers.say_last(peer, codec.encode(fr.Ended(-1, why[:1000])))
        self._peers.forget(peer)
        if self._by_fd.get(peer.fd) is peer:
            del self._by_fd[peer.fd]
        self.counts.connections -= 1
        for endpoint in self._attaching.of(peer):
            self._attaching.end(endpoint, "")

    def _shut_down(self, peer: Peer) -> None:
        self._line.look()  # it may have gone by itself, and its descriptor be another's
        if self._leaving.pop(peer.identity, None) is not None and peer.fd not in self._by_fd:
            self._line.shut_down(peer.fd)

    def _broke(self, fd: int, why: str) -> None:
        """A connection does not keep to ZeroMQ's protocol."""
        peer = self._by_fd.get(fd)
        if peer is None:
            self._line.shut_down(fd)
        else:
            self._drop(peer, "bad frame", why)

    def _closed(self, fd: int) -> None:
        """A TCP connection has ended."""
        peer = self._by_fd.get(fd)
        if peer is not None:
            logger.debug("%s has gone", peer)
            self._drop(peer, "", "")
        for identity in [who for who, its in self._leaving.items() if its == fd]:
            del self._leaving[identity]

    def _refused(self, reason: str) -> None:
        """A connection ended before it was a peer."""
        self.counts.drops[reason] += 1
        if reason in FAILED_HANDSHAKES.values():
            self._entrance.failed(reason)

    def _flooded(self) -> None:
        self.counts.throttles["messages"] += 1

    def _held(self) -> None:
        self.counts.throttles["connections"] += 1

    def _sweep(self) -> None:
        """Checks for changes that nobody rings for: silence, and belts (rule 13)."""
        now = time.monotonic()
        self.events.later(SWEEP, self._sweep)
        self._line.sweep(now)
        self._entrance.serve()
        if self._standing.look(now):
            self._access_changed()
        self.counts.keys_expire = self._standing.access.keys.expiring
        if now - self._swept_at > max(self._config.client_silence_max / 2, 4 * SWEEP):
            for peer in self._peers.by_identity.values():
                peer.heard_at = now  # it was us who did not listen
        self._swept_at = now
        for peer in list(self._peers.by_identity.values()):
            self._look_at(peer, now)

    def _look_at(self, peer: Peer, now: float) -> None:
        silence = self._config.client_silence_max
        if now - peer.heard_at > silence:
            self._drop(peer, "silent", f"nothing was heard of it for {silence:g} s")
            return
        if now - peer.heard_at > UNREAD_AFTER:
            received = self._line.bytes_received(peer.fd)
            if peer.received_by != peer.heard_at:
                peer.received_by, peer.received_bytes = peer.heard_at, received
            elif received - peer.received_bytes > UNREAD_MAX:
                self._drop(peer, "endless message", f"over {UNREAD_MAX} bytes made no message")
                return
        self._tell_leaders(peer)
        for endpoint in self._attaching.of(peer):
            if endpoint.is_open:
                self._producing.belt(endpoint)

    def _access_changed(self) -> None:
        """Applies changed keys or quotas. Clients whose key is not authorized any more have to
        leave, and today's quota applies to those that are held back."""
        line = self._line
        if self._entrance.is_outdated:
            if isinstance(line, CurveLine):
                logger.info(
                    "the server key is another one from now on: connections that are there stay"
                )
                line.renew()
            else:
                logger.info("keys are in use from now on: connections without one end")
                line = self._curve_line()
        for peer in list(self._peers.by_identity.values()):
            if self._entrance.principal_of(peer.user_id) != peer.principal:
                why = self._entrance.why_not(peer.user_id)
                self._standing.guard.audit.note(
                    time.monotonic(), peer.principal, "sent away", f"from {peer.address}: {why}",
                    address=peer.address, reason=why,
                )  # fmt: skip
                self._drop(peer, "revoked", why)
                continue
            for endpoint in self._attaching.of(peer):
                if endpoint.is_open:
                    self._producing.unhold(endpoint)
                    self._fetching.unhold(endpoint)

        if isinstance(line, CurveLine) and line is not self._line:
            self._change_to(line)

    def _change_to(self, line: CurveLine) -> None:
        """Listens by that line from now on, at the same place."""
        old, self._line, self._peers.line = self._line, line, line
        line.watch(self.events)
        line.bind_soon(old.url)
        old.read_in_vain()
        old.close(0.0)

    # --- messages ---
    def _ping(self, peer: Peer, message: fr.Ping, _: memoryview | None, now: float) -> None:
        peer.send(codec.encode(fr.Pong(message.stamp)))

    def _open(self, peer: Peer, number: int) -> GatewayEndpoint | None:
        """None: it ended, and its client does not know that yet."""
        endpoint = self._attaching.find(peer, number)
        if endpoint is not None and endpoint.is_open:
            return endpoint
        peer.charge()
        return None

    def _ask(self, peer: Peer, message: fr.Ask, _: memoryview | None, now: float) -> str | None:
        endpoint = self._open(peer, message.endpoint)
        return None if endpoint is None else self._forwarding.ask(endpoint, message, now)

    def _produce(
        self, peer: Peer, message: fr.Produce, payload: memoryview | None, now: float
    ) -> str | None:
        endpoint = self._open(peer, message.endpoint)
        return (
            None if endpoint is None
            else self._producing.produce(endpoint, message, payload, now)
        )  # fmt: skip

    def _fetch(self, peer: Peer, message: fr.Fetch, _: memoryview | None, now: float) -> str | None:
        endpoint = self._open(peer, message.endpoint)
        if endpoint is None:
            return None
        if endpoint.kind != lo.KIND_CONSUMER:
            return f"{endpoint} is no consumer and fetches"
        self._fetching.fetch(endpoint, message)
        return None

    def _more(self, peer: Peer, message: fr.More, _: memoryview | None, now: float) -> None:
        endpoint = self._open(peer, message.endpoint)
        if endpoint is not None:
            self._fetching.more(endpoint, message)

    def _drop_cursor(self, peer: Peer, message: fr.Drop, _: memoryview | None, now: float) -> None:
        endpoint = self._open(peer, message.endpoint)
        if endpoint is not None:
            self._fetching.drop(endpoint, message)

    def _positions(
        self, peer: Peer, message: fr.Positions, _: memoryview | None, now: float
    ) -> None:
        endpoint = self._open(peer, message.endpoint)
        slot = None if endpoint is None else endpoint.session.slot
        if slot is not None:
            slot.publish_positions([
                (page, offset)
                for page, offset in message.positions
                if page < lo.PAGES_MAX and offset < 1 << lo.POSITION_BITS
            ])  # fmt: skip
            slot.publish_dropped(message.dropped)
            if message.poll_age is not None:
                slot.publish_polled(max(1, time.monotonic_ns() // 1000 - message.poll_age))

    def _failed(self, endpoint: GatewayEndpoint, why: str) -> None:
        self._attaching.end(endpoint, why)

    def _ending(self, endpoint: GatewayEndpoint) -> None:
        self._producing.gone(endpoint)
        self._fetching.gone(endpoint)

    def _rung(self, endpoint: GatewayEndpoint) -> None:
        self._producing.rung(endpoint)
        self._fetching.rung(endpoint)

    # --- the end ---
    def _farewell(self) -> None:
        """Tell everybody, and leave what is in lanes to the node."""
        reason = fr.GOODBYE
        self._attaching.stopping = reason
        goodbye = codec.encode(fr.Ended(-1, reason))
        told = self.counts.connections
        for peer in list(self._peers.by_identity.values()):
            for endpoint in self._attaching.of(peer):
                # A producer's lanes are drained; members of groups are only away.
                self._attaching.end(endpoint, "", goodbye=endpoint.is_producer)
            peer.send(goodbye)
        self._line.read_in_vain()
        begun = time.monotonic()
        while (self._peers.waiting and time.monotonic() < begun + FAREWELL) or (
            self._line.has_connections and time.monotonic() < begun + LEAVING
        ):
            time.sleep(RETRY_SEND)
            self._peers.flush()
            self._line.read_in_vain()
        logger.info("the gateway leaves, %d connections were told", told)
        self._producing.close()
        self._line.close(FAREWELL)
        self._entrance.close()
        self._context.term()
        self.events.close()
