"""Queries of logs besides their records: offsets by time, times, sizes, positions of others.

Owns the answers from the files and the shared memory of this host. Those about a node on another
host come from its gateway (`penstock.client.remote.logs`), by the same methods. All of them are
generators of waits (see `penstock.ipc.waits`), though nothing here has to wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.client.consumer.source import folder_of
from penstock.client.session import Session
from penstock.core.errors import CorruptBatchError, StorageError
from penstock.core.reader import Limit
from penstock.core.segment import list_segments, open_for_reading
from penstock.core.storage import Storage
from penstock.core.timesearch import searching
from penstock.ipc.clients import ClientSlot
from penstock.ipc.hostslots import DiskRoom, DiskSlot
from penstock.ipc.state import StatePage
from penstock.ipc.waits import Waits
from penstock.observe.ages import Ages, LogPosition


class LogHandle(NamedTuple):
    """A partition's log, and its page."""

    page: StatePage
    topic_id: bytes
    partition: int

    @property
    def folder(self) -> str:
        """Its name below the data folder."""
        return folder_of(self.topic_id, self.partition)

    def limit(self, *, committed: bool = False) -> Limit:
        """Returns how far it may be read now: the offset first, then the bytes it needs."""
        page = self.page
        end = page.last_stable if committed else page.high_watermark
        return Limit(end, *page.segment(), page.log_start)


class TimeFound(NamedTuple):
    """The result of a look-up by time.

    `offset`: None if all records are older. Where the look-up is not over, it is the offset to go
    on from."""

    offset: int | None
    is_over: bool


class NodeLogs(Protocol):
    """The logs of one node."""

    def refreshing(self, pages: Collection[StatePage]) -> Waits[None]:
        """Updates these pages with the present state of their partitions."""

    def finding_time(self, log: LogHandle, timestamp: int, *, committed: bool) -> Waits[int | None]:
        """Returns the first offset whose record has a time >= `timestamp` (microseconds); None if
        there is none. `committed`: among records that readers of committed ones get."""

    def dating(
        self, places: Sequence[tuple[LogHandle, int]], budget: float
    ) -> Waits[list[float | None]]:
        """Returns the append times of the records at these offsets, in seconds since the epoch.
        None where it is not known, or `budget` seconds were over."""

    def sizing(self, log: LogHandle, before: int) -> Waits[tuple[int, int]]:
        """Segments that would go if the log started there, and the bytes of their files."""

    def positioning(self, clients: Sequence[tuple[int, int]]) -> Waits[list[PollAge]]:
        """Returns the positions of the clients in these slots, with these pids."""

    def looking_at_disk(self) -> Waits[DiskRoom]:
        """Returns the room on the disk of the node's data folder."""


class PollAge(NamedTuple):
    """Next offsets wanted by page, and seconds since the client last looked for records (None: not
    known)."""

    positions: dict[int, int]
    age: float | None


class LocalLogs:
    """See `NodeLogs`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder: Path = session.data_folder
        self._storage = Storage()

    def folder(self, log: LogHandle) -> str:
        return os.path.join(self._folder, log.folder)

    def refreshing(self, pages: Collection[StatePage]) -> Waits[None]:
        return
        yield

    def finding_time(self, log: LogHandle, timestamp: int, *, committed: bool) -> Waits[int | None]:
        return self.find_time(log, timestamp, committed=committed).offset
        yield

    def find_time(
        self,
        log: LogHandle,
        timestamp: int,
        *,
        committed: bool,
        start: int = 0,
        budget: float = math.inf,
    ) -> TimeFound:
        """Returns the same from offset `start` on, or how far that is when `budget` seconds are
        over."""
        deadline = time.monotonic() + budget
        while True:
            limit = log.limit(committed=committed)
            limit = limit._replace(start=max(limit.start, start))
            folder = self.folder(log)
            try:
                for offset, is_found in searching(
                    self._storage, folder, timestamp, limit, committed=committed
                ):
                    if is_found or time.monotonic() >= deadline:
                        return TimeFound(offset, is_over=is_found)
            except (CorruptBatchError, StorageError):
                if log.page.log_start <= limit.start:
                    raise  # rule 11: else retention took away what was looked at
            else:
                return TimeFound(None, is_over=True)

    def dating(
        self, places: Sequence[tuple[LogHandle, int]], budget: float
    ) -> Waits[list[float | None]]:
        wanted = [
            LogPosition(0, (log.topic_id.hex(), log.partition), self.folder(log), offset)
            for log, offset in places
        ]
        known = Ages(self._storage).times(wanted, budget)
        return [known.get(place) for place in wanted]
        yield

    def sizing(self, log: LogHandle, before: int) -> Waits[tuple[int, int]]:
        return sizes_below(self._storage, self.folder(log), before, log.page.high_watermark)
        yield

    def positioning(self, clients: Sequence[tuple[int, int]]) -> Waits[list[PollAge]]:
        table = self._session.clients
        return [polled_by(ClientSlot(table, slot), pid) for slot, pid in clients]
        yield

    def looking_at_disk(self) -> Waits[DiskRoom]:
        return DiskSlot(self._session.state).read()
        yield


def sizes_below(storage: Storage, folder: str, before: int, end: int) -> tuple[int, int]:
    """Returns the number of segments wholly below `before`, and the bytes of their files, of a log
    that ends at `end`."""
    bases = list_segments(storage, folder)
    gone = [base for base, to in zip(bases, [*bases[1:], end], strict=False) if base < to <= before]
    nbytes = 0
    for base in gone:
        fd = open_for_reading(storage, folder, base)
        try:
            nbytes += storage.size(fd)
        finally:
            storage.close(fd)
    return len(gone), nbytes


def polled_by(slot: ClientSlot, pid: int) -> PollAge:
    """Returns the positions of the client in that slot; none where it is another one's by now. Pid
    0 is any: of a remote client, in whose place its gateway is attached."""
    if not slot.in_use or pid not in (0, slot.pid):
        return PollAge({}, None)
    at = slot.polled
    age = max(0, time.monotonic_ns() // 1000 - at) / 1e6 if at else None
    return PollAge(dict(slot.positions()), age)
