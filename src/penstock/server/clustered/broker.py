"""The node as a broker of its cluster: registered, told what it leads, its replicator at work.

    quorum started ─► replicator listens ─► registered ─► current ─► unfenced: clients are admitted
         ▲                   │ it died
         └──── a new life ◄──┘ once nothing of its lanes is left

What the image says goes to the topics, to the replicator and to the gateway; what the replicator
asks goes to the controller. The death of the replicator is a new life of the broker, since what it
knew of others is lost; so is nothing of what the logs have. Owns that order. Decides nothing: the
controller does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.cluster.controller import Image, Place
from penstock.core.errors import PenstockError
from penstock.ipc import messages as ms
from penstock.server.clustered.assignments import Assignments
from penstock.server.clustered.clustertopics import ClusterTopics
from penstock.server.clustered.describing import Describing
from penstock.server.clustered.view import TopicsView, client_urls, leaders, living
from penstock.server.config import NodeConfig
from penstock.server.datafolder import DataFolder
from penstock.server.partitions import Partitions
from penstock.server.quorum import Quorum
from penstock.server.replicator import messages as rm
from penstock.server.replicatorproc import REPLICATOR_COMMAND, ReplicatorProcess

logger = logging.getLogger("penstock.cluster")

TOLD_EVERY: Final = 0.02
"""Seconds between two words to the gateway and the replicator about the whole cluster."""
READY_POLL: Final = 0.05
READY_TOLD: Final = 5.0
"""Seconds between two log lines about what is waited for."""
NOBODY: Final = -1


class ClusterBroker:
    """See the module. `topics` is set before `start`."""

    topics: ClusterTopics

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        partitions: Partitions,
        *,
        tell: Callable[[ms.GatewayCluster], None],
        may_replicate: Callable[[], bool],
        on_leaders: Callable[[], None],
        failed: Callable[[PenstockError], None],
        command: Sequence[str] = REPLICATOR_COMMAND,
    ) -> None:
        """`tell`: the gateway, how the cluster is. `may_replicate`: whether nothing is left of the
        lanes of a replicator before. `on_leaders`: somebody may lead something else now."""
        assert config.node_id is not None
        self.number = config.node_id
        self._config = config
        self._folder = folder
        self._tell = tell
        self._on_leaders = on_leaders
        self._loop = asyncio.get_running_loop()
        self.quorum = Quorum(config, folder, changed=self._changed, failed=failed)
        self.replicator = ReplicatorProcess(
            config, folder, lock_fd, command,
            on_report=self._reported, on_death=self._replicator_died, may_start=may_replicate,
        )  # fmt: skip
        self._assignments = Assignments(
            self.number, folder.path, partitions, self.quorum, self.replicator.post
        )
        self._describing = Describing(self.number, self.quorum, config.topic_timeout)
        self._view = TopicsView()
        self._version = 0
        self._told: tuple[object, ...] = ()
        self._leads: dict[int, int] = {}
        self._coordinator = NOBODY
        self._telling: asyncio.TimerHandle | None = None
        self._is_ready = False

    # --- the start ---
    async def start(self, client_url: str) -> None:
        """Join the cluster; returns when clients may be admitted. Raises what forbids it."""
        await self.quorum.start()
        self.replicator.ensure()
        replication_url = await self.replicator.listening()
        watch = asyncio.create_task(self._tell_what_is_waited_for())
        try:
            await self.quorum.register(
                (self._config.advertise or client_url, replication_url),
                was_clean=self._folder.lost_nothing,
            )
            self._folder.losses_are_told()
            while self.not_ready():
                await asyncio.sleep(READY_POLL)
        finally:
            watch.cancel()
        self._is_ready = True
        logger.info(
            "broker %d of cluster %s is ready, with epoch %s",
            self.number, self.quorum.cluster_id.hex(), self.quorum.broker_epoch,
        )  # fmt: skip

    @property
    def is_ready(self) -> bool:
        """Whether clients were admitted in this run."""
        return self._is_ready

    def not_ready(self) -> str:
        """What it waits for; empty when it may serve."""
        quorum = self.quorum
        if quorum.failure is not None:
            return f"its part in the quorum is over: {quorum.failure}"
        if quorum.leader is None:
            return "most brokers of controller_quorum to be up and to elect a controller"
        if quorum.broker_epoch is None:
            return f"broker {quorum.leader}, whose controller is active, to register it"
        if not quorum.is_current:
            return f"the controller's log up to its registration ({quorum.applied} entries so far)"
        if quorum.is_fenced:
            return "the controller to unfence it"
        if not (quorum.cluster_id and quorum.cluster_secret):
            return "the cluster's id"
        if not self.topics.is_settled:
            return "the topics that the controller says it has"
        return ""

    async def _tell_what_is_waited_for(self) -> None:
        while True:
            await asyncio.sleep(READY_TOLD)
            logger.info("broker %d waits for %s", self.number, self.not_ready() or "nothing")

    # --- what the image says ---
    def _changed(self, image: Image, places: set[Place] | None) -> None:
        """The quorum's word, for this life of the broker."""
        self.topics.heard(image)
        if self._telling is None:
            self._telling = self._loop.call_later(TOLD_EVERY, self._tell_all)
        if places is None or not self._assignments.is_told:
            self._tell_replicator(image)
        else:
            self._assignments.heard(image, places)

    def _tell_replicator(self, image: Image) -> None:
        """Who there is, and every partition: for a replicator that knows nothing yet."""
        epoch = self.quorum.broker_epoch
        if epoch is None or not self.replicator.is_up:
            return
        self._tell_brokers(image, epoch)
        self._assignments.heard(image, None)

    def _tell_brokers(self, image: Image, epoch: int) -> None:
        self.replicator.post(rm.Cluster(self.quorum.cluster_id, self.number, epoch, living(image)))

    def _tell_all(self) -> None:
        """The gateway, and the replicator, about what is of all brokers."""
        self._telling = None
        quorum, image = self.quorum, self.quorum.image
        if not quorum.is_current or not quorum.cluster_secret:
            return
        records = self._view.records(image)
        found = leaders(image, records)
        self._leads = dict(found)
        coordinator = self._led_coordinator(image)
        said = (client_urls(image), found, coordinator)
        if said != self._told:
            self._told = said
            self._version += 1
            self._tell(
                ms.GatewayCluster(
                    quorum.cluster_id, quorum.cluster_secret, self._version, self.number, *said
                )
            )
        self._on_leaders()
