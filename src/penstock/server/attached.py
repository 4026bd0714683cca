"""The processes that are attached: who they are, what they hold, and what their end means.

    attach --> attached --Bye, EOF--------> closed: its lanes are retired
                  |    --sent away--------> absent: its lanes are kept until it resumes or dies
                  +----pidfd, any state---> dead:   its lanes are retired

Death is the pidfd alone (rule 7): a forked child that holds the socket keeps nobody alive, and a
socket that ends says only that the client wanted it. After a node died, living producers of its
lanes begin as absent. Owns pidfds, doorbells, slots and producer ids. Speaks to no socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    ResourceLimitError,
    UnsupportedVersionError,
)
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.channel import Peer
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.liveness import open_pidfd
from penstock.server.config import NodeConfig
from penstock.server.datafolder import DataFolder
from penstock.server.lanes import Lane, LaneBook
from penstock.server.supervisor import Supervisor
from penstock.server.tables import Tables
from penstock.server.writerproc import Order

logger = logging.getLogger("penstock.node")

NO_SLOT = -1
KINDS = {lo.KIND_PRODUCER: "producer", lo.KIND_CONSUMER: "consumer", lo.KIND_ADMIN: "admin"}


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

    def __str__(self) -> str:
        who = f"{KINDS[self.kind]} {self.name!r}" if self.name else KINDS[self.kind]
        return f"{who} (pid {self.pid})"


class Attached:
    """All clients. Told by sessions and pidfds; tells writers about lanes and consumers."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        book: LaneBook,
        supervisor: Supervisor,
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._book = book
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self.clients: set[Client] = set()
        self._producers: dict[int, Client] = {}
        self._owners: dict[str, Client] = {}

    # --- the run before ---
    def adopt(self, lanes: Iterable[Lane]) -> None:
        """Take up lanes of the run before: their living producers are absent, others are dead."""
        for lane in lanes:
            self._book.adopt(lane)
            client = self._living_producer(lane)
            if client is None:
                lane.retired = True
            else:
                client.lanes[lane.writer] = lane
                self._owners[lane.name] = client

    def _living_producer(self, lane: Lane) -> Client | None:
        who = lane.identity
        known = self._producers.get(who.producer_id)
        if known is not None:
            return known if (known.pid, known.start_time) == (who.pid, who.start_time) else None
        if not self._book.is_of_this_boot(lane):
            return None
        try:
            pidfd = open_pidfd(who.pid, who.start_time)
        except ProcessLookupError:
            return None
        client = self._enter(lo.KIND_PRODUCER, who.pid, who.start_time, pidfd, "")
        client.producer_id = who.producer_id
        self._producers[who.producer_id] = client
        return client

    def orders_for(self, writer: int) -> Iterator[Order]:
        """Everything about lanes and consumers that a fresh writer must know."""
        for lane in self._book.lanes.values():
            if lane.writer == writer:
                owner = self._owners.get(lane.name)
                if lane.retired or owner is None:
                    yield ms.AddLane(lane.name, dead=True), None
                else:
                    yield ms.AddLane(lane.name, dead=False), owner.doorbell
        for client in self.clients:
            if client.kind == lo.KIND_CONSUMER and client.slot != NO_SLOT:
                yield ms.AddClient(client.slot), client.doorbell

    # --- attach ---
    def attach(self, peer: Peer, hello: ms.Hello, connection: Connection) -> Client:
        """Admit who said hello, or raise what refuses it."""
        if hello.version != ms.PROTOCOL_VERSION:
            raise UnsupportedVersionError(
                f"the client speaks version {hello.version} of the attach protocol, this node "
                f"{ms.PROTOCOL_VERSION}: use the same Penstock version on both sides"
            )
        if hello.kind not in KINDS:
            raise ConfigError(f"kind {hello.kind} is no kind of client: allowed are {KINDS}")
        attached = sum(1 for client in self.clients if client.connection is not None)
        if attached >= self._config.clients_max:
            raise ResourceLimitError(
                f"the node has {attached} clients, its bound clients_max: close some, or start the "
                "node with a larger one"
            )
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
        if client.kind == lo.KIND_CONSUMER:
            self._supervisor.post_running(ms.AddClient(client.slot), client.doorbell)
        return client

    def _equip(self, client: Client, resume: int | None) -> None:
        """Give a client its slot, its producer id, and the lanes that it had under that id."""
        if client.kind != lo.KIND_ADMIN and client.slot == NO_SLOT:
            client.slot = self._tables.take_slot(client.pid, client.start_time, client.kind)
        if client.kind == lo.KIND_PRODUCER and not client.producer_id:
            client.producer_id = resume or self._folder.next_producer_id()
            self._producers[client.producer_id] = client
            if resume is not None:
                self._take_back_lanes(client)

    def _take_back_lanes(self, client: Client) -> None:
        """Its socket had ended, so its lanes were being retired; now they are its lanes again. A
        second lane beside one that still holds frames would mix up their sequences (rule 5)."""
        for lane in self._book.lanes.values():
            if lane.identity.producer_id == client.producer_id:
                lane.retired = False
                client.lanes[lane.writer] = lane
                self._owners[lane.name] = client
                order = ms.AddLane(lane.name, dead=False)
                self._supervisor.post(lane.writer, order, client.doorbell)

    def _resumed(self, peer: Peer, hello: ms.Hello) -> Client | None:
        """The absent or stale client that comes back, when there is one."""
        if hello.resume is None:
            return None
        if hello.kind != lo.KIND_PRODUCER or not self._folder.may_be_ours(hello.resume):
            raise AttachRefusedError(
                f"producer id {hello.resume} was not given by this node: attach without `resume`"
            )
        client = self._producers.get(hello.resume)
        lanes = self._book.lanes.values()
        owners = {
            (lane.identity.pid, lane.identity.start_time)
            for lane in lanes
            if lane.identity.producer_id == hello.resume
        }
        if client is not None:
            owners.add((client.pid, client.start_time))
        if owners - {(peer.pid, hello.start_time)}:
            raise AttachRefusedError(
                f"producer id {hello.resume} belongs to pid {min(owners)[0]} and not to pid "
                f"{peer.pid}: attach without `resume`"
            )
        # A connection that is still open here is one that the client has given up.
        if client is not None and client.connection is not None:
            client.connection.hang_up()
            client.connection = None
        return client

    def _admitted(self, peer: Peer, hello: ms.Hello) -> Client:
        try:
            pidfd = open_pidfd(peer.pid, hello.start_time)
        except ProcessLookupError as error:
            raise AttachRefusedError(
                f"process {peer.pid} as the node sees it is not the one that called ({error}): the "
                "client runs in another pid namespace (a container), or said hello for somebody "
                "else. Connect by tcp:// instead, or share the pid namespace"
            ) from error
        return self._enter(hello.kind, peer.pid, hello.start_time, pidfd, hello.client_id[:100])

    def _enter(self, kind: int, pid: int, start_time: int, pidfd: int, name: str) -> Client:
        try:
            client = Client(kind, pid, start_time, pidfd, name)
        except BaseException:
            os.close(pidfd)
            raise
        self.clients.add(client)
        self._loop.add_reader(pidfd, self._died, client)
        return client

    # --- lanes ---
    def open_lane(self, client: Client, request: ms.OpenLane, writers: int) -> tuple[Lane, int]:
        """The client's lane to that writer, made if need be, and a descriptor of its memory."""
        if client.kind != lo.KIND_PRODUCER:
            raise ConfigError(f"a {KINDS[client.kind]} has no lanes: attach as a producer")
        if not 0 <= request.writer < writers:
            raise ConfigError(f"writer {request.writer} is outside 0..{writers - 1}")
        lane = client.lanes.get(request.writer)
        if lane is not None:
            return lane, self._book.open_memory(lane)
        lane, fd = self._book.make(
            request.writer, request.capacity, client.producer_id, client.pid, client.start_time
        )
        client.lanes[request.writer] = lane
        self._owners[lane.name] = client
        self._supervisor.post(lane.writer, ms.AddLane(lane.name, dead=False), client.doorbell)
        return lane, fd

    def lane_infos(self, client: Client) -> list[ms.LaneInfo]:
        return [ms.LaneInfo(lane.name, lane.writer) for lane in client.lanes.values()]

    def drained(self, report: ms.LaneDrained) -> None:
        """A writer found head at the tail of a lane. It counts when the lane is retired."""
        lane = self._book.lanes.get(report.name)
        if lane is None or not lane.retired:
            return
        left = self._book.bytes_left(lane)
        if left:  # the producer published once more after the writer had looked
            self._supervisor.post(lane.writer, ms.AddLane(lane.name, dead=True))
            return
        self._book.remove(lane)
        logger.debug("lane %s is drained and gone", lane.name)

    def dropped(self, report: ms.LaneDropped) -> None:
        """A lane held what no producer writes: it is gone, and its client is sent away."""
        lane = self._book.lanes.get(report.name)
        if lane is None:
            return
        left = self._book.bytes_left(lane)
        logger.error("lane %s is dropped with %d bytes in it: %s", lane.name, left, report.reason)
        self._book.remove(lane)
        client = self._owners.pop(lane.name, None)
        if client is None:
            return
        client.lanes.pop(lane.writer, None)
        if client.connection is not None:
            client.connection.refuse(
                "CorruptBatchError",
                f"the node dropped lane {lane.name} with {left} bytes that were not drained, "
                f"because its writer could not go on with it: {report.reason}",
            )
        self._end(client, "its lane was dropped")

    # --- the end of a client ---
    def closed(self, client: Client) -> None:
        """It said goodbye, or its socket ended."""
        self._end(client, "closed")

    def sent_away(self, client: Client) -> None:
        """The node hung up. The process may resume; until it does or dies, its lanes are kept."""
        client.connection = None
        if not client.lanes:
            self._end(client, "was sent away")
            return
        self._free_slot(client)

    def _died(self, client: Client) -> None:
        connection, client.connection = client.connection, None
        if connection is not None:
            connection.hang_up()
        self._end(client, "died")

    def _end(self, client: Client, how: str) -> None:
        if client not in self.clients:
            return
        client.connection = None
        logger.log(
            logging.INFO if client.lanes else logging.DEBUG,
            "%s %s%s", client, how, f", {len(client.lanes)} lanes to drain" if client.lanes else "",
        )  # fmt: skip
        for lane in client.lanes.values():
            lane.retired = True
            self._owners.pop(lane.name, None)
            self._supervisor.post(lane.writer, ms.RetireLane(lane.name))
        client.lanes.clear()
        self._leave(client)

    def _leave(self, client: Client) -> None:
        self.clients.discard(client)
        if self._producers.get(client.producer_id) is client:
            del self._producers[client.producer_id]
        self._free_slot(client)
        self._loop.remove_reader(client.pidfd)
        os.close(client.pidfd)
        client.doorbell.close()

    def _free_slot(self, client: Client) -> None:
        slot, client.slot = client.slot, NO_SLOT
        if slot == NO_SLOT:
            return
        if client.kind == lo.KIND_CONSUMER:
            self._supervisor.post_running(ms.RemoveClient(slot))
        self._tables.give_slot_back(slot)

    # --- the end of the node ---
    def forget_drained(self) -> None:
        """Unlink what is drained and whose producer is gone, after the writers have stopped."""
        for lane in list(self._book.lanes.values()):
            if lane.retired and not self._book.bytes_left(lane):
                self._book.remove(lane)

    @property
    def is_anybody_left(self) -> bool:
        """Whether someone would miss the tables: a client, or a lane that the next node drains."""
        return bool(self.clients or self._book.lanes)

    def close(self) -> None:
        """Let go of every descriptor; lanes and slots stay as they are for the next node."""
        for client in self.clients:
            self._loop.remove_reader(client.pidfd)
            os.close(client.pidfd)
            client.doorbell.close()
        self.clients.clear()
