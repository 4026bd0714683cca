"""The node: joins folder, writers, topics, clients and the attach socket into a running whole.

    lock --> take over --> writers start --> lanes drained --> admitting --> stop --> writers
             (startup)                       (startup)         clients              drain, close

Owns that order and the routing of requests and reports. The parts know nothing of each other but
their arguments from here. All of them live on one event loop, which nothing may hold up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cluster.access import Kind, names_in
from penstock.core.errors import ConfigError, NotConnectedError, PenstockError
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups, sharing
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc.channel import FDS_MAX, PeerCredentials
from penstock.ipc.hostslots import DiskSlot, FullPages
from penstock.ipc.liveness import raise_descriptor_limit
from penstock.ipc.machine import check_machine
from penstock.ipc.paths import remember_folder, socket_in, socket_path
from penstock.server.cleaner.orders import CleaningOrders
from penstock.server.config import NodeConfig
from penstock.server.coordinator.clock import CoordinatorClock
from penstock.server.coordinator.coordinator import Coordinator
from penstock.server.node.attach_server import Answer, AttachServer, AttachSession, Reply
from penstock.server.node.attached_client import OF_THE_NODE, AttachedClient
from penstock.server.node.client_registry import ClientRegistry
from penstock.server.node.disk_guard import DiskGuard, space_of
from penstock.server.node.host_check import remove_ipc_warning
from penstock.server.node.lane_grants import Grants
from penstock.server.node.live_settings import LiveSettings
from penstock.server.node.namespace_bytes import NamespaceBytes
from penstock.server.node.namespace_use import NamespaceUse, uses
from penstock.server.node.operator_requests import OperatorRequests
from penstock.server.node.partitions import Partitions
from penstock.server.node.startup import Ground, acquire_lock, settle, take_over
from penstock.server.node.topic_catalog import check_not_internal
from penstock.server.node.topics import TopicRequests
from penstock.server.process.cleaner import CLEANER_COMMAND, CleanerProcess
from penstock.server.process.fork_server import Start, spawn
from penstock.server.process.gateway import GATEWAY_COMMAND, GatewayProcess
from penstock.server.process.writer import Order
from penstock.server.process.writers import WRITER_COMMAND, Supervisor
from penstock.server.security.access_requests import Accessing
from penstock.server.security.access_store import shares_of
from penstock.server.security.authorized_keys import fingerprints
from penstock.server.security.authorizer import Guard
from penstock.server.security.permits import EVERYTHING, RemotePermits
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.server.broker.broker import BrokerServer

logger = logging.getLogger("penstock.node")

WELCOME_LANES_MAX = FDS_MAX - 3
"""Lanes that a Welcome has room for; a resuming producer asks for further ones by `OpenLane`."""


class Node:
    """One node. `run` serves until `stop` is called and returns after a clean end."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        writer_command: Sequence[str] = WRITER_COMMAND,
        cleaner_command: Sequence[str] = CLEANER_COMMAND,
        gateway_command: Sequence[str] = GATEWAY_COMMAND,
        start: Start = spawn,
    ) -> None:
        self.config = config
        self._writer_command = writer_command
        self._cleaner_command = cleaner_command
        self._gateway_command = gateway_command
        self._start_process = start
        self._broker: BrokerServer | None = None
        """None: this node is alone."""
        self._failure: PenstockError | OSError | None = None
        self._stop = asyncio.Event()
        self._stopping = self._is_admitting = False
        self._started_at = time.time()
        self.clock = CoordinatorClock()

    def stop(self) -> None:
        """Ask for the end: drain, sync, close. From the loop's thread, any number of times."""
        self._stop.set()

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`. `ready` is called when clients are admitted.

        Raises `DataFolderError` and its like when the node cannot start.
        """
        check_machine()
        raise_descriptor_limit()
        if warning := remove_ipc_warning():
            logger.warning("%s", warning)
        if (lock := await acquire_lock(self.config, self._stop)) is None:
            return
        self._settings = LiveSettings(self.config)
        self._server = AttachServer(self, self.config.hello_timeout)
        try:
            self.config = self._settings.read()
            self._server.listen(os.fspath(socket_in(self.config.data_folder)))
            if self.config.name is not None:
                self._server.listen(os.fspath(socket_path(self.config.name)))
                remember_folder(self.config.name, self.config.data_folder)
            ground = take_over(self.config, lock)
            try:
                await self._serve(ground, ready)
            finally:
                ground.close()
        finally:
            self._server.close()
            lock.close()

    async def _serve(self, ground: Ground, ready: Callable[[], None] | None) -> None:
        self._build(ground)
        self._guard.start()  # before any writer drains
        self._bytes.start()
        try:
            left = [leftover.lane for leftover in ground.leftovers]
            self._attached.adopt(left, ground.book.boot_hash)
            for writer in self._partitions.writers_needed().union(lane.writer for lane in left):
                self._supervisor.ensure(writer)
            try:
                await settle(ground, self._partitions, self.config.drain_timeout, self._stop)
                if not self._stop.is_set():
                    await self._admit(ready)
            except (PenstockError, OSError) as error:
                self._failed(error)  # what has begun ends as any run does, and leaves as little
            await self._stop.wait()
            await self._end()
        finally:
            self._server.close()
            self._coordinator.close()
            if self._broker is not None:
                await self._broker.close()
            await self._topics.close()
            await self._accessing.close()
            await self._settings.close()
            self._attached.close()
            self._gateway.close()
            self._cleaner.close()
            self._guard.close()
            await self._bytes.close()
            self._supervisor.close()

    def _build(self, ground: Ground) -> None:
        config = self.config
        self._ground = ground
        self._guard = DiskGuard(config, DiskSlot(ground.tables.state))
        self._supervisor = Supervisor(
            config,
            ground.folder,
            ground.tables,
            lock_fd=ground.lock.fd,
            orders_for=self._orders_for,
            on_report=self._reported,
            command=self._writer_command,
            start=self._start_process,
        )
        self._partitions = Partitions(
            ground.folder, ground.writers, self._supervisor.post,
            replicated=config.node_id is not None,
        )  # fmt: skip
        self._topics = self._make_topics(ground)
        self._doorman = Guard(ground.access, self._topics.name_of)
        self._accessing = Accessing(
            ground.access,
            self._broker.access if self._broker is not None else None,
            self._uses,
        )
        self._cleaning = CleaningOrders(
            config, self._topics, self._partitions, self._supervisor.post,
            lambda page: ground.tables.page(page).status == lo.STATUS_FOLLOWING,
        )  # fmt: skip
        self._grants = Grants(
            ground.book,
            self._supervisor,
            lambda lane: self._coordinator.lane_gone(lane),
            lambda client: self._use.namespace_of(client),
        )
        self._cleaner = CleanerProcess(
            config,
            ground.folder,
            ground.lock.fd,
            lambda: self._topics.are_cleaned,
            self._cleaner_command,
            self._start_process,
        )
        self._attached = ClientRegistry(
            config,
            ground.folder,
            ground.tables,
            self._grants,
            self._supervisor,
            lambda process: self._coordinator.process_died(process),
            lambda: self._gateway.pid,
            lambda: self._broker.replicator.pid if self._broker is not None else 0,
        )
        self._operating = OperatorRequests(
            self._attached, self._settings, config.node_id, self._sent_away
        )
        self._settings.applied = self._settings_changed
        self._limit_namespaces(ground)
        self._gateway = GatewayProcess(
            config,
            ground.folder,
            ground.lock.fd,
            self._gateway_command,
            self._start_process,
            on_listening=ground.folder.listens_at,
        )
        self._coordinator = Coordinator(
            config,
            ground.folder,
            ground.tables,
            ground.writers,
            self._topics,
            self._grants,
            self._supervisor,
            self.clock,
            topic_made=self._cleaner.ensure,
            cluster=self._broker,
        )

    def _settings_changed(self, names: frozenset[str]) -> None:
        """Renews the objects that were made from the old values. Code that reads settings at each
        use has the new ones."""
        if {"disk_warn", "disk_stop"} & names:
            self._guard.look()
        if {"cleaner_interval", "cleaner_rate"} & names:
            self._cleaner.renew()
        if "offsets_retention" in names:
            self._coordinator.limits_changed()
        if "lanes_max" in names:
            self._share_out()

    def _share_out(self) -> None:
        _, disk_bytes = space_of(self.config.data_folder)
        self._ground.access.share(shares_of(self.config, disk_bytes))

    def _limit_namespaces(self, ground: Ground) -> None:
        config, access, tables = self.config, ground.access, ground.tables
        self._share_out()
        self._bytes = NamespaceBytes(
            config.data_folder, self._partitions.live, tables.page, access,
            FullPages(tables.state),
        )  # fmt: skip
        self._use = NamespaceUse(
            config, ground.writers, access,
            lambda: self._attached.clients, lambda: self._grants.lanes,
        )  # fmt: skip

    def _uses(self) -> list[ac.LimitUse]:
        self._ground.access.look(time.monotonic())
        names = self._coordinator.names()
        topics = {info.name: info for info in self._topics.infos}

        return uses(
            self._ground.access.limits,
            {
                "topics_max": lambda of: len(names_in(of, topics)),
                "partitions_max": lambda of: sum(
                    len(topics[one].pages) for one in names_in(of, topics)
                ),
                "groups_max": lambda of: names and len(names_in(of, names[0])),
                "transactional_ids_max": lambda of: names and len(names_in(of, names[1])),
                "connections_max": self._use.connections,
                "disk_bytes_max": self._bytes.used,
                "shm_bytes_max": self._use.shm_bytes,
            },
        )

    def _make_topics(self, ground: Ground) -> TopicRequests:
        """Those of a node that is alone; of a broker, with its part in the cluster."""
        config, partitions = self.config, self._partitions

        def changed() -> None:
            self._coordinator.topics_changed()
            if self._is_admitting and not self._stopping:
                self._cleaner.ensure()  # other brokers make topics, too

        if config.node_id is None:
            return TopicRequests(
                config, ground.folder, ground.tables, ground.catalog, partitions,
                lambda: ground.access.limits, changed,
            )  # fmt: skip
        from penstock.server.broker.broker import BrokerServer
        from penstock.server.broker.topics import ClusterTopics

        self._broker = broker = BrokerServer(
            config,
            ground.folder,
            ground.lock.fd,
            partitions,
            ground.access,
            tell=lambda cluster: self._gateway.tell(cluster),
            leads_coordinator=lambda leads, epoch: self._coordinator.role_changed(leads, epoch),
            take_control=lambda request: self._coordinator.take_control(request),
            may_replicate=lambda: not self._grants.has_replicators(),
            failed=self._failed,
            start=self._start_process,
        )
        broker.topics_here = ClusterTopics(
            config, ground.folder, ground.tables, ground.catalog, partitions,
            lambda: ground.access.limits, changed, quorum=broker.quorum, let_go=broker.forget,
        )  # fmt: skip
        return broker.topics_here

    def _failed(self, error: PenstockError | OSError) -> None:
        """Ends the node after a fatal error. Its service manager starts it again; brokers take
        over."""
        self._failure = error
        self._stop.set()

    async def _admit(self, ready: Callable[[], None] | None) -> None:
        self._server.admit()
        self._gateway.ensure()
        if self._broker is not None and not await self._joined(self._broker):
            return
        self._is_admitting = True
        self._cleaner.ensure()
        self._coordinator.begin()
        if self._gateway.is_needed:
            await self._gateway.listening()
        logger.info(
            "node %s serves %s: pid %d, %d topics, up to %d writers",
            self.config.name or "without a name", self.config.data_folder, os.getpid(),
            self._topics.count, self._ground.writers,
            extra={"pid": os.getpid(), "folder": self.config.data_folder},
        )  # fmt: skip
        if ready is not None:
            ready()

    async def _joined(self, broker: BrokerServer) -> bool:
        """Whether this broker is one of its cluster; False: it was stopped before."""
        joining = asyncio.create_task(broker.start(await self._gateway.listening()))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                return False
            await joining
        finally:
            for task in (joining, stopping):
                task.cancel()
            await asyncio.gather(joining, stopping, return_exceptions=True)
        return True

    async def _end(self) -> None:
        """The clean end: no new clients, lanes drained, logs synced and closed, the mark set."""
        if self._broker is not None:
            await self._broker.leave()
        logger.info("stopping: writers drain and close their logs")
        self._stopping = True
        self._server.stop_accepting()
        await self._gateway.stop()
        await self._coordinator.stop(self.config.drain_timeout)
        await self._cleaner.stop()
        if self._broker is not None:
            await self._broker.stop()
        ground = self._ground
        are_open = self._partitions.all_are_open() and self._are_online()
        all_stopped = await self._supervisor.stop(self.config.drain_timeout)
        self._server.close()
        self._grants.forget_drained()
        if all_stopped and are_open and self._are_online():
            ground.folder.mark_clean()
        else:
            logger.warning("not every log was closed clean: the next start recovers them")
        if self._attached.are_gone and not self._grants.count:
            ground.unlink()
        logger.info("stopped, %d lanes left to the next node", self._grants.count)
        if self._failure is not None:
            raise self._failure

    def _are_online(self) -> bool:
        """Whether no partition's writer has given up on its log."""
        page = self._ground.tables.page
        return all(page(index).status != lo.STATUS_OFFLINE for index in self._partitions.live)

    # --- writers ---
    def _orders_for(self, writer: int) -> Iterator[Order]:
        """Partitions before lanes: frames for a page that is not open are refused for good."""
        for order in self._partitions.orders_for(writer):
            yield order, None
        for order in self._cleaning.orders_for(writer):
            yield order, None
        yield from self._attached.orders_for(writer)
        yield from self._coordinator.orders_for(writer)

    def _reported(self, writer: int, report: ms.WriterReport) -> None:
        match report:
            case _ if isinstance(report, ms.PartitionReport):
                self._partitions.reported(report)
            case ms.LogCleaned():
                self._cleaning.reported(report)
            case ms.LaneDrained():
                self._grants.drained(report)
            case ms.LaneDropped():
                self._attached.dropped(report)

    # --- clients ---
    def hello(self, session: AttachSession, peer: PeerCredentials, hello: ms.Hello) -> Reply:
        """Admit a client: what it is, what it may map, and its doorbell."""
        self._check_running()
        if hello.kind != lo.KIND_REPLICATOR:
            self._check_ready()
        who = hello.remote
        permits = EVERYTHING if who is None else RemotePermits(self._doorman, who.principal)
        if who is not None and hello.kind == lo.KIND_PRODUCER:
            self._use.check_producer(who.principal, hello.resume)
        client = self._attached.attach(peer, hello, session)
        session.client = client
        client.permits = permits
        ground = self._ground
        lanes = [ms.LaneInfo(lane.name, lane.writer) for lane in client.lanes.values()]
        del lanes[WELCOME_LANES_MAX:]
        bells = [self._supervisor.seat(lane.writer).doorbell.fileno() for lane in lanes]
        welcome = ms.Welcome(
            version=ms.PROTOCOL_VERSION,
            node_uuid=ground.folder.uuid,
            boot_id=ground.folder.record.boot_id,
            data_folder=ground.folder.path,
            slot=client.slot,
            writers=ground.writers,
            lane_capacity=self.config.lane_capacity,
            producer_id=client.producer_id,
            lanes=lanes,
            remote=self._broker.client_url if self._broker is not None else "",
        )
        tables = ground.tables
        return Reply(
            welcome, [tables.state_fd, tables.clients_fd, client.doorbell.fileno(), *bells]
        )

    def request(self, session: AttachSession, message: ms.ClientMessage) -> Answer:
        """Answer at once, or by a coroutine where writers or the device are waited for."""
        self._check_running()
        client = session.client
        assert isinstance(client, AttachedClient)
        client.permits.check(message)
        if client.kind not in OF_THE_NODE:
            self._doorman.allowed(str(client.permits), message)
        match message:
            case ms.OpenLane():
                if client.remote is not None:
                    return self._open_lane_after(client, message)
                return self._open_lane(client, message)
            case ms.FindTopic():
                if client.kind == lo.KIND_PRODUCER:
                    check_not_internal(message.name)
                return self._topics.find(message.name)
            case ms.ListTopics():
                return Reply(self._topics.listed(message, partial(client.permits.sees, Kind.topic)))
            case ms.CreateTopic():
                return self._then_clean(self._topics.create(message))
            case ms.AlterTopic():
                return self._then_clean(self._topics.alter(message))
            case ms.DeleteTopic():
                return self._topics.delete(message.name)
            case ms.TrimPartition():
                return self._cleaning.trim(message)
            case ms.SwapSegments():
                return self._cleaning.swap(message)
            case ms.FindFloor():
                return self._coordinator.floor_of(message)
            case ms.DescribeNode():
                return Reply(self._describe())
            case _ if isinstance(message, (co.Request, sharing.Request)):
                return self._coordinator.answer(client, message)
            case ac.ListAccess():
                return Reply(self._accessing.listed(message))
            case ac.AddAccess() | ac.RemoveAccess() | ac.SetQuota() | ac.SetLimits():
                return self._accessing.change(message, str(client.permits))
            case _ if isinstance(message, cg.Request):
                return self._of_cluster(client, message)
            case _ if isinstance(message, op.Request):
                return self._operating.answer(client, message)
            case _ if isinstance(message, lookups.Request):
                raise ConfigError(
                    f"{type(message).__name__} is for clients on other hosts, whose gateway "
                    "answers it: files and shared memory are at hand here"
                )
            case _:
                raise AssertionError(f"{type(message).__name__} is no request")

    async def _then_clean(self, work: Coroutine[Any, Any, ms.TopicFound]) -> ms.TopicFound:
        """Runs a change of topics, then starts the cleaner if a topic needs it now."""
        done = await work
        if not self._stopping:
            self._cleaner.ensure()
        return done

    def ended(self, session: AttachSession, *, goodbye: bool) -> None:
        client = session.client
        assert isinstance(client, AttachedClient)
        if client.connection is session:
            self._coordinator.client_ended(client, goodbye=goodbye)
            if goodbye:
                self._attached.closed(client)
            else:
                self._attached.hung_up(client)

    def _sent_away(self, client: AttachedClient) -> None:
        self._coordinator.client_ended(client, goodbye=False)
        self._attached.hung_up(client)

    async def _open_lane_after(self, client: AttachedClient, request: ms.OpenLane) -> Reply:
        """For a producer that may have been here by another connection before."""
        await self._grants.drained_before(client, request.writer, self.config.topic_timeout)
        self._check_running()
        if client.connection is None:
            raise NotConnectedError(f"{client} has gone before its lane was opened")
        return self._open_lane(client, request)

    def _open_lane(self, client: AttachedClient, request: ms.OpenLane) -> Reply:
        lane, fd = self._grants.open(client, request, self._ground.writers)
        bell = self._supervisor.ensure(lane.writer).doorbell
        return Reply(ms.LaneOpened(lane.name, lane.writer), [fd, bell.fileno()], given=[fd])

    def _of_cluster(self, client: AttachedClient, request: cg.Request) -> Answer:
        if self._broker is None:
            raise ConfigError(
                "this node is alone, and of no cluster: `penstock serve --node-id` starts a broker"
            )
        return self._broker.answer(request, partial(client.permits.sees, Kind.topic))

    def _check_ready(self) -> None:
        if self._broker is not None and not self._broker.is_ready:
            raise NotConnectedError(
                f"broker {self._broker.broker} is not ready, it waits for "
                f"{self._broker.waits_for()}: connect again later"
            )

    def _check_running(self) -> None:
        if self._stopping:
            raise NotConnectedError("this node is stopping: connect again when it is back")

    def _describe(self) -> ms.NodeDescription:
        self._ground.access.reload()  # the files as they are now: the caller compares brokers
        owners = [self._partitions.writer_of(page) for page in self._partitions.live]
        lanes = self._ground.book.lanes.values()
        writers = [
            ms.WriterInfo(
                writer=index,
                pid=seat.process.pid if seat.process else 0,
                generation=seat.process.generation if seat.process else 0,
                restarts=seat.restarts,
                partitions=owners.count(index),
                lanes=sum(lane.writer == index for lane in lanes),
            )
            for index, seat in sorted(self._supervisor.seats.items())
        ]
        return ms.NodeDescription(
            pid=os.getpid(),
            node_uuid=self._ground.folder.uuid,
            data_folder=self._ground.folder.path,
            started_at=self._started_at,
            writers=writers,
            topics=self._topics.count,
            clients=self._attached.count,
            lanes=len(lanes),
            partitions=sum(len(topic.pages) for topic in self._topics.infos),
            coordinator=self._coordinator.counts(),
            coordinator_seconds=self._coordinator.seconds.numbers(),
            access=self._doorman.counts(),
            versions={
                "penstock": __version__,
                "python": sys.version.split()[0],
                "protocol": str(ms.PROTOCOL_VERSION),
                "layout": str(lo.LAYOUT_VERSION),
            },
            settings=asdict(self.config),
            listen=self._gateway.url,
            clock=self._ground.folder.clock.counts(),
            gateway=self._gateway.counts(),
            metrics=self._gateway.metrics,
            keys=fingerprints(self.config, self._ground.access.keys),
            attach={**self._server.counts(), "kicked": self._operating.kicked},
            **(self._broker.described() if self._broker is not None else {}),
        )
