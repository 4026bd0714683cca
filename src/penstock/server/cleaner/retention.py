"""Retention of one partition in the cleaner: judge, ask for the trim, pay for it.

The cleaner holds the removed files open over the trim. So this process waits until the file system
has freed their blocks, and not the writer. Owns the known facts about each partition's segments.
Leaves the judgement to `core.retention` and the trim to the writer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.core.logstart import first_live
from penstock.core.retention import Expiry, HeldRecords, SegmentFacts, expired, segment_facts
from penstock.core.segment import list_segments, open_for_reading
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage

logger = logging.getLogger("penstock.cleaner")

NO_GROUP: Final = -1
STEP: Final = 16
"""Segments that go in one trim: the writer takes that long at a time, and no longer."""

_OPEN: Final = (lo.STATUS_ONLINE, lo.STATUS_FULL, lo.STATUS_FOLLOWING)

Trim = Callable[[ms.TrimPartition], ms.Cleaned]
Floor = Callable[["CleanedPartition"], int | None]
"""How far all groups are: an offset, -1 where there is no group; None: nobody knows now."""


@dataclass(slots=True)
class CleanedPartition:
    """One partition as the cleaner knows it.

    `seen`: log end and log start of the last look, `facts` what was found then. `not_due`: the
    state for which compaction was found not to be due. `is_settled`: no cleaned segment and no
    order about one is left from before. `held_bytes`: what groups keep from retention. `unread`:
    how many offsets went all the same.
    """

    topic: ms.TopicInfo
    number: int
    page: StatePage
    folder: str
    seen: tuple[int, int] | None = None
    facts: list[SegmentFacts] = field(default_factory=list)
    not_due: object = None
    is_settled: bool = False
    complaint: str = ""
    held_bytes: int = 0
    unread: int = 0

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.number}"

    @property
    def is_open(self) -> bool:
        """Whether its page tells of this very partition, and its writer takes orders."""
        return self.page.status in _OPEN and self.page.identity == (
            self.topic.topic_id, self.number,
        )  # fmt: skip

    @property
    def is_led(self) -> bool:
        """Whether this node says where its log starts: a follower's starts where its leader's
        does, and only compaction is its own."""
        return self.is_open and self.page.status != lo.STATUS_FOLLOWING

    def bases(self, storage: Storage) -> list[int]:
        """Its segments, from the one that holds the log start on; the last one is active."""
        start = self.page.log_start
        active, _ = self.page.segment()
        found = [base for base in list_segments(storage, self.folder) if base <= active]
        return found[first_live(found, start) :] if found else []

    def look(self, storage: Storage) -> list[SegmentFacts]:
        """The facts of its segments now; those of an idle partition cost nothing."""
        active, valid_bytes = self.page.segment()
        now = (self.page.log_end, self.page.log_start)
        if self.seen == now:
            return self.facts
        bases = self.bases(storage)
        if not bases or bases[-1] != active:
            return []  # it rolls at this moment: the next look sees it whole
        known = {fact.base: fact for fact in self.facts if not fact.is_active}
        self.facts = segment_facts(storage, self.folder, bases, now[0], valid_bytes, known)
        self.seen = now
        return self.facts

    def forget(self) -> None:
        """Its segments are others now."""
        self.seen, self.facts = None, []


def retain(
    partition: CleanedPartition, storage: Storage, trim: Trim, floor: Floor, now_us: int
) -> int:
    """Have what is expired trimmed, some segments at a time; how many bytes are gone.

    Raises what the node refuses with, and `StorageError` for files that cannot be read.
    """
    settings = partition.topic.settings
    facts = partition.look(storage)
    judge = partial(
        expired,
        facts,
        now_us,
        high_watermark=partition.page.high_watermark,
        retention_bytes=settings.retention_bytes,
        retention_us=None if settings.retention is None else round(settings.retention * 1e6),
    )
    verdict, bytes_max, unread = judge(), settings.hold_bytes, 0
    if verdict is None or bytes_max is None:
        partition.held_bytes = 0
    else:
        wanted, known = verdict.nbytes, floor(partition)
        if known == NO_GROUP:
            partition.held_bytes = 0
        else:
            verdict = judge(held=HeldRecords(known or 0, bytes_max))
            _hold(partition, wanted - (0 if verdict is None else verdict.nbytes), known)
            unread = _unread(partition, verdict, known, bytes_max)
    if verdict is None:
        return 0
    logger.info(
        "%s: %d segments with %d bytes are expired, %d by time (retention %s), %d by size "
        "(retention_bytes %s): the log is to start at %d",
        partition, verdict.segments, verdict.nbytes, verdict.by_time,
        settings.retention, verdict.by_size, settings.retention_bytes, verdict.log_start,
    )  # fmt: skip
    freed = 0
    gone = facts[: verdict.segments]
    for first in range(0, len(gone), STEP):
        step = gone[first : first + STEP]
        order = ms.TrimPartition(
            partition.topic.name, partition.number, step[-1].end, partition.topic.topic_id
        )
        with held(storage, partition.folder, [fact.base for fact in step]):
            freed += trim(order).freed
    partition.seen, partition.facts = None, facts[verdict.segments :]
    partition.unread += unread
    return freed


def _hold(partition: CleanedPartition, nbytes: int, floor: int | None) -> None:
    """Notes what is held, and logs that it begins."""
    if nbytes and not partition.held_bytes:
        logger.info(
            "%s: %d bytes are held, which retention would take: %s", partition, nbytes,
            "the coordinator does not tell how far groups are" if floor is None
            else f"a group has not finished offset {floor}",
        )  # fmt: skip
    partition.held_bytes = nbytes


def _unread(
    partition: CleanedPartition, verdict: Expiry | None, floor: int | None, bytes_max: int
) -> int:
    """How many offsets go that a group has not finished, which is logged."""
    if verdict is None:
        return 0
    first = max(floor or 0, partition.page.log_start)
    if verdict.log_start <= first:
        return 0
    logger.warning(
        "%s: %d offsets go that %s, since it has more than %d bytes (hold_bytes_max)",
        partition, verdict.log_start - first,
        "a group has not finished" if floor is not None
        else "a group may not have finished, the coordinator does not tell",
        bytes_max,
    )  # fmt: skip
    return verdict.log_start - first


@contextlib.contextmanager
def held(storage: Storage, folder: str, bases: Sequence[int]) -> Iterator[None]:
    """Keep these segment files open: what removes their names does not wait for their blocks."""
    with contextlib.ExitStack() as files:
        for base in bases:
            files.callback(storage.close, open_for_reading(storage, folder, base))
        yield
