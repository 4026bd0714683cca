"""What every demo's parent does: hears the producer and the consumer, and strikes half-way.

    starting --both ready--> running --producer done--> finishing --consumer done--> stopped
                               │ half acknowledged: `strike`, then `watch` until `is_over`

Owns the two children and what they told. What is struck, and what is judged of it, is the stages'.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.demo.children import Child

TOPIC: Final = "flights"
STALL_MAX: Final = 30.0
"""So long may nothing move before the demo gives up, in seconds."""
TICK: Final = 0.1
TICK_WHILE_WATCHED: Final = 0.002


class InterruptedDemoError(PenstockError):
    """A signal ended the demo before it was done."""


class Stopping(Protocol):
    """How the parent learns of signals."""

    @property
    def requested(self) -> int: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to show. `records` None: all flights. `brokers` 0: a node that is alone."""

    records: int | None = None
    partitions: int = 4
    kill: bool = True
    keep: bool = False
    brokers: int = 0


@dataclass(slots=True)
class Progress:
    """How far it is, for whoever shows it."""

    total: int = 0
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    note: str = ""


@dataclass(slots=True)
class Heard:
    """What producer and consumer told in the end."""

    partitions: int
    prepared_in: float = 0.0
    total_seconds: float = 0.0
    produced: dict[str, Any] = field(default_factory=dict)
    consumed: dict[str, Any] = field(default_factory=dict)

    def missteps(self) -> list[str]:
        """What is wrong with the records; empty when every promise was kept."""
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


class Director:
    """See the module. `show` is called whenever something moved."""

    def __init__(
        self, plan: Plan, stopping: Stopping, show: Callable[[Progress], None], heard: Heard
    ) -> None:
        self._plan = plan
        self._stopping = stopping
        self._show = show
        self._heard = heard
        self._progress = Progress()
        self._ready = 0
        self._moved_at = time.monotonic()

    # --- what each stage says ---
    def has_struck(self) -> bool:
        raise NotImplementedError

    def strike(self) -> None:
        """Half of the records are acknowledged."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether all that follows from it is seen."""
        raise NotImplementedError

    def watch(self) -> None:
        """Look, a few hundred times a second while it is not over."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raises `PenstockError` where something died that was not to."""
        raise NotImplementedError

    # --- while it runs ---
    def _hire(self, stack: ExitStack, url: str, *how: str) -> None:
        """The two children; `how` is what the producer is told beside the number of records."""
        limit = "all" if self._plan.records is None else str(self._plan.records)
        self._producer = Child("penstock.demo.producer", url, TOPIC, limit, *how)
        stack.callback(self._producer.end)
        self._consumer = Child("penstock.demo.consumer", url, TOPIC)
        stack.callback(self._consumer.end)

    def _direct(self) -> None:
        """Hear the children until the consumer is done and the strike is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ)
            selector.register(self._producer, selectors.EVENT_READ)
            selector.register(self._consumer, selectors.EVENT_READ)
            while not self._heard.consumed:
                waiting = self.has_struck() and not self.is_over()
                for key, _ in selector.select(TICK_WHILE_WATCHED if waiting else TICK):
                    if isinstance(key.fileobj, Child):
                        self._hear(key.fileobj)
                        if key.fileobj is self._producer and self._heard.produced:
                            selector.unregister(self._producer)
                if waiting:
                    self.watch()
                self._show(self._progress)
                self._check()
        self._await_end()

    def _await_end(self) -> None:
        """Everything may have gone another way while what was struck is still on its way back."""
        deadline = time.monotonic() + STALL_MAX
        while self.has_struck() and not self.is_over() and time.monotonic() < deadline:
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
                self._heard.produced = message
                self._consumer.tell(f"finish {message['records']}")
            else:
                self._heard.consumed = message

    def _child_ready(self, message: dict[str, Any]) -> None:
        if "records" in message:
            self._progress.total = message["records"]
            self._heard.prepared_in = message["seconds"]
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
        is_due = self._plan.kill and not self.has_struck()
        if is_due and 2 * progress.acknowledged >= progress.total > 0:
            self.strike()
