"""The attached processes: how they come, and the effects of their end.

    attach --> attached --Bye-------------> closed: its lanes are retired
                  |    --EOF, sent away---> absent: its lanes are kept until it resumes, marks
                  |                         them closed, or dies
                  +----pidfd, any state---> dead:   its lanes are retired
       remote ----+----EOF----------------> gone:   its lanes are retired; resumed in time or not

Death is the pidfd alone (rule 7): a forked child that holds the socket keeps nobody alive. And a
socket that ends says nothing about lanes. It may be an attempt to attach that its client gave up,
while the client writes on into the lanes it has. After a node died, living producers of its lanes
begin as absent.

The gateway attaches a remote client, and the gateway's death says nothing about it. At the end of
the client's connection its sent batches are drained. If it comes back it repeats batches without an
answer, into lanes that are opened when the old ones are gone. Not back within `client_absence_max`,
it counts as dead for its transactions. Owns pidfds, doorbells, slots and producer ids. Speaks to no
socket.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    ResourceLimitError,
    UnsupportedVersionError,
)
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.channel import PeerCredentials
from penstock.ipc.liveness import open_pidfd
from penstock.server.config import NodeConfig
from penstock.server.node.attached_client import (
    HAVE_LANES,
    KINDS,
    NO_SLOT,
    OF_THE_NODE,
    WATCH_PAGES,
    AttachedClient,
    Connection,
    Owner,
)
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.lane_grants import Grants
from penstock.server.node.lanes import Lane
from penstock.server.node.tables import Tables
from penstock.server.process.writer import Order
from penstock.server.process.writers import Supervisor

logger = logging.getLogger("penstock.node")

NO_PIDFD: Final = -1

ABSENT_INTERVAL: Final = 5.0
"""Seconds between two looks whether absent producers have closed their lanes."""


class ClientRegistry:
    """All clients. Told by sessions and pidfds; tells writers about consumers."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        grants: Grants,
        supervisor: Supervisor,
        on_death: Callable[[Owner], None] = lambda _: None,
        gateway_pid: Callable[[], int] = lambda: 0,
        replicator_pid: Callable[[], int] = lambda: 0,
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._grants = grants
        self._supervisor = supervisor
        self._on_death = on_death
        self._gateway_pid = gateway_pid
        self._replicator_pid = replicator_pid
        self._loop = asyncio.get_running_loop()
        self._absence: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._producers: dict[int, AttachedClient] = {}
        self.clients: set[AttachedClient] = set()

    @property
    def count(self) -> int:
        """Clients with a connection, but for the node's own processes."""
        return sum(
            client.connection is not None and client.kind not in OF_THE_NODE
            for client in self.clients
        )

    def is_of_the_node(self, client: AttachedClient) -> bool:
        """Whether a process of the node attached it for its own ends."""
        is_gateways = client.remote is None and client.pid == self._gateway_pid()
        return is_gateways or client.kind in OF_THE_NODE

    @property
    def are_gone(self) -> bool:
        """Whether no client is left that could come back."""
        return all(client.kind in OF_THE_NODE for client in self.clients)

    # --- the run before ---
    def adopt(self, lanes: Iterable[Lane], boot_hash: int) -> None:
        """Take up lanes of the run before: their living producers are absent, others are dead."""
        for lane in lanes:
            alive = lane.identity.boot_hash == boot_hash
            self._grants.adopt(lane, self._living_producer(lane) if alive else None)
        self._look_after_absent()

    def _living_producer(self, lane: Lane) -> AttachedClient | None:
        who = lane.identity
        if lo.is_coordinators(who.producer_id) or lo.is_replicators(who.producer_id):
            return None  # of the node before, even where this process was that
        if not who.pid:
            return None  # of a producer elsewhere, which comes back with another connection
        known = self._producers.get(who.producer_id)
        if known is not None:
            return known if (known.pid, known.start_time) == (who.pid, who.start_time) else None
        try:
            pidfd = open_pidfd(who.pid, who.start_time)
        except ProcessLookupError:
            return None
        client = self._enter(lo.KIND_PRODUCER, who.pid, who.start_time, pidfd, "")
        client.producer_id = who.producer_id
        self._producers[who.producer_id] = client
        return client

    def _look_after_absent(self) -> None:
        """End absent producers that are done. Runs only while there are any."""
        for client in [client for client in self.clients if client.connection is None]:
            if self._grants.are_closed(client):
                self._end(client, "closed while absent")
        absent = any(client.connection is None for client in self.clients)
        self._absence = (
            self._loop.call_later(ABSENT_INTERVAL, self._look_after_absent) if absent else None
        )

    def orders_for(self, writer: int) -> Iterator[Order]:
        """Everything about clients that a fresh writer must know."""
        yield from self._grants.orders_for(writer)
        for client in self.clients:
            if client.kind in WATCH_PAGES and client.slot != NO_SLOT:
                yield ms.AddClient(client.slot), client.doorbell

    # --- attach ---
    def attach(
        self, peer: PeerCredentials, hello: ms.Hello, connection: Connection
    ) -> AttachedClient:
        """Admit who said hello, or raise what refuses it."""
        if hello.version != ms.PROTOCOL_VERSION:
            raise UnsupportedVersionError(
                f"the client speaks version {hello.version} of the attach protocol, this node "
                f"{ms.PROTOCOL_VERSION}: use the same Penstock version on both sides"
            )
        if hello.kind not in KINDS:
            raise ConfigError(f"kind {hello.kind} is no kind of client: allowed are {KINDS}")
        if self.count >= self._config.clients_max:
            raise ResourceLimitError(
                f"the node has {self.count} clients, its bound clients_max: close some, or start "
                f"the node with a larger one (up to {lo.CLIENTS_MAX})"
            )
        if hello.remote is not None and peer.pid != self._gateway_pid():
            raise AttachRefusedError(
                f"process {peer.pid} attaches for others and is not this node's gateway"
            )
        if hello.kind == lo.KIND_REPLICATOR and peer.pid != self._replicator_pid():
            raise AttachRefusedError(f"process {peer.pid} is not this node's replicator")
        resumed = self._resumed(peer, hello)
        client = resumed or self._admitted(peer, hello)
        try:
            self._equip(client, hello.resume)
        except BaseException:
            if resumed is None:
                self._leave(client)
            raise
        client.connection = connection
        client.name = hello.client_id[:100]
        client.number, client.since = next(self._numbers), time.time()
        if client.kind in WATCH_PAGES:
            self._supervisor.post_running(ms.AddClient(client.slot), client.doorbell)
        return client

    def _resumed(self, peer: PeerCredentials, hello: ms.Hello) -> AttachedClient | None:
        """The absent or stale client that comes back, when there is one."""
        if hello.resume is None:
            return None
        if hello.kind != lo.KIND_PRODUCER or not self._folder.may_be_ours(hello.resume):
            raise AttachRefusedError(
                f"producer id {hello.resume} was not given by this node: attach without `resume`"
            )
        client = self._producers.get(hello.resume)
        if hello.remote is not None:
            self._check_remote(hello.resume, client)
            return None
        identities = [lane.identity for lane in self._grants.of_producer(hello.resume)]
        owners = {(identity.pid, identity.start_time) for identity in identities}
        if client is not None:
            owners.add((client.pid, client.start_time))
        if owners - {(peer.pid, hello.start_time)}:
            raise AttachRefusedError(
                f"producer id {hello.resume} belongs to pid {min(owners)[0]} and not to pid "
                f"{peer.pid}: attach without `resume`"
            )
        if client is not None and client.connection is not None:
            client.connection.hang_up()  # the client has given that one up
            client.connection = None
        return client

    def _check_remote(self, producer_id: int, client: AttachedClient | None) -> None:
        """The gateway has seen the token: what the producer had by another connection is over."""
        if client is not None and client.remote is None:
            raise AttachRefusedError(
                f"producer id {producer_id} belongs to pid {client.pid} of the node's own host: "
                "attach without `resume`"
            )
        if client is not None:
            if client.connection is not None:
                client.connection.hang_up()
            self._end(client, "came back by another connection")

    def _admitted(self, peer: PeerCredentials, hello: ms.Hello) -> AttachedClient:
        if hello.remote is not None:
            return self._enter(
                hello.kind, peer.pid, hello.start_time, NO_PIDFD, hello.client_id[:100],
                hello.remote,
            )  # fmt: skip
        try:
            pidfd = open_pidfd(peer.pid, hello.start_time)
        except ProcessLookupError as error:
            raise AttachRefusedError(
                f"process {peer.pid} as the node sees it is not the one that called ({error}): the "
                "client runs in another pid namespace (a container), or said hello for somebody "
                "else. Connect by tcp:// instead, or share the pid namespace"
            ) from error
        return self._enter(hello.kind, peer.pid, hello.start_time, pidfd, hello.client_id[:100])

    def _enter(
        self,
        kind: int,
        pid: int,
        start_time: int,
        pidfd: int,
        name: str,
        remote: ms.RemotePeer | None = None,
    ) -> AttachedClient:
        try:
            client = AttachedClient(kind, pid, start_time, pidfd, name, remote)
        except BaseException:
            if pidfd != NO_PIDFD:
                os.close(pidfd)
            raise
        self.clients.add(client)
        if pidfd != NO_PIDFD:
            self._loop.add_reader(pidfd, self._died, client)
        return client

    def _equip(self, client: AttachedClient, resume: int | None) -> None:
        """Give a client its slot, its producer id, and the lanes that it had under that id."""
        if client.kind in (*HAVE_LANES, *WATCH_PAGES) and client.slot == NO_SLOT:
            client.slot = self._tables.take_slot(client.pid, client.start_time, client.kind)
        if client.kind == lo.KIND_PRODUCER and not client.producer_id:
            client.producer_id = resume or self._folder.next_producer_id()
            self._producers[client.producer_id] = client
            if resume is not None and client.remote is None:
                self._grants.take_back(client)
        if client.kind == lo.KIND_REPLICATOR:
            client.producer_id = self._folder.replicator_id

    # --- the end of a client ---
    def closed(self, client: AttachedClient) -> None:
        """It said goodbye."""
        self._end(client, "closed")

    def hung_up(self, client: AttachedClient) -> None:
        """The connection ended. Until the process resumes or dies, its lanes are kept."""
        client.connection = None
        if not client.lanes or client.remote is not None:
            self._end(client, "has gone")
            return
        self._free_slot(client)
        if self._absence is None:
            self._absence = self._loop.call_later(ABSENT_INTERVAL, self._look_after_absent)

    def dropped(self, report: ms.LaneDropped) -> None:
        """A writer dropped a lane; its client has been told, and what else it has is kept.

        It writes on into its other lanes until it reads that, and has the answers to come.
        """
        client = self._grants.dropped(report)
        if client is not None:
            logger.info("%s was sent away, its lane was dropped", client)
            self.hung_up(client)

    def _died(self, client: AttachedClient) -> None:
        if client.connection is not None:
            client.connection.hang_up()
        self._end(client, "died")
        self._on_death(client.owner)

    def _end(self, client: AttachedClient, how: str) -> None:
        if client not in self.clients:
            return
        client.connection = None
        if client.lanes:
            logger.info(
                "%s %s, %d lanes to drain",
                client,
                how,
                len(client.lanes),
                extra={"reason": how, "lanes": len(client.lanes)},
            )
        else:
            logger.debug("%s %s", client, how, extra={"reason": how})
        self._grants.retire(client)
        self._leave(client)

    def _leave(self, client: AttachedClient) -> None:
        self.clients.discard(client)
        if self._producers.get(client.producer_id) is client:
            del self._producers[client.producer_id]
        self._free_slot(client)
        self._close(client)
        if client.remote is not None:
            self._loop.call_later(self._config.client_absence_max, self._look_for, client.owner)

    def _close(self, client: AttachedClient) -> None:
        if client.pidfd != NO_PIDFD:
            self._loop.remove_reader(client.pidfd)
            os.close(client.pidfd)
        client.doorbell.close()

    def _look_for(self, owner: Owner) -> None:
        """A remote client has gone some time ago. Is anything of it back?"""
        if all(client.owner != owner for client in self.clients):
            self._on_death(owner)

    def _free_slot(self, client: AttachedClient) -> None:
        slot, client.slot = client.slot, NO_SLOT
        if slot == NO_SLOT:
            return
        if client.kind in WATCH_PAGES:
            self._supervisor.post_running(ms.RemoveClient(slot))
        self._tables.give_slot_back(slot)

    def close(self) -> None:
        """Let go of every descriptor; lanes and slots stay as they are for the next node."""
        if self._absence is not None:
            self._absence.cancel()
        for client in self.clients:
            self._close(client)
        self.clients.clear()
