"""How a life of the coordinator's machines begins: its log, its lanes, its epoch, fence and replay.

    alone:                                  epoch from node.json ───┬─► fence ──► replay
    cluster: the writer leads, as told ──► epoch from the quorum ───┘   (committed)

In a cluster the producer id is of the topic, which all brokers know, so that the log itself tells
the epochs of their coordinators apart. Owns the mailbox, and which journal is the last one. Knows
no clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.cluster.groups import GroupLimits, GroupMachine
from penstock.cluster.shares import ShareGroups, TransactedJobs
from penstock.cluster.transactions import TransactionLimits, TransactionMachine
from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.server.config import NodeConfig
from penstock.server.coordinator.brokers import CoordinatorCluster
from penstock.server.coordinator.committed import LEADING, Tenure
from penstock.server.coordinator.decision_log import Journal
from penstock.server.coordinator.epoch import Machines
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.coordinator.replay import fence, replay
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.lane_grants import Grants
from penstock.server.node.tables import Tables
from penstock.server.process.writer import Order
from penstock.server.process.writers import Supervisor

logger = logging.getLogger("penstock.coordinator")

TOPIC: Final = "__coordinator"
SETTINGS: Final = ms.TopicSettings(
    durability="interval", cleanup="compact", segment_bytes=8 << 20, flush_interval=1.0
)
"""Compaction takes closed segments only, and a start replays what is left and the open one."""
CLUSTER_SETTINGS: Final = replace(SETTINGS, durability="fsync")
"""Committed means synced on every replica in sync: so it outlives a power cut of all brokers."""
LOOK_FIRST: Final = 0.005
LOOK_LAST: Final = 0.1
"""Seconds between looks whether the writer leads the log's partition, as the cluster has it."""
LEADS_WITHIN: Final = 10.0


class OpenedLog(NamedTuple):
    machines: Machines
    journal: Journal
    mailbox: Mailbox


class CoordinatorOpening:
    """`broken`: a journal's end. `woken`: the mailbox was looked at. `leads_in`: the leader epoch
    in which this broker is to lead the log's partition."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        writers: int,
        grants: Grants,
        supervisor: Supervisor,
        cluster: CoordinatorCluster | None,
        *,
        broken: Callable[[PenstockError], None],
        woken: Callable[[], None],
        leads_in: Callable[[], int | None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._writers = writers
        self._grants = grants
        self._supervisor = supervisor
        self._cluster = cluster
        self._broken = broken
        self._woken = woken
        self._leads_in = leads_in
        self.journal: Journal | None = None
        """Of the life that serves, or of the one that is being loaded."""
        self.mailbox: Mailbox | None = None

    def machines(self) -> Machines:
        """Fresh ones."""
        groups = GroupMachine(self.group_limits())
        limits = TransactionLimits(stage_timeout=self._config.stage_timeout)
        shares = ShareGroups(random.uniform)
        return Machines(groups, TransactionMachine(groups, TransactedJobs(shares), limits), shares)

    def group_limits(self) -> GroupLimits:
        """As they are now."""
        return GroupLimits(
            offsets_retention=self._config.offsets_retention,
            decision_bytes=self._config.batch_bytes_max // 2,
        )

    async def open(self, topic: ms.TopicInfo) -> OpenedLog:
        """Opens a new epoch: appends the fence, and replays the log below it."""
        begun = time.monotonic()
        state = self._tables.page(topic.pages[0])
        if self._cluster is None:
            tenure, producer_id = None, self._folder.coordinator_id
            epoch = self._folder.next_coordinator_epoch()
        else:
            await self._until_led(state)
            tenure, producer_id = Tenure(state), producer_id_of(topic.topic_id)
            epoch = await self._cluster.coordinator_epoch()
        if self.mailbox is None:
            self.mailbox = self.make_mailbox(
                producer_id, self._look, self._lost, lambda: self._is_waited
            )
        if self.mailbox.committed is not None:
            self.mailbox.committed.watch(topic.pages[0])
        journal = Journal(self.mailbox, topic, state, producer_id, epoch, self._broken, tenure)
        self.journal = journal
        end = await fence(journal, self._folder.record.boot_id, os.getpid())
        machines = self.machines()
        place = f"{self._folder.path}/{topic.topic_id.hex()}-0"
        count = await replay(place, state, end, machines.replay)
        journal.check()
        logger.info(
            "the coordinator serves in epoch %d: %d records replayed up to offset %d in %.3f s",
            epoch, count, end, time.monotonic() - begun, extra={"epoch": epoch, "records": count},
        )  # fmt: skip
        return OpenedLog(machines, journal, self.mailbox)

    async def _until_led(self, state: StatePage) -> None:
        """Waits until the writer leads in the epoch that the cluster told."""
        delay, until = LOOK_FIRST, time.monotonic() + LEADS_WITHIN
        while state.status not in LEADING or state.leader_epoch != self._leads_in():
            if time.monotonic() > until:
                raise PenstockTimeout(
                    f"{TOPIC}-0 is {lo.STATUS_NAMES.get(state.status, state.status)} in leader "
                    f"epoch {state.leader_epoch} on this broker, which is to lead it in epoch "
                    f"{self._leads_in()}, after {LEADS_WITHIN:g} s"
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, LOOK_LAST)

    def make_mailbox(
        self,
        producer_id: int,
        woken: Callable[[], None],
        lost: Callable[[str], None],
        is_waited: Callable[[], bool],
    ) -> Mailbox:
        return Mailbox(
            self._grants,
            self._supervisor,
            self._writers,
            producer_id,
            woken=woken,
            lost=lost,
            is_waited=is_waited,
            replicated=None if self._cluster is None else self._tables,
        )

    # --- the mailbox ---
    def _look(self) -> None:
        if self.journal is not None:
            self.journal.look()
        self._woken()

    def _lost(self, why: str) -> None:
        if self.journal is not None:
            self.journal.fail(f"a lane of the coordinator was dropped: {why}")

    @property
    def _is_waited(self) -> bool:
        return self.journal is not None and self.journal.is_waited

    def orders(self) -> Iterator[Order]:
        """Yields the orders that a new writer needs."""
        if self.mailbox is not None and self.mailbox.committed is not None:
            yield from self.mailbox.committed.orders()

    # --- the end ---
    def abort(self) -> None:
        """Another broker leads the log, or this one in another epoch."""
        if self.journal is not None:
            self.journal.fail("its partition has another leader or leader epoch", elsewhere=True)
        if self.mailbox is not None and self.mailbox.committed is not None:
            self.mailbox.committed.watch_no_more()

    def close(self, *, retire: bool) -> None:
        """Lets go of the lanes, as `Mailbox.close`."""
        if self.mailbox is not None:
            self.mailbox.close(retire=retire)


def producer_id_of(topic_id: bytes) -> int:
    """Returns the producer id of a cluster's coordinators, each of which has its own epoch.

    It has the form of a node's (`lo.is_coordinators`), but comes from the topic's id, which all
    brokers know."""
    return int.from_bytes(topic_id[:3], "big") << lo.PRODUCER_COUNTER_BITS
