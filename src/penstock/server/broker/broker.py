"""The node as a broker of its cluster: its registration, its partitions, and its replicator.

    quorum started ─► replicator listens ─► registered ─► current ─► unfenced: clients are admitted
         ▲                   │ it died
         └──── a new life ◄──┘ whose replicator starts once nothing of the lanes before is left

Changes of the image go to the topics, to the replicator, to the gateway and to the coordinator of
groups. Requests of the replicator go to the controller. The death of the replicator begins a new
life of the broker: its knowledge of others is lost, and no record of the logs is. Owns that order.
Decides nothing: the controller does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from penstock.cluster.controller import Image, Place
from penstock.core.errors import PenstockError
from penstock.ipc import clustering as cg
from penstock.ipc import messages as ms
from penstock.ipc.names import is_internal
from penstock.server.broker.access import SharedAccess
from penstock.server.broker.admin_requests import Describing
from penstock.server.broker.assignments import Assignments
from penstock.server.broker.leaderless import LeaderlessLogs
from penstock.server.broker.metadata_view import TopicsView, client_urls, health_of, leaders, living
from penstock.server.broker.offline_logs import OfflineLogs
from penstock.server.broker.topics import ClusterTopics
from penstock.server.config import NodeConfig
from penstock.server.coordinator.opening import TOPIC as COORDINATOR
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.partitions import Partitions
from penstock.server.process.fork_server import Start
from penstock.server.process.replicator import ReplicatorProcess
from penstock.server.quorum import Quorum
from penstock.server.quorum.controller_requests import Drain
from penstock.server.replicator import messages as rm
from penstock.server.security.access_store import Access

logger = logging.getLogger("penstock.cluster")

TOLD_EVERY: Final = 0.01
"""Seconds between two words to the gateway about the whole cluster."""
READY_POLL: Final = 0.02
READY_TOLD: Final = 5.0
"""Seconds between two log lines about what is waited for."""
NOBODY: Final = -1
CONTROL: Final = "control"
"""Requests between brokers: control batches of the coordinator."""


class BrokerServer:
    """The broker's side of a node; also a `CoordinatorCluster`. Set `topics_here` before
    `start`."""

    topics_here: ClusterTopics

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        partitions: Partitions,
        access: Access,
        *,
        tell: Callable[[ms.GatewayCluster], None],
        leads_coordinator: Callable[[bool, int], None],
        take_control: Callable[[bytes], Awaitable[bytes]],
        may_replicate: Callable[[], bool],
        failed: Callable[[PenstockError], None],
        start: Start,
    ) -> None:
        """`tell`: the gateway, how the cluster is. `leads_coordinator(leads, epoch)`: whether this
        broker leads the coordinator's partition. `take_control`: control batches of a coordinator
        elsewhere. `may_replicate`: whether nothing is left of the lanes of a replicator before.
        `failed`: this broker cannot go on. `start`: helper processes."""
        assert config.node_id is not None
        self.broker = config.node_id
        self._config = config
        self._folder = folder
        self._tell = tell
        self._leads_coordinator = leads_coordinator
        self._take_control = take_control
        self._loop = asyncio.get_running_loop()
        self.quorum = Quorum(config, folder, changed=self._changed, failed=failed)
        self.quorum.serve(CONTROL, self._serve_control)
        self.replicator = ReplicatorProcess(
            config, folder, lock_fd, start=start, may_start=may_replicate,
            on_begun=self._replicator_began, on_report=self._reported, on_end=self._lost_replicator,
        )  # fmt: skip
        self._assignments = Assignments(
            self.broker, folder.path, partitions, self.quorum, self._order
        )
        self._offline = OfflineLogs(self.broker, self.quorum)
        partitions.on_state = self._offline.noted
        self._leaderless = LeaderlessLogs(self.broker, self.quorum)
        self.access = SharedAccess(access, self.quorum, config.topic_timeout)
        self._describing = Describing(self.broker, self.quorum, config.topic_timeout)
        self._view = TopicsView()
        self.client_url = ""
        """Where clients find this broker."""
        self._replicates_at = ""
        """Where its replicator listens; empty while it does not."""
        self._registered_at = ""
        self._living: object = None
        """The brokers that the replicator knows."""
        self._said: tuple[object, ...] = ()
        """The last state that the gateway was told."""
        self._led_by: dict[int, int] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.is_ready = False
        """Whether clients were admitted in this run."""

    # --- the start ---
    async def start(self, client_url: str) -> None:
        """Join the cluster; returns when clients may be admitted. Raises what forbids it."""
        self.client_url = self._config.advertise or client_url
        telling = asyncio.create_task(self._tell_what_is_waited_for())
        try:
            await self.quorum.start()
            self.replicator.ensure()
            self._registered_at = await self.replicator.listening()
            self.quorum.tells_of_logs(self.topics_here.lost, lambda: self._offline.places)
            epoch = await self.quorum.register(
                (self.client_url, self._registered_at), was_clean=self._folder.lost_nothing
            )
            self._folder.losses_are_told()
            while self.waits_for():
                await asyncio.sleep(READY_POLL)
        finally:
            telling.cancel()
        self.is_ready = True
        await self._end_drain(epoch)
        logger.info(
            "broker %d of cluster %s is ready, with epoch %s", self.broker,
            self.quorum.cluster_id.hex(), self.quorum.broker_epoch,
        )  # fmt: skip

    async def _end_drain(self, epoch: int) -> None:
        """Ends the drain of a broker that is back from maintenance. A drain that was asked for
        after it registered with this epoch is for another maintenance, and stays."""
        since = self.quorum.image.drained_in(self.broker)
        if since is None or since >= epoch:
            return
        try:
            undo = Drain(self.broker, undo=True, before=epoch)
            await self.quorum.ask(undo, self._config.topic_timeout)
            logger.info("broker %d is back, and drained no more: it may lead", self.broker)
        except PenstockError as error:
            logger.warning(
                "broker %d stays drained (`penstock cluster drain %d --undo` ends that): %s",
                self.broker, self.broker, error,
            )  # fmt: skip

    def waits_for(self) -> str:
        """Returns what is missing before it may serve; empty when nothing is."""
        quorum = self.quorum
        if quorum.failure is not None:
            return f"nothing any more, its part in the quorum is over: {quorum.failure}"
        if quorum.leader is None:
            return "a controller: most brokers of controller_quorum must be up"
        if not self._replicates_at:
            return "its replicator"
        if quorum.broker_epoch is None:
            return f"broker {quorum.leader}, whose controller is active, to register it"
        if not quorum.is_current:
            return f"the controller's log up to its registration ({quorum.applied} entries so far)"
        if not (quorum.cluster_id and quorum.cluster_secret):
            return "the cluster's id"
        if quorum.is_fenced:
            return "the controller to hear from it"
        return "" if self.topics_here.is_settled else "its topics to be as the controller says"

    async def _tell_what_is_waited_for(self) -> None:
        while True:
            await asyncio.sleep(READY_TOLD)
            logger.info("broker %d waits for %s", self.broker, self.waits_for())

    # --- what the image says ---
    def _changed(self, image: Image, places: set[Place] | None) -> None:
        """The quorum's word, for this life of the broker."""
        self._tell_coordinator(image)
        self.topics_here.heard(image)
        self.access.heard(image)
        self._offline.heard(image, places)
        self._leaderless.heard(image, places)
        self._tell_replicator(image, places)
        if self._telling is None:
            self._telling = self._loop.call_later(TOLD_EVERY, self._tell_gateway)

    def _tell_coordinator(self, image: Image) -> None:
        topic_id = image.ids.get(COORDINATOR)
        it = image.partitions.get((topic_id, 0)) if topic_id is not None else None
        if it is not None:
            self._leads_coordinator(it.leader == self.broker, it.leader_epoch)

    def _tell_replicator(self, image: Image, places: Iterable[Place] | None) -> None:
        epoch = self.quorum.broker_epoch
        if epoch is None or not self._replicates_at:
            return
        said = (epoch, living(image))
        if said != self._living:
            self._living = said
            self.replicator.tell(rm.LivingBrokers(self.quorum.cluster_id, self.broker, *said))
        self._assignments.heard(image, places)

    def _tell_gateway(self) -> None:
        self._telling = None
        quorum, image = self.quorum, self.quorum.image
        if not quorum.is_current or not quorum.cluster_secret:
            return
        found = leaders(image, self._view.records(image))
        self._led_by = dict(found)
        said = (client_urls(image), found, self._coordinator(image))
        if said != self._said:
            self._said = said
            # How far the controller's log is: clients compare what two brokers say.
            self._tell(
                ms.GatewayCluster(
                    quorum.cluster_id, quorum.cluster_secret, quorum.applied, self.broker, *said
                )
            )

    @staticmethod
    def _coordinator(image: Image) -> int:
        topic_id = image.ids.get(COORDINATOR)
        it = image.partitions.get((topic_id, 0)) if topic_id is not None else None
        return NOBODY if it is None or it.leader is None else it.leader

    def forget(self, page: int) -> None:
        """No replica of that partition is here any more, if one was."""
        self._assignments.forget(page)

    # --- the replicator ---
    def _order(self, order: rm.Order) -> None:
        if self._replicates_at:
            self.replicator.tell(order)

    def _reported(self, report: rm.Listens | rm.ChangeIsr | rm.Leaderless | rm.Lives) -> None:
        match report:
            case rm.Listens():
                self._listens(report.url)
            case rm.ChangeIsr():
                self._assignments.change_isr(report)
            case rm.Leaderless():
                self._leaderless.told((report.topic_id, report.partition), report.end)

    def _listens(self, url: str) -> None:
        self._replicates_at = url
        if self._registered_at and url != self._registered_at:
            self._registered_at = url
            self.quorum.renew()  # with another place
            self._renewing = self._loop.create_task(self._register_again(url))
        elif self.quorum.is_current:
            self._tell_replicator(self.quorum.image, None)

    async def _register_again(self, url: str) -> None:
        try:
            await self.quorum.register((self.client_url, url), was_clean=True)
        except PenstockError as error:  # heartbeats go on trying
            logger.error("broker %d is not registered with %s yet: %s", self.broker, url, error)

    def _lost_replicator(self) -> None:
        """It is dead: what it had said to others does not count any more."""
        self._replicates_at = ""
        self.quorum.renew()

    def _replicator_began(self) -> None:
        """A replicator runs that knows nothing; it is told all of it when it listens."""
        self._living = None
        self._assignments.begin()
        self._leaderless.begin()

    # --- the coordinator's cluster ---
    def topics(self) -> Iterable[ms.TopicInfo]:
        records = self._view.records(self.quorum.image)
        return [record.info for record in records if not is_internal(record.name)]

    def leader_of(self, page: int) -> int | None:
        return self._led_by.get(page)

    async def coordinator_epoch(self) -> int:
        return await self.quorum.coordinator_epoch(self._config.coordinator_timeout)

    async def send_control(self, broker: int, request: bytes, timeout: float) -> bytes:
        if broker == self.broker:
            return await self._take_control(request)
        return await self.quorum.request(broker, CONTROL, request, timeout)

    async def _serve_control(self, _broker: int, request: bytes) -> bytes:
        return await self._take_control(request)

    # --- requests ---
    async def answer(self, request: cg.Request, sees: Callable[[str], bool]) -> ms.NodeMessage:
        return await self._describing.answer(request, sees)

    def described(self) -> dict[str, Any]:
        """Returns the broker's part of a description of the node."""
        cluster = {
            "node_id": self.broker,
            "broker_epoch": self.quorum.broker_epoch or 0,
            "controller": NOBODY if self.quorum.leader is None else self.quorum.leader,
            "fenced": int(self.quorum.is_fenced),
            "applied": self.quorum.applied,
            **health_of(self.quorum.image, self.broker),
        }
        counts = {name: n for name, n in self.replicator.counts().items() if name != "pid"}
        return {
            "cluster": cluster,
            "replicator": counts,
            "lags": self.replicator.lives.lags,
            "controller": self.quorum.decided,
        }

    # --- the end ---
    async def leave(self) -> None:
        """Let others lead what this broker leads, in time."""
        if not self.is_ready:
            return
        timeout = self._config.drain_timeout
        if await self.quorum.leave(timeout):
            logger.info("broker %d leads nothing any more", self.broker)
        else:
            why = f"it was not given within {timeout:g} s (drain_timeout)"
            if self.quorum.is_hopeless:
                why = "most of controller_quorum are gone"
            logger.warning(
                "broker %d stops without leave of the controller: %s; others lead once it is "
                "missed", self.broker, why,
            )  # fmt: skip

    async def stop(self) -> None:
        """No replication any more, and no word to anybody."""
        await self.replicator.stop()
        self._assignments.close()
        await self.quorum.close()

    async def close(self) -> None:
        """Let go of everything."""
        for handle in (self._telling, self._renewing):
            if handle is not None:
                handle.cancel()
        self.access.close()
        self._offline.close()
        self._leaderless.close()
        self._assignments.close()
        self.replicator.close()
        await self.quorum.close()
