"""A partition whose log could not be opened for want of room: its frames wait, nothing is refused.

    parked --Log opens--> the role that it replaces         parked --damage--> offline

A writer that died on a full disk has a successor that cannot recover the log either. Frames in its
lanes were accepted, so they are not refused for it (rule 4). They stay where they are until there
is room, as if an append had found none. Readers go on with the published records.

Owns the tries. Everything else is left to the role, once there is one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode, StorageError
from penstock.core.log import AppendResult, SyncJob, Writeback
from penstock.core.swapping import Prepared
from penstock.ipc import layout as lo
from penstock.ipc.freed import Freed
from penstock.ipc.lane import Frame
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.partitionrole import TICK, PartitionRole, errno_of
from penstock.ipc.state import StatePage

logger = logging.getLogger("penstock.writer")

RETRY_FIRST: Final = 0.5
RETRY_LAST: Final = 5.0
"""Seconds between two tries, doubled up to the second: each reads the log's tail again."""

Open = Callable[[], tuple[PartitionRole, str]]


def may_park(error: Exception, order: OpenPartition, state: StatePage) -> bool:
    """Returns whether to keep the published state of this boot while a partition's log does not
    open.

    A partition that was never open in this boot has nothing in any lane. Readers would take an
    empty page for an empty log, so it is offline.
    """
    return (
        isinstance(error, StorageError)
        and error.retriable
        and state.identity == (order.topic_id, order.partition)
        and state.status != lo.STATUS_ABSENT
    )


class ParkedRole:
    """Replaces the role that `open_role` makes, from the first failure on."""

    def __init__(
        self,
        order: OpenPartition,
        state: StatePage,
        generation: int,
        open_role: Open,
        error: Exception,
    ) -> None:
        self.page = order.page
        self.name: str = order.name
        self._state = state
        self._open_role = open_role
        self._role: PartitionRole | None = None
        self._settings: TopicSettings | None = None
        self._refusal = ErrorCode.NOT_LEADER if order.replicated else ErrorCode.PARTITION_OFFLINE
        self._damage = ""
        self._delay = RETRY_FIRST
        state.claim(order.topic_id, order.partition, generation)
        self._wait(error)

    def _wait(self, error: Exception) -> None:
        self._error = error
        self._retry_at = time.monotonic() + self._delay
        self._delay = min(self._delay * 2, RETRY_LAST)
        self._state.publish_status(lo.STATUS_FULL, errno_of(error))
        logger.warning("%s: not open yet, will be tried again: %s", self.name, error)

    def _try(self) -> None:
        """Open the log if it is time for that. Raises the retriable error while it does not."""
        if time.monotonic() < self._retry_at:
            raise StorageError(str(self._error), retriable=True) from self._error
        try:
            role, report = self._open_role()
        except StorageError as error:
            if error.retriable:
                self._wait(error)
                raise
            logger.error("%s: offline: %s", self.name, error)
            self._state.publish_status(lo.STATUS_OFFLINE, errno_of(error))
            self._damage = str(error)
            return
        if self._settings is not None:
            role.configure(self._settings)
        self._role = role
        logger.info("%s: there is room again: %s", self.name, report)

    @property
    def leader_epoch(self) -> int:
        return self._state.leader_epoch if self._role is None else self._role.leader_epoch

    @property
    def log_end(self) -> int:
        return self._state.log_end if self._role is None else self._role.log_end

    @property
    def offline(self) -> str:
        return self._damage if self._role is None else self._role.offline

    @property
    def tick_every(self) -> float:
        return TICK if self._role is None else self._role.tick_every

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        if self._role is None and not self._damage:
            self._state.count_throttle()
            self._try()
        if self._role is None:
            return [refused(self._refusal, self._damage)] * len(batches)
        return self._role.append(batches, now_us)

    def replicate(self, frames: Sequence[Frame], now_us: int) -> list[AppendResult]:
        if self._role is not None:
            return self._role.replicate(frames, now_us)
        code = ErrorCode.PARTITION_OFFLINE if self._damage else ErrorCode.STORAGE_FULL
        end, why = self.log_end, self._damage or str(self._error)
        return [AppendResult(end, end, 0, code, False, why)] * len(frames)

    def writeback(self) -> Writeback | None:
        return None if self._role is None else self._role.writeback()

    def count(self, batches: Sequence[memoryview], results: list[AppendResult]) -> None:
        if self._role is not None:
            self._role.count(batches, results)
        else:
            self._state.count(0, 0, 0, refusals=len(results))

    def tick(self, now: float, now_us: int) -> SyncJob | None:
        if self._role is None and not self._damage:
            try:
                self._try()
            except StorageError:
                return None  # told, and tried again
        return None if self._role is None else self._role.tick(now, now_us)

    def lacks_indexes(self, now: float) -> bool:
        return self._role is not None and self._role.lacks_indexes(now)

    def restore_indexes(self, now: float) -> None:
        if self._role is not None:
            self._role.restore_indexes(now)

    def finish_sync(self, job: SyncJob) -> bool:
        assert self._role is not None, "the job is the role's"
        return self._role.finish_sync(job)

    def request_sync(self) -> None:
        if self._role is not None:
            self._role.request_sync()

    def configure(self, settings: TopicSettings) -> None:
        if self._role is None:
            self._settings = settings
        else:
            self._role.configure(settings)

    def trim(self, before: int, now_us: int) -> Freed:
        return self._opened().trim(before, now_us)

    def swap(self, prepared: Prepared, records: int, now_us: int) -> Freed:
        return self._opened().swap(prepared, records, now_us)

    def _opened(self) -> PartitionRole:
        if self._role is None:
            why = self._damage or self._error
            raise StorageError(f"{self.name} is not open: {why}", retriable=not self._damage)
        return self._role

    def close(self, *, clean: bool) -> None:
        if self._role is not None:
            self._role.close(clean=clean)
        elif clean:
            raise StorageError(f"{self.name} was not open: {self._damage or self._error}")
