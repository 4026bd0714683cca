"""The demo's parent: starts the processes, kills a writer, and gathers what is to be judged.

    starting --both ready--> running --producer done--> finishing --consumer done--> stopped
                               │ half acknowledged: kill -9 a writer, time its replacement

Owns the processes and the folder, and gives both back whatever happens.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.admin import Admin, TopicConfig, TopicDescription
from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.demo.children import Child
from penstock.embedded import EmbeddedNode
from penstock.logcheck import check_partition, find_partitions

TOPIC: Final = "flights"
STALL_MAX: Final = 30.0
"""So long may nothing move before the demo gives up, in seconds."""
TICK: Final = 0.1
TICK_WHILE_REPLACED: Final = 0.002


class InterruptedDemoError(PenstockError):
    """A signal ended the demo before it was done."""


class Stopping(Protocol):
    """How the parent learns of signals."""

    @property
    def requested(self) -> int: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to show. `records` None: all flights."""

    records: int | None = None
    partitions: int = 4
    kill: bool = True
    keep: bool = False


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
class Progress:
    """How far it is, for whoever shows it."""

    total: int = 0
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    note: str = ""


@dataclass(slots=True)
class Outcome:
    """Everything that was measured."""

    partitions: int
    node_started_in: float = 0.0
    prepared_in: float = 0.0
    total_seconds: float = 0.0
    produced: dict[str, Any] = field(default_factory=dict)
    consumed: dict[str, Any] = field(default_factory=dict)
    killed: Replacement | None = None
    duplicates_refused: int = 0
    log_end: int = 0
    batches: int = 0
    data_bytes: int = 0
    log_findings: list[str] = field(default_factory=list)
    kept: str | None = None

    def complaints(self) -> list[str]:
        """What is wrong; empty when every promise was kept."""
        produced, consumed = self.produced, self.consumed
        wrong = [
            (produced["records"] - produced["acknowledged"], "records were not acknowledged"),
            (consumed["lost"], "records are lost"),
            (consumed["doubled"], "records came twice"),
            (consumed["foreign"], "records came that were never sent"),
            (consumed["out_of_order"], "records came out of the order of their key"),
            (consumed["moved"], "records of one key are in several partitions"),
            (int(consumed["checksum"] != produced["checksum"]), "checksum of all values differs"),
            (abs(self.log_end - produced["records"]), "offsets too many or too few in the logs"),
        ]
        found = [f"{count} {text}" for count, text in wrong if count]
        if self.killed is not None and not self.killed.is_complete:
            found.append("the killed writer was not replaced")
        return found + self.log_findings


class Stage:
    """One run of the demo. `show` is called whenever something moved."""

    def __init__(self, plan: Plan, stopping: Stopping, show: Callable[[Progress], None]) -> None:
        self._plan = plan
        self._stopping = stopping
        self._show = show
        self._progress = Progress()
        self._outcome = Outcome(plan.partitions)
        self._ready = 0
        self._moved_at = time.monotonic()

    def run(self) -> Outcome:
        """Raises `PenstockError` when the show cannot go on; cleans up in any case."""
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with ExitStack() as stack:
            if self._plan.keep:
                self._outcome.kept = str(folder)
            else:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._node = stack.enter_context(EmbeddedNode(folder))
            self._outcome.node_started_in = self._node.started_in
            self._admin = stack.enter_context(Admin(folder / "attach.sock", client_id="demo"))
            self._admin.create_topic(TOPIC, TopicConfig(partitions=self._plan.partitions))
            limit = [] if self._plan.records is None else [str(self._plan.records)]
            self._producer = Child("penstock.demo.producer", self._node.url, TOPIC, *limit)
            stack.callback(self._producer.end)
            self._consumer = Child("penstock.demo.consumer", self._node.url, TOPIC)
            stack.callback(self._consumer.end)
            self._direct()
            self._take_stock(folder)
        self._outcome.total_seconds = time.monotonic() - begun
        return self._outcome

    # --- while it runs ---
    def _direct(self) -> None:
        """Hear the children until the consumer is done."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ)
            selector.register(self._producer, selectors.EVENT_READ)
            selector.register(self._consumer, selectors.EVENT_READ)
            while not self._outcome.consumed:
                replaced = self._outcome.killed
                waiting = replaced is not None and not replaced.is_complete
                for key, _ in selector.select(TICK_WHILE_REPLACED if waiting else TICK):
                    if isinstance(key.fileobj, Child):
                        self._hear(key.fileobj)
                        if key.fileobj is self._producer and self._outcome.produced:
                            selector.unregister(self._producer)
                if waiting:
                    self._watch_replacement()
                self._show(self._progress)
                self._check()
        self._await_replacement()

    def _check(self) -> None:
        if self._stopping.requested:
            raise InterruptedDemoError("the demo was interrupted")
        if not self._node.is_running:
            raise PenstockError("the node of the demo died")
        if time.monotonic() - self._moved_at > STALL_MAX:
            progress = self._progress
            raise PenstockTimeout(
                f"nothing moved for {STALL_MAX:g} s: {progress.acknowledged} of {progress.total} "
                f"records are acknowledged, {progress.received} were received"
            )

    def _hear(self, child: Child) -> None:
        for message in child.messages():
            event = message.pop("event")
            if event == "ready":
                self._child_ready(message)
            elif event == "progress":
                self._advance(message)
            elif child is self._producer:
                self._outcome.produced = message
                self._consumer.tell(f"finish {message['records']}")
            else:
                self._outcome.consumed = message

    def _child_ready(self, message: dict[str, Any]) -> None:
        if "records" in message:
            self._progress.total = message["records"]
            self._outcome.prepared_in = message["seconds"]
        self._ready += 1
        self._moved_at = time.monotonic()
        if self._ready == 2:
            self._producer.tell("go")

    def _advance(self, message: dict[str, int]) -> None:
        progress = self._progress
        before = (progress.sent, progress.acknowledged, progress.received)
        progress.sent = message.get("sent", progress.sent)
        progress.acknowledged = message.get("acknowledged", progress.acknowledged)
        progress.received = message.get("received", progress.received)
        if before != (progress.sent, progress.acknowledged, progress.received):
            self._moved_at = time.monotonic()
        is_due = self._plan.kill and self._outcome.killed is None
        if is_due and 2 * progress.acknowledged >= progress.total > 0:
            self._kill()

    def _kill(self) -> None:
        """kill -9 the writer of partition 0, in the middle of whatever it is doing."""
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

    def _watch_replacement(self) -> None:
        """See whether there is a new process, and whether it appends."""
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

    def _await_replacement(self) -> None:
        """The new writer may still be starting when everything went to the others."""
        killed = self._outcome.killed
        deadline = time.monotonic() + STALL_MAX
        while killed is not None and not killed.is_complete and time.monotonic() < deadline:
            self._watch_replacement()
            self._check()
            time.sleep(TICK_WHILE_REPLACED)

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
        outcome.data_bytes = sum(
            path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()
        )
        for partition in find_partitions(str(folder)):
            checked = check_partition(partition)
            outcome.batches += checked.batches
            outcome.log_findings += [
                f"{partition.name} {finding.file}: {finding.message}" for finding in checked.errors
            ]
