"""The demo on a cluster: the broker that leads a partition is killed half-way, and comes back.

Owns the brokers, and ends them whatever happens. A lookout and a pulse report the events and their
times. The pulse sends records one after the other to the partition whose leader dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.client.admin.admin import TopicConfig
from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.demo.directing import (
    TOPIC,
    DemoOutcome,
    DemoPlan,
    DemoProgress,
    Director,
    StopRequests,
)
from penstock.testing.cluster_monitor import Lookout, View
from penstock.testing.embedded_cluster import EmbeddedCluster
from penstock.testing.failover import Failover, failover
from penstock.testing.probe import Pulse

PULSE: Final = "pulse"
LOOK_TIMEOUT: Final = 20.0
LOOK_PAUSE: Final = 0.01
AWAY_FOR: Final = 1.0
"""Seconds that the killed broker stays away once the others go on."""
REPLICAS_MAX: Final = 3


@dataclass(slots=True)
class Killed:
    """The broker that was killed, and its way back. Times are seconds after its death."""

    broker: int
    at_record: int
    killed_at: float
    told: Failover | None = None
    """The events that followed, as last seen."""
    outage: float = 0.0
    """Seconds for which its partition acknowledged nothing."""
    restarted: float | None = None
    admitted: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.admitted is not None and self.told is not None and self.told.in_sync is not None


@dataclass(slots=True)
class ClusterOutcome(DemoOutcome):
    """Everything that was measured."""

    brokers: int = 0
    replicas: int = 0
    started_in: float = 0.0
    killed: Killed | None = None
    log_ends: dict[int, int] = field(default_factory=dict)
    """By broker: offsets of all flights in its logs."""

    @property
    def struck(self) -> Killed | None:
        return self.killed

    def complaints(self) -> list[str]:
        found = self.missteps()
        if self.replicas == self.brokers:
            found += [
                f"broker {broker} has {end:,} offsets of flights"
                for broker, end in self.log_ends.items()
                if end != self.produced["records"]
            ]
        if self.killed is not None and not self.killed.is_complete:
            found.append("the killed broker did not come back into sync")
        return found + self.log_findings


class ClusterStage(Director[ClusterOutcome]):
    """One run of the demo."""

    def __init__(
        self, plan: DemoPlan, stopping: StopRequests, show: Callable[[DemoProgress], None]
    ) -> None:
        replicas = min(plan.brokers, REPLICAS_MAX)
        outcome = ClusterOutcome(plan.partitions, brokers=plan.brokers, replicas=replicas)
        super().__init__(plan, stopping, show, outcome)

    def perform(self, stack: ExitStack, folder: Path) -> None:
        self._cluster = stack.enter_context(EmbeddedCluster(self._plan.brokers, folder=folder))
        self._outcome.started_in = self._cluster.started_in
        self._make_topics()
        nodes = self._cluster.nodes.values()
        self._lookout = stack.enter_context(
            Lookout([node.connect_tcp for node in nodes], [TOPIC, PULSE])
        )
        self._pulse = stack.enter_context(Pulse(self._cluster.connect, PULSE))
        self._hire(stack, self._cluster.url, "all")
        self._direct()
        self._pulse.stop()
        self._lookout.stop()
        self._take_stock()

    def _make_topics(self) -> None:
        replicas = self._outcome.replicas
        with self._cluster.connect(client_id="demo") as client, client.admin() as admin:
            for topic, partitions in ((TOPIC, self._plan.partitions), (PULSE, 1)):
                admin.create_topic(
                    topic, TopicConfig(partitions=partitions, replication_factor=replicas)
                )

    # --- while it runs ---
    def check_alive(self) -> None:
        away = self._outcome.killed.broker if self._outcome.killed is not None else None
        for number, node in self._cluster.nodes.items():
            if number != away and not node.is_running:
                raise PenstockError(f"broker {number} of the demo died:\n{node.log_tail()}")

    def strike(self) -> None:
        """Kills with -9 all processes of the broker that leads the pulse's partition."""
        victim = self._last_view().partitions[PULSE, 0].leader
        at_record, killed_at = self._progress.acknowledged, time.monotonic()
        self._cluster.nodes[victim].kill_all()
        self._outcome.killed = Killed(victim, at_record, killed_at)
        self._progress.note = f"broker {victim} killed with -9, all its processes"

    def _last_view(self) -> View:
        deadline = time.monotonic() + LOOK_TIMEOUT
        while time.monotonic() < deadline:
            if self._lookout.views and self._lookout.views[-1].partitions[PULSE, 0].leader >= 0:
                return self._lookout.views[-1]
            self.check_alive()
            time.sleep(LOOK_PAUSE)
        raise PenstockTimeout(f"nobody tells within {LOOK_TIMEOUT:g} s who leads {PULSE}-0")

    def watch(self) -> None:
        """Watches the other brokers, then restarts the victim and watches it too."""
        killed = self._outcome.killed
        assert killed is not None
        since, node = killed.killed_at, self._cluster.nodes[killed.broker]
        told = failover(self._lookout, self._pulse, (PULSE, 0), killed.broker, since)
        if told is None or told.led_again is None or told.acknowledged is None:
            return
        killed.told, now = told, time.monotonic() - since
        if killed.restarted is None:
            killed.outage = told.outage
            self._progress.note = f"broker {told.heir} leads after {told.led_again:.2f} s"
            if now > told.acknowledged + AWAY_FOR:
                node.launch()
                killed.restarted = now
                self._progress.note = f"broker {killed.broker} started again"
        elif killed.admitted is None:
            killed.admitted = now if node.is_ready() else None
        elif told.in_sync is not None:
            self._progress.note = f"every replica in sync {told.in_sync:.1f} s after the death"

    # --- afterwards ---
    def _take_stock(self) -> None:
        """Checks the files, once all brokers have stopped."""
        outcome = self._outcome
        for node in self._cluster.nodes.values():
            node.terminate()
        for number, node in self._cluster.nodes.items():
            status = node.stop()
            if status:
                outcome.log_findings.append(f"broker {number} ended with exit status {status}")
            ends = self._examine(node.data, f"broker {number}, ")
            outcome.log_ends[number] = sum(
                end for name, end in ends.items() if name.startswith(f"{TOPIC}-")
            )
