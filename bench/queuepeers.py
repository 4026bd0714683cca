"""The interface that each measured work queue implements, and the count of its jobs.

A peer is a server that a run starts for itself, and a client in Python. It says why it cannot be
measured here, how it is set up, and what its answers outlive; doors to it go to other processes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np

from penstock.bench.ledger import Stamps, stamps_of

Level = Literal["os", "fsync"]
"""The meaning of an answer: written to the page cache, or on the device."""

QUEUE: Final = "jobs"
IDLE: Final = 0.02
"""Seconds that a worker waits for jobs before it looks whether all are done."""


@dataclass(frozen=True, slots=True)
class Score:
    """Shared by the workers of a run: how many jobs each has answered, and how many there
    are in all."""

    counts: Any
    total: Any

    @classmethod
    def of(cls, workers: int) -> Score:
        # Without locks: each count has one writer, and a word is read whole.
        context = get_context("spawn")
        return cls(context.RawArray(ctypes.c_uint64, workers), context.RawValue(ctypes.c_uint64))

    def done(self) -> int:
        return sum(self.counts)


class WorkTally:
    """One worker's part. It hands each value that it answers to `take`, and asks `is_over` after
    each batch and whenever it waited in vain."""

    def __init__(self, score: Score, index: int) -> None:
        self._score = score
        self._index = index
        self._values: list[bytes] = []
        self._stamps: list[Stamps] = []
        self.take: Callable[[bytes], None] = self._values.append
        self.is_warm_up = False
        """Over once this worker has had a job: the next ones are for those that had none."""
        self._last = 0.0
        self._over = 0.0

    def is_over(self) -> bool:
        """Whether all workers together have answered every job."""
        if self._values:
            self._last = time.monotonic()
            self._stamps.append(stamps_of(self._values))
            self._score.counts[self._index] += len(self._values)
            self._values.clear()
        if self.is_warm_up:
            if not self._score.counts[self._index]:
                return False
        elif self._score.done() < self._score.total.value:
            return False
        self._over = time.monotonic()
        return True

    def finished(self) -> float:
        """When (CLOCK_MONOTONIC) this worker's last answer was with the server: its last batch, and
        what it took after the end to know that. How long it waited for more does not count."""
        return self._last + (time.monotonic() - self._over)

    def drain(self) -> Stamps:
        """The stamps of what was answered since the last call."""
        found = np.concatenate(self._stamps) if self._stamps else np.empty(0, np.uint64)
        self._stamps.clear()
        return found


class QueueSender(Protocol):
    def send(self, values: Iterable[bytes]) -> None:
        """Put these into the queue, as many at a time as the client can; until the server has
        acknowledged each."""

    def close(self) -> None: ...


class QueueWorker(Protocol):
    def work(self, tally: WorkTally) -> None:
        """Take jobs and answer for each by itself until the tally is over, then until the server
        has all answers."""

    def receive(self, timeout: float) -> bytes | None:
        """One job, which nobody answers for; None: nothing within so many seconds."""

    def ack(self) -> None:
        """Answer for what `receive` has brought, until the server has the answer."""

    def close(self) -> None: ...


class QueueDoor(Protocol):
    """How the processes of a run reach a server. It is pickled."""

    def sender(self) -> QueueSender: ...

    def worker(self, prefetch: int) -> QueueWorker:
        """`prefetch`: jobs that it may have without an answer; 1: it takes one by one."""


@dataclass(frozen=True, slots=True)
class PortDoor:
    """A server at a port of this host, and its clients: of that port, and of a prefetch."""

    port: int
    senders: Callable[[int], QueueSender]
    workers: Callable[[int, int], QueueWorker]

    def sender(self) -> QueueSender:
        return self.senders(self.port)

    def worker(self, prefetch: int) -> QueueWorker:
        return self.workers(self.port, prefetch)


@dataclass(frozen=True, slots=True)
class Setup:
    """A server that is to be started: its folder, and what its answers are to outlive."""

    folder: Path
    level: Level
    kafka: Path | None = None
    """Where Kafka's jars are."""


@dataclass(frozen=True, slots=True)
class QueuePeer:
    """A row of the table.

    jobs: how many there are, as a share of those asked for. prefetch: jobs that a worker may have
    without an answer. sent, answered: what is true of a job once its sender, or its worker, has
    been answered. by_default: when a job of a dead worker goes to others, as its documentation has
    it. settings: what is not as it comes. kills: whether its redelivery is measured in this row.
    """

    key: str
    name: str
    client: str
    level: Level
    serve: Callable[[Setup], AbstractContextManager[QueueDoor]]
    missing: Callable[[Setup], str | None]
    versions: Callable[[Setup], dict[str, str]]
    jobs: float
    prefetch: int
    sent: str
    answered: str
    by_default: str
    settings: str
    kills: bool = True


def without(module: str, package: str) -> str | None:
    """Why a client cannot be used here; None: it can."""
    return None if find_spec(module) else f"its Python client is missing: pip install {package}"
