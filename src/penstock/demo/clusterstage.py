"""The demo on a cluster: the broker that leads a partition is killed half-way, and comes back.

Owns the brokers and their folders, and gives all of it back whatever happens. When what happened is
told by a lookout and by a pulse: records that are sent one after the other to the partition whose
leader dies.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.admin import TopicConfig
from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.demo.directing import TOPIC, Director, Heard, Plan, Progress, Stopping
from penstock.embeddedcluster import EmbeddedCluster
from penstock.logcheck import check_partition, find_partitions
from penstock.lookout import Lookout, View
from penstock.pulse import Pulse

PULSE: Final = "pulse"
LOOK_TIMEOUT: Final = 20.0
AWAY_FOR: Final = 1.0
"""Seconds that the killed broker stays away once the others go on."""
REPLICAS_MAX: Final = 3


@dataclass(slots=True)
class Failover:
    """What followed when broker `victim` was killed; times are seconds after that, None where it
    was not seen."""

    victim: int
    at_record: int
    killed_at: float
    led: int
    """Partitions of the flights that it led."""
    was_controller: bool
    fenced: float | None = None
    heir: int | None = None
    led_again: float | None = None
    acknowledged: float | None = None
    outage: float = 0.0
    """How long its partition acknowledged nothing."""
    controller: int | None = None
    decided: float | None = None
    """When another controller was active, if the victim's was."""
    restarted: float | None = None
    admitted: float | None = None
    in_sync: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.in_sync is not None


@dataclass(slots=True)
class ClusterOutcome(Heard):
    """Everything that was measured."""

    brokers: int = 0
    replicas: int = 0
    started_in: float = 0.0
    failover: Failover | None = None
    log_ends: dict[int, int] = field(default_factory=dict)
    """By broker: offsets of all flights in its logs."""
    batches: int = 0
    data_bytes: int = 0
    log_findings: list[str] = field(default_factory=list)
    kept: str | None = None

    def complaints(self) -> list[str]:
        """What is wrong; empty when every promise was kept."""
        found = self.missteps()
        if self.replicas == self.brokers:
            found += [
                f"broker {broker} has {end:,} offsets of flights"
                for broker, end in self.log_ends.items()
                if end != self.produced["records"]
            ]
        if self.failover is not None and not self.failover.is_complete:
            found.append("the killed broker did not come back into sync")
        return found + self.log_findings


class ClusterStage(Director):
    """One run of the demo."""

    def __init__(self, plan: Plan, stopping: Stopping, show: Callable[[Progress], None]) -> None:
        replicas = min(plan.brokers, REPLICAS_MAX)
        self._outcome = ClusterOutcome(plan.partitions, brokers=plan.brokers, replicas=replicas)
        self._awaited = False
        super().__init__(plan, stopping, show, self._outcome)

    def run(self) -> ClusterOutcome:
        """Raises `PenstockError` when the show cannot go on; cleans up in any case."""
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with ExitStack() as stack:
            if self._plan.keep:
                self._outcome.kept = str(folder)
            else:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
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
        self._outcome.total_seconds = time.monotonic() - begun
        return self._outcome

    def _make_topics(self) -> None:
        replicas = self._outcome.replicas
        with self._cluster.connect(client_id="demo") as client, client.admin() as admin:
            for topic, partitions in ((TOPIC, self._plan.partitions), (PULSE, 1)):
                admin.create_topic(
                    topic, TopicConfig(partitions=partitions, replication_factor=replicas)
                )

    # --- while it runs ---
    def has_struck(self) -> bool:
        return self._outcome.failover is not None

    def is_over(self) -> bool:
        return self._outcome.failover is not None and self._outcome.failover.is_complete

    def check_alive(self) -> None:
        away = self._outcome.failover.victim if self._outcome.failover is not None else None
        for number, node in self._cluster.nodes.items():
            if number != away and not node.is_running:
                raise PenstockError(f"broker {number} of the demo died:\n{node.log_tail()}")

    def strike(self) -> None:
        """kill -9 all processes of the broker that leads the pulse's partition."""
        view = self._last_view()
        victim = view.partitions[PULSE, 0].leader
        led = [name for name in view.leads(victim) if name[0] == TOPIC]
        at_record = self._progress.acknowledged
        killed_at = time.monotonic()
        self._cluster.nodes[victim].kill_all()
        self._outcome.failover = Failover(
            victim, at_record, killed_at, len(led), view.controller == victim
        )
        self._progress.note = f"broker {victim}, leader of {len(led) + 1} partitions, killed -9"

    def _last_view(self) -> View:
        deadline = time.monotonic() + LOOK_TIMEOUT
        while time.monotonic() < deadline:
            if self._lookout.views and self._lookout.views[-1].partitions[PULSE, 0].leader >= 0:
                return self._lookout.views[-1]
            self._check()
            time.sleep(0.01)
        raise PenstockTimeout(f"nobody tells within {LOOK_TIMEOUT:g} s who leads {PULSE}-0")

    def watch(self) -> None:
        """See what the others do; then have the victim come back, and see that too."""
        told = self._outcome.failover
        assert told is not None
        since, victim = told.killed_at, told.victim
        first, node = self._lookout.first, self._cluster.nodes[victim]
        if told.acknowledged is None:
            self._watch_others(told)
        elif told.restarted is None:
            if time.monotonic() - since > told.acknowledged + AWAY_FOR:
                told.outage = self._pulse.outage(since)
                told.restarted = time.monotonic() - since
                node.launch()
                self._progress.note = f"broker {victim} started again"
        elif told.admitted is None:
            if node.is_ready():
                told.admitted = time.monotonic() - since
        elif told.in_sync is None:
            came = first(since + told.admitted, lambda view: not view.behind())
            if came is not None:
                told.in_sync = told.admitted + came
                self._progress.note = (
                    f"broker {victim} has all records again {told.in_sync:.1f} s after its death"
                )

    def _watch_others(self, told: Failover) -> None:
        since, victim, first = told.killed_at, told.victim, self._lookout.first
        beat = self._pulse.first_after(since + 0.05)
        told.fenced = first(since, lambda view: view.brokers.get(victim) == "fenced")
        told.led_again = first(
            since, lambda view: view.partitions[PULSE, 0].leader not in (-1, victim)
        )
        if told.was_controller:
            told.decided = first(since, lambda view: view.controller not in (-1, victim))
            told.controller = self._lookout.views[-1].controller
        if beat is not None and told.led_again is not None:
            told.heir = self._lookout.views[-1].partitions[PULSE, 0].leader
            told.acknowledged = beat - since
            self._progress.note = f"broker {told.heir} leads, {told.acknowledged:.2f} s after that"

    # --- afterwards ---
    def _take_stock(self) -> None:
        """The files, once all brokers have stopped."""
        outcome = self._outcome
        for node in self._cluster.nodes.values():
            node.terminate()
        for number, node in self._cluster.nodes.items():
            status = node.stop()
            if status:
                outcome.log_findings.append(f"broker {number} ended with exit status {status}")
            outcome.data_bytes += sum(
                path.stat().st_blocks * 512 for path in node.data.rglob("*") if path.is_file()
            )
            outcome.log_ends[number] = 0
            for partition in find_partitions(str(node.data)):
                checked = check_partition(partition)
                outcome.batches += checked.batches
                if partition.name.startswith(f"{TOPIC}-"):
                    outcome.log_ends[number] += checked.log_end
                outcome.log_findings += [
                    f"broker {number}, {partition.name} {finding.file}: {finding.message}"
                    for finding in checked.errors
                ]
