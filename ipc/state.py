"""The state table: how far each partition of this host may be read, in shared memory.

Page k is written only by the writer process of partition k and read by everybody without asking.
Each number is one aligned u64. A sequence lock guards the pair (segment base, valid bytes), which
must be seen together. A replacement writer repairs the lock (rule 10).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.errors import PenstockTimeout, UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc.hostslots import DiskSlot, FullPages
from penstock.ipc.shm import Region

_SPINS_MAX: Final = 200
SEGMENT_WAIT: Final = 2.0
"""Seconds a reader waits for a writer that died inside the sequence lock to be replaced."""

CLEANING: Final = (
    "cleanings", "segments_deleted", "bytes_deleted", "records_compacted", "cleaning_errors",
    "cleaned_at",
)  # fmt: skip


class PageIdentity(NamedTuple):
    topic_id: bytes
    partition: int


def format_table(region: Region, node_uuid: bytes, pages: int = lo.PAGES_MAX) -> None:
    """Makes zeroed memory a state table; the magic last."""
    packed = lo.STATE_HEADER.pack(0, lo.LAYOUT_VERSION, lo.PAGE_BYTES, pages, node_uuid)
    region.bytes[8 : len(packed)] = packed[8:]
    region.q[0] = lo.STATE_MAGIC


def check_table(region: Region, node_uuid: bytes | None = None) -> bool:
    """Whether this is a finished table of this layout (and of this node). Raises on a version."""
    if len(region.bytes) < lo.PAGES_AT:
        return False
    magic, version, stride, pages, uuid = lo.STATE_HEADER.unpack_from(region.bytes)
    if magic != lo.STATE_MAGIC:
        return False
    if version != lo.LAYOUT_VERSION or stride != lo.PAGE_BYTES:
        raise UnsupportedVersionError(
            f"the state table has layout version {version}, this build reads {lo.LAYOUT_VERSION}: "
            "run the same Penstock version in the node and its clients"
        )
    fits = len(region.bytes) >= lo.state_table_bytes(pages)
    return fits and (node_uuid is None or uuid == node_uuid)


class OpenSince(NamedTuple):
    """The transaction that holds a partition's last stable offset back; `began_us` in microseconds
    since the epoch."""

    producer_id: int
    epoch: int
    began_us: int


class StatePage:
    """One partition's page. Readers use the properties, its writer the `publish_*` methods."""

    __slots__ = ("_base", "_bytes", "_q", "disk", "full_pages", "index")

    def __init__(self, region: Region, index: int) -> None:
        if not 0 <= index < lo.PAGES_MAX:
            raise ValueError(f"page {index} is outside 0..{lo.PAGES_MAX - 1}")
        self._q = region.q
        self._bytes = region.bytes
        self._base = (lo.PAGES_AT + index * lo.PAGE_BYTES) // 8
        self.disk = DiskSlot(region)
        self.full_pages = FullPages(region)
        self.index = index

    # --- reading ---
    @property
    def identity(self) -> PageIdentity | None:
        """Which partition this page is; None where it was never given to one."""
        magic, _, topic_id, partition = lo.PAGE_IDENTITY.unpack_from(self._bytes, self._base * 8)
        return PageIdentity(topic_id, partition) if magic == lo.PAGE_MAGIC else None

    def is_gone(self, packed: bytes) -> bool:
        """Whether the partition of this packed identity (`lo.PAGE_IDENTITY`) was deleted: its page
        says so, or is another one's by now."""
        if self._q[self._base + lo.Q_PAGE_STATUS] == lo.STATUS_DELETED:
            return True
        at = self._base * 8
        return bool(self._bytes[at : at + len(packed)] != packed) and self.identity is not None

    @property
    def log_end(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_LOG_END])

    @property
    def high_watermark(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_HIGH_WATERMARK])

    @property
    def last_stable(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_LAST_STABLE])

    @property
    def durable(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_DURABLE])

    @property
    def log_start(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_LOG_START])

    def ends(self) -> list[int]:
        """[log start, durable, last stable, high watermark, log end], each read before those that
        it never passes."""
        first = self._base + lo.Q_PAGE_LOG_START
        return self._q[first : first - 5 : -1].tolist()

    def words(self) -> tuple[memoryview, int, int, int]:
        """Returns a view, and the indexes in it of log end, high watermark and last stable offset.
        It is for callers that read thousands of pages in a row."""
        base = self._base
        at = lo.Q_PAGE_LOG_END, lo.Q_PAGE_HIGH_WATERMARK, lo.Q_PAGE_LAST_STABLE
        return self._q, base + at[0], base + at[1], base + at[2]

    @property
    def leader_epoch(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_LEADER_EPOCH])

    @property
    def generation(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_GENERATION])

    @property
    def status(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_STATUS])

    @property
    def errno(self) -> int:
        return int(self._q[self._base + lo.Q_PAGE_ERRNO])

    @property
    def oldest_open(self) -> OpenSince | None:
        """The oldest open transaction, None if there is none (or it is just being replaced)."""
        found = self._oldest_open()
        # Two that began in one append have the same time: only twice the same is one of them.
        return found if found.began_us and found == self._oldest_open() else None

    def _oldest_open(self) -> OpenSince:
        q, base = self._q, self._base
        began = int(q[base + lo.Q_PAGE_OPEN_BEGAN])
        producer_id = int(q[base + lo.Q_PAGE_OPEN_PRODUCER])
        return OpenSince(producer_id, int(q[base + lo.Q_PAGE_OPEN_EPOCH]), began)

    def counters(self) -> dict[str, int]:
        """records, bytes, batches, duplicates, refusals, throttles since the table was made."""
        start = self._base + lo.Q_PAGE_RECORDS
        names = ("records", "bytes", "batches", "duplicates", "refusals", "throttles")
        return dict(zip(names, self._q[start : start + len(names)].tolist(), strict=True))

    def cleaning(self) -> dict[str, int]:
        """cleanings, segments_deleted, bytes_deleted, records_compacted, cleaning_errors since the
        table was made, and cleaned_at (microseconds since the epoch, 0: never)."""
        start = self._base + lo.Q_PAGE_CLEANINGS
        return dict(zip(CLEANING, self._q[start : start + len(CLEANING)].tolist(), strict=True))

    def syncs(self) -> tuple[int, list[int]]:
        """Microseconds spent in syncs since the table was made, and how many there were under each
        bound of `layout.SYNC_BOUNDS_US` and above the last."""
        start = self._base + lo.Q_PAGE_SYNC_US
        spent, *counts = self._q[start : start + 2 + len(lo.SYNC_BOUNDS_US)].tolist()
        return spent, counts

    def segment_now(self) -> tuple[int, int] | None:
        """`segment` without waiting: None while its writer is in the middle of a publication."""
        q, base = self._q, self._base
        for _ in range(_SPINS_MAX):
            before = q[base + lo.Q_PAGE_SEQLOCK]
            if not before & 1:
                pair = (
                    int(q[base + lo.Q_PAGE_SEGMENT_BASE]),
                    int(q[base + lo.Q_PAGE_VALID_BYTES]),
                )
                if q[base + lo.Q_PAGE_SEQLOCK] == before:
                    return pair
        return None

    def segment(self) -> tuple[int, int]:
        """(base offset of the active segment, its valid bytes), seen together.

        Spins boundedly over a writer in mid-write; raises `PenstockTimeout` where none finishes.
        """
        deadline = 0.0
        while (pair := self.segment_now()) is None:
            now = time.monotonic()
            deadline = deadline or now + SEGMENT_WAIT
            if now > deadline:
                raise self.stuck()
            time.sleep(0.001)
        return pair

    def glance(self, packed: bytes) -> tuple[int, int, int, int] | None:
        """Returns (log start, leader epoch, segment base, valid bytes) of the partition of this
        packed identity. A read needs only these and its end, which it reads before. Returns None
        while the pair is being published, and where `is_gone` is true. It saves calls where a
        reader waits for a record."""
        q, base = self._q, self._base
        at = base * 8
        if (
            self._bytes[at : at + len(packed)] != packed
            or q[base + lo.Q_PAGE_STATUS] == lo.STATUS_DELETED
        ):
            return None
        lock = q[base + lo.Q_PAGE_SEQLOCK]
        segment, valid_bytes = q[base + lo.Q_PAGE_SEGMENT_BASE], q[base + lo.Q_PAGE_VALID_BYTES]
        if lock & 1 or q[base + lo.Q_PAGE_SEQLOCK] != lock:
            return None
        return q[base + lo.Q_PAGE_LOG_START], q[base + lo.Q_PAGE_LEADER_EPOCH], segment, valid_bytes

    def stuck(self) -> PenstockTimeout:
        """Returns the error after `SEGMENT_WAIT` seconds in which `segment_now` found nothing."""
        return PenstockTimeout(
            f"page {self.index}: its writer stopped in the middle of a publication and none took "
            f"its place within {SEGMENT_WAIT} s"
        )

    # --- writing (only the partition's writer process) ---
    def claim(self, topic_id: bytes, partition: int, generation: int) -> None:
        """Take the page for a partition: repair the sequence lock, name the owner.

        A writer that died inside the lock left a pair that may not belong together. Until the next
        `publish_segment` readers find that segment with no valid bytes, and wait.
        """
        q, base = self._q, self._base
        if q[base + lo.Q_PAGE_SEQLOCK] & 1:
            q[base + lo.Q_PAGE_VALID_BYTES] = 0
            q[base + lo.Q_PAGE_SEQLOCK] += 1
        packed = lo.PAGE_IDENTITY.pack(lo.PAGE_MAGIC, lo.LAYOUT_VERSION, topic_id, partition)
        if bytes(self._bytes[base * 8 : base * 8 + len(packed)]) == packed:
            q[base + lo.Q_PAGE_GENERATION] = generation
        else:
            # Nothing of another partition may be taken for this one's, least of all its log end.
            q[base] = 0
            rest = base * 8 + 8
            self._bytes[rest : base * 8 + lo.PAGE_BYTES] = bytes(lo.PAGE_BYTES - 8)
            self._bytes[rest : base * 8 + len(packed)] = packed[8:]
            q[base + lo.Q_PAGE_GENERATION] = generation
            q[base] = int.from_bytes(packed[:8], "little")

    def publish_segment(self, segment_base: int, valid_bytes: int) -> None:
        q, base = self._q, self._base
        lock = q[base + lo.Q_PAGE_SEQLOCK]
        q[base + lo.Q_PAGE_SEQLOCK] = lock + 1
        q[base + lo.Q_PAGE_SEGMENT_BASE] = segment_base
        q[base + lo.Q_PAGE_VALID_BYTES] = valid_bytes
        q[base + lo.Q_PAGE_SEQLOCK] = lock + 2

    def publish_ends(self, log_end: int, high_watermark: int, last_stable: int) -> None:
        """Bytes before offsets: callers publish the segment first."""
        q, base = self._q, self._base
        q[base + lo.Q_PAGE_LOG_END] = log_end
        q[base + lo.Q_PAGE_HIGH_WATERMARK] = high_watermark
        q[base + lo.Q_PAGE_LAST_STABLE] = last_stable

    def publish_oldest_open(self, transaction: OpenSince | None) -> None:
        q, base = self._q, self._base
        q[base + lo.Q_PAGE_OPEN_BEGAN] = 0  # readers take nothing that belongs to two of them
        if transaction is not None:
            q[base + lo.Q_PAGE_OPEN_PRODUCER] = transaction.producer_id
            q[base + lo.Q_PAGE_OPEN_EPOCH] = transaction.epoch
            q[base + lo.Q_PAGE_OPEN_BEGAN] = max(1, transaction.began_us)

    def publish_durable(self, durable: int) -> None:
        self._q[self._base + lo.Q_PAGE_DURABLE] = durable

    def publish_log_start(self, log_start: int) -> None:
        self._q[self._base + lo.Q_PAGE_LOG_START] = log_start

    def publish_epoch(self, leader_epoch: int) -> None:
        self._q[self._base + lo.Q_PAGE_LEADER_EPOCH] = leader_epoch

    def publish_status(self, status: int, errno: int = 0) -> None:
        self._q[self._base + lo.Q_PAGE_ERRNO] = errno
        self._q[self._base + lo.Q_PAGE_STATUS] = status

    def let_go(self, *, deleted: bool) -> None:
        """Marks a page without a log of the partition. A partition on other brokers may come back
        with an empty log. The end of its old log must not look like damage then."""
        self.publish_status(lo.STATUS_DELETED if deleted else lo.STATUS_FOLLOWING)
        if not deleted:
            self.publish_log_start(0)
            self.publish_durable(0)
            self.publish_ends(0, 0, 0)

    def count(
        self, records: int, nbytes: int, batches: int, duplicates: int = 0, refusals: int = 0
    ) -> None:
        q, at = self._q, self._base + lo.Q_PAGE_RECORDS
        q[at] += records
        q[at + 1] += nbytes
        q[at + 2] += batches
        if duplicates:
            q[at + 3] += duplicates
        if refusals:
            q[at + 4] += refusals

    def count_cleaning(self, now_us: int, segments: int, nbytes: int, records: int) -> None:
        q, at = self._q, self._base + lo.Q_PAGE_CLEANINGS
        q[at + 1] += segments
        q[at + 2] += nbytes
        q[at + 3] += records
        q[at + 5] = now_us
        q[at] += 1

    def count_cleaning_error(self) -> None:
        self._q[self._base + lo.Q_PAGE_CLEANING_ERRORS] += 1

    def count_sync(self, seconds: float) -> None:
        q, base, took = self._q, self._base, int(seconds * 1e6)
        q[base + lo.Q_PAGE_SYNC_COUNTS + bisect_left(lo.SYNC_BOUNDS_US, took)] += 1
        q[base + lo.Q_PAGE_SYNC_US] += took

    def copy_counts(self, counters: Sequence[int], cleaning: Sequence[int]) -> None:
        """Sets `counters` and `cleaning` to those of the page that this one is a copy of."""
        q, base = self._q, self._base
        for at, value in enumerate(counters[: lo.Q_PAGE_THROTTLES - lo.Q_PAGE_RECORDS + 1]):
            q[base + lo.Q_PAGE_RECORDS + at] = value
        for at, value in enumerate(cleaning[: len(CLEANING)]):
            q[base + lo.Q_PAGE_CLEANINGS + at] = value

    def count_expired(self, producers: int) -> None:
        self._q[self._base + lo.Q_PAGE_PRODUCERS_EXPIRED] += producers

    def count_throttle(self) -> None:
        self._q[self._base + lo.Q_PAGE_THROTTLES] += 1


