"""The parent process of every demo: it listens to the producer and the consumer, and strikes
half-way.

    starting --both ready--> running --producer done--> finishing --consumer done--> stopped
                                │ half acknowledged: `strike`, then `watch` until it is over

Owns the two children and their messages, the folder, which it removes whatever happens, and the
findings in its files. The stages own the strike and the judgement of it.
"""

from __future__ import annotations

import selectors
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.demo.children import Child
from penstock.logcheck import check_partition, find_partitions

TOPIC: Final = "flights"
STALL_MAX: Final = 30.0
"""So long may nothing move before the demo gives up, in seconds."""
TICK: Final = 0.1
TICK_WHILE_WATCHED: Final = 0.002


class InterruptedDemoError(PenstockError):
    """A signal ended the demo before it was done."""


class StopRequests(Protocol):
    """The source of signals for the parent."""

    @property
    def requested(self) -> int: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The plan of a demo. `records` None: all flights. `brokers` 0: a node that is alone."""

    records: int | None = None
    partitions: int = 4
    kill: bool = True
    keep: bool = False
    brokers: int = 0


@dataclass(slots=True)
class DemoProgress:
    """The progress of a demo, to be shown."""

    total: int = 0
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    note: str = ""


class Struck(Protocol):
    """The process that was killed, and its return."""

    @property
    def is_complete(self) -> bool: ...


@dataclass(slots=True)
class DemoOutcome:
    """The final reports of producer and consumer, and the findings in the files."""

    partitions: int
    prepared_in: float = 0.0
    total_seconds: float = 0.0
    produced: dict[str, Any] = field(default_factory=dict)
    consumed: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    data_bytes: int = 0
    log_findings: list[str] = field(default_factory=list)
    kept: str | None = None

    @property
    def struck(self) -> Struck | None:
        """None: not yet."""
        raise NotImplementedError

    def complaints(self) -> list[str]:
        """Lists the faults; empty when every promise was kept."""
        raise NotImplementedError

    def missteps(self) -> list[str]:
        """Lists the faults of records; empty when every promise was kept."""
        produced, consumed = self.produced, self.consumed
        wrong = [
            (produced["records"] - produced["acknowledged"], "records were not acknowledged"),
            (consumed["lost"], "records are lost"),
            (consumed["doubled"], "records came twice"),
            (consumed["foreign"], "records came that were never sent"),
            (consumed["out_of_order"], "records came out of the order of their key"),
            (consumed["moved"], "records of one key are in several partitions"),
            (int(consumed["checksum"] != produced["checksum"]), "checksum of all values differs"),
        ]
        return [f"{count} {text}" for count, text in wrong if count]


Told = TypeVar("Told", bound=DemoOutcome)


class Director(Generic[Told]):
    """Runs a demo with two children. `show` is called whenever something moved."""

    def __init__(
        self,
        plan: DemoPlan,
        stopping: StopRequests,
        show: Callable[[DemoProgress], None],
        outcome: Told,
    ) -> None:
        self._plan = plan
        self._stopping = stopping
        self._show = show
        self._outcome = outcome
        self._progress = DemoProgress()
        self._ready = 0
        self._moved_at = time.monotonic()

    # --- what each stage says ---
    def perform(self, stack: ExitStack, folder: Path) -> None:
        """Prepares the demo in that folder, starts the children, directs them, and checks the
        files."""
        raise NotImplementedError

    def strike(self) -> None:
        """Strikes: half of the records are acknowledged."""
        raise NotImplementedError

    def watch(self) -> None:
        """Looks, a few hundred times a second while it is not over."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raises `PenstockError` where something died that was not to."""
        raise NotImplementedError

    # --- all of it ---
    def run(self) -> Told:
        """Raises `PenstockError` when the show cannot go on; cleans up in any case."""
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with ExitStack() as stack:
            if self._plan.keep:
                self._outcome.kept = str(folder)
            else:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self.perform(stack, folder)
        self._outcome.total_seconds = time.monotonic() - begun
        return self._outcome

    def _examine(self, folder: Path, whose: str = "") -> dict[str, int]:
        """Checks all files there, whose node has stopped; returns the log ends of its
        partitions."""
        outcome, ends = self._outcome, {}
        outcome.data_bytes += sum(
            path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()
        )
        for partition in find_partitions(str(folder)):
            checked = check_partition(partition)
            ends[partition.name] = checked.log_end
            outcome.batches += checked.batches
            outcome.log_findings += [
                f"{whose}{partition.name} {finding.file}: {finding.message}"
                for finding in checked.errors
            ]
        return ends

    # --- while it runs ---
    @property
    def _has_struck(self) -> bool:
        return self._outcome.struck is not None

    @property
    def _is_over(self) -> bool:
        """Returns whether all that follows from it is seen."""
        return self._outcome.struck is not None and self._outcome.struck.is_complete

    def _hire(self, stack: ExitStack, url: str, *how: str) -> None:
        """Starts the two children; `how` are the producer's arguments beside the number of
        records."""
        limit = "all" if self._plan.records is None else str(self._plan.records)
        self._producer = Child("penstock.demo.producer", url, TOPIC, limit, *how)
        stack.callback(self._producer.end)
        self._consumer = Child("penstock.demo.consumer", url, TOPIC)
        stack.callback(self._consumer.end)

    def _direct(self) -> None:
        """Listens to the children until the consumer is done and the strike is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ)
            selector.register(self._producer, selectors.EVENT_READ)
            selector.register(self._consumer, selectors.EVENT_READ)
            while not self._outcome.consumed:
                waiting = self._has_struck and not self._is_over
                for key, _ in selector.select(TICK_WHILE_WATCHED if waiting else TICK):
                    if isinstance(key.fileobj, Child):
                        self._hear(key.fileobj)
                        if key.fileobj is self._producer and self._outcome.produced:
                            selector.unregister(self._producer)
                if waiting:
                    self.watch()
                self._show(self._progress)
                self._check()
        self._await_end()

    def _await_end(self) -> None:
        """Waits for the victim's return: all records may have gone another way before it."""
        deadline = time.monotonic() + STALL_MAX
        while self._has_struck and not self._is_over and time.monotonic() < deadline:
            self.watch()
            self._show(self._progress)
            self._check()
            time.sleep(TICK_WHILE_WATCHED)

    def _check(self) -> None:
        if self._stopping.requested:
            raise InterruptedDemoError("the demo was interrupted")
        self.check_alive()
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
        is_due = self._plan.kill and not self._has_struck
        if is_due and 2 * progress.acknowledged >= progress.total > 0:
            self.strike()
