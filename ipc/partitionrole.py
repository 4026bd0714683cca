"""The interface of a partition's role in a writer process.

Owns the interface of a role and the words it shares with its writer. The roles are `alone` and
`replicated`, upon `logrole`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.core.log import AppendResult, SyncJob, Writeback
from penstock.core.swapping import Prepared
from penstock.ipc.freed import Freed
from penstock.ipc.lane import Frame
from penstock.ipc.messages import TopicSettings

TICK: Final = 0.5
"""Seconds between looks at the clock for rolls and syncs."""
RESTORE_EVERY: Final = 0.05
"""Seconds between two steps of making lost indexes again, one partition of a writer at a time."""


class PartitionRole(Protocol):
    """A partition in a writer process, in any role."""

    page: int
    name: str

    @property
    def leader_epoch(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    @property
    def offline(self) -> str:
        """Why it takes nothing any more; empty while it does."""

    @property
    def tick_every(self) -> float:
        """Seconds within which `tick` wants to be called."""

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        """Append and publish. Raises a retriable `StorageError` with nothing consumed."""

    def replicate(self, frames: Sequence[Frame], now_us: int) -> list[AppendResult]:
        """Do what frames of a replication lane say, in their order, and publish. One answer for
        each, with the log's end as its base offset; those without one are to be tried again."""

    def writeback(self) -> Writeback | None:
        """Returns a range for the flusher to let the kernel write, where enough was appended."""

    def count(self, batches: Sequence[memoryview], results: list[AppendResult]) -> None:
        """Add what `append` did to the page's counters; nobody waits for these."""

    def tick(self, now: float, now_us: int) -> SyncJob | None:
        """Time-driven work (roll by age, flush interval); a job for the flusher, if one is due."""

    def lacks_indexes(self, now: float) -> bool:
        """Whether `restore_indexes` has something to do now."""

    def restore_indexes(self, now: float) -> None:
        """A bounded step of making lost indexes of closed segments again."""

    def finish_sync(self, job: SyncJob) -> bool:
        """Publishes what a finished job made durable. True if `durable` moved."""

    def request_sync(self) -> None:
        """A producer waits for stable storage: the next `tick` gives a job."""

    def configure(self, settings: TopicSettings) -> None: ...

    def trim(self, before: int, now_us: int) -> Freed:
        """Let the log start at `before` and publish that. Raises a `StorageError`, retriable while
        a sync is in the way."""

    def swap(self, prepared: Prepared, records: int, now_us: int) -> Freed:
        """Puts a cleaned segment in its place, which lacks `records` of its sources. Raises as
        `trim`."""

    def close(self, *, clean: bool) -> None: ...


def errno_of(error: BaseException | None) -> int:
    """The operating system's number behind an error, however deep; 0 if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        error = error.__cause__
    return 0
