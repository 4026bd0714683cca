"""The demo on one node: a writer is killed half-way, and replaced.

Owns the node, and ends it whatever happens.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.client.admin.admin import Admin, TopicConfig, TopicDescription
from penstock.core.errors import PenstockError
from penstock.demo.directing import (
    TOPIC,
    DemoOutcome,
    DemoPlan,
    DemoProgress,
    Director,
    StopRequests,
)
from penstock.testing.embedded import EmbeddedNode


@dataclass(slots=True)
class Replacement:
    """The killed writer and the one that took its place."""

    writer: int
    pid: int
    at_record: int
    killed_at: float
    log_ends: dict[int, int]
    new_pid: int | None = None
    respawned: float | None = None
    appending: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.respawned is not None and self.appending is not None


@dataclass(slots=True)
class NodeOutcome(DemoOutcome):
    """Everything that was measured."""

    node_started_in: float = 0.0
    killed: Replacement | None = None
    duplicates_refused: int = 0
    log_end: int = 0

    @property
    def struck(self) -> Replacement | None:
        return self.killed

    def complaints(self) -> list[str]:
        found = self.missteps()
        if too_many := abs(self.log_end - self.produced["records"]):
            found.append(f"{too_many} offsets too many or too few in the logs")
        if self.killed is not None and not self.killed.is_complete:
            found.append("the killed writer was not replaced")
        return found + self.log_findings


class DemoRun(Director[NodeOutcome]):
    """One run of the demo."""

    def __init__(
        self, plan: DemoPlan, stopping: StopRequests, show: Callable[[DemoProgress], None]
    ) -> None:
        super().__init__(plan, stopping, show, NodeOutcome(plan.partitions))

    def perform(self, stack: ExitStack, folder: Path) -> None:
        self._node = stack.enter_context(EmbeddedNode(folder))
        self._outcome.node_started_in = self._node.started_in
        self._admin = stack.enter_context(Admin(folder / "attach.sock", client_id="demo"))
        self._admin.create_topic(TOPIC, TopicConfig(partitions=self._plan.partitions))
        self._hire(stack, self._node.url)
        self._direct()
        self._take_stock(folder)

    # --- while it runs ---
    def check_alive(self) -> None:
        if not self._node.is_running:
            raise PenstockError("the node of the demo died")

    def strike(self) -> None:
        """Kills with -9 the writer of partition 0, in the middle of its work."""
        topic = self._admin.describe_topic(TOPIC)
        number = topic.partitions[0].writer
        [writer] = [seat for seat in self._admin.describe_node().writers if seat.writer == number]
        os.kill(writer.pid, signal.SIGKILL)
        topic = self._admin.describe_topic(TOPIC)  # what the victim appended last is not the heir's
        ends = {part.partition: part.log_end for part in topic.partitions if part.writer == number}
        self._outcome.killed = Replacement(
            number, writer.pid, self._progress.acknowledged, time.monotonic(), ends
        )
        self._progress.note = f"writer {number} (pid {writer.pid}) killed with -9"

    def watch(self) -> None:
        """Looks whether there is a new process, and whether it appends."""
        killed = self._outcome.killed
        assert killed is not None
        since = time.monotonic() - killed.killed_at
        if killed.respawned is None:
            for seat in self._admin.describe_node().writers:
                if seat.writer == killed.writer and seat.pid not in (0, killed.pid):
                    killed.new_pid, killed.respawned = seat.pid, since
        if killed.respawned is not None and self._appends(killed):
            killed.appending = since
            self._progress.note = (
                f"writer {killed.writer} replaced by pid {killed.new_pid}, appending again after "
                f"{since * 1e3:.0f} ms"
            )

    def _appends(self, killed: Replacement) -> bool:
        partitions = self._admin.describe_topic(TOPIC).partitions
        own = [part for part in partitions if part.partition in killed.log_ends]
        if any(part.log_end > killed.log_ends[part.partition] for part in own):
            return True
        # Nothing may have been left for it to append.
        return bool(self._outcome.consumed) and all(part.status == "online" for part in own)

    # --- afterwards ---
    def _take_stock(self, folder: Path) -> None:
        """Counters while the node runs, then its files once it has stopped."""
        outcome = self._outcome
        topic: TopicDescription = self._admin.describe_topic(TOPIC)
        outcome.log_end = sum(part.log_end for part in topic.partitions)
        counters = [part.counters for part in topic.partitions]
        outcome.duplicates_refused = sum(counter["duplicates"] for counter in counters)
        self._admin.close()
        status = self._node.stop()
        if status:
            outcome.log_findings.append(f"the node ended with exit status {status}")
        self._examine(folder)