class WriterSlot:
    """One writer process's signs of life in the state table's head."""

    __slots__ = ("_base", "_q")

    def __init__(self, region: Region, writer: int) -> None:
        if not 0 <= writer < lo.WRITERS_MAX:
            raise ValueError(f"writer {writer} is outside 0..{lo.WRITERS_MAX - 1}")
        self._q = region.q
        self._base = (lo.WRITER_SLOTS_AT + writer * lo.WRITER_SLOT_BYTES) // 8

    def claim(self, pid: int, generation: int, restarts: int = 0) -> None:
        self._q[self._base + lo.Q_WRITER_PID] = pid
        self._q[self._base + lo.Q_WRITER_RESTARTS] = restarts
        self._q[self._base + lo.Q_WRITER_GENERATION] = generation
        self.beat()

    def beat(self) -> None:
        q, base = self._q, self._base
        q[base + lo.Q_WRITER_HEARTBEAT] = time.monotonic_ns() // 1000
        q[base + lo.Q_WRITER_PASSES] += 1

    @property
    def pid(self) -> int:
        return int(self._q[self._base + lo.Q_WRITER_PID])

    @property
    def generation(self) -> int:
        return int(self._q[self._base + lo.Q_WRITER_GENERATION])

    @property
    def passes(self) -> int:
        """Heartbeats since the table was made."""
        return int(self._q[self._base + lo.Q_WRITER_PASSES])

    @property
    def restarts(self) -> int:
        """How many writers of this node run died in this one's place."""
        return int(self._q[self._base + lo.Q_WRITER_RESTARTS])

    @property
    def silent_for(self) -> float:
        """Seconds since the last heartbeat."""
        beat = int(self._q[self._base + lo.Q_WRITER_HEARTBEAT])
        return max(0.0, (time.monotonic_ns() // 1000 - beat) / 1e6)
