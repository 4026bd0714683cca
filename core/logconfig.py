"""The settings of one partition's log. Owns their defaults and bounds; knows nothing of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.errors import ConfigError
from penstock.core.header import BATCH_BYTES_MAX, HEADER_BYTES

FlushMode = Literal["os", "interval", "batch"]
TimestampType = Literal["create", "append"]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one partition keeps its log. Frozen and checked once, here."""

    segment_bytes: int = 1 << 30
    """A segment is closed before an append that would take it beyond this. One append call never
    spans two segments, so a call larger than this makes a segment of its own size."""

    segment_age: float | None = None
    """Seconds after a segment's first batch at which it is closed; None: only by size."""

    index_interval_bytes: int = 16384
    """Bytes of log for one index entry. Changing it does not rewrite the indexes that are there."""

    preallocate_bytes: int = 4 << 20
    """The largest step by which a segment file grows. Steps start at 64 KiB and double, so that
    many small partitions do not hold this much each. 0 turns preallocation off."""

    batch_bytes_max: int = 1 << 20
    """The largest batch that is accepted, header included."""

    flush: FlushMode = "os"
    """When data is forced to the device: `os` leaves it to the kernel but for closed segments and
    the bound below, `interval` every `flush_interval`, `batch` as soon as anything was appended."""

    flush_interval: float = 1.0
    """Seconds between two syncs under `flush="interval"`."""

    timestamp_type: TimestampType = "create"
    """The source of the records' time: the producer, or the append for the whole batch."""

    producer_batches_kept: int = 128
    """Batches remembered for each producer, so that a repeated one is answered as it was."""

    producers_max: int = 10_000
    """Producers remembered for the partition. Beyond it the longest silent ones go. A producer
    stays if it has a lane or an open transaction, or appended within two minutes. Of the last kind
    twice as many may be there. It bounds memory, and the size of each snapshot and recovery."""

    recovery_batches_max: int = 200_000
    """Batches above the recovery point at which a sync is due in every flush mode: it bounds how
    long a start after a crash reads."""

    snapshot_batches: int = 50_000
    """Batches between two snapshots of the producer state (there is one at each roll as well)."""

    def __post_init__(self) -> None:
        checks = (
            ("segment_bytes", HEADER_BYTES <= self.segment_bytes <= 1 << 40),
            ("segment_age", self.segment_age is None or self.segment_age > 0),
            ("index_interval_bytes", self.index_interval_bytes >= 64),
            ("preallocate_bytes", 0 <= self.preallocate_bytes <= 1 << 30),
            ("batch_bytes_max", HEADER_BYTES <= self.batch_bytes_max <= BATCH_BYTES_MAX),
            ("flush", self.flush in ("os", "interval", "batch")),
            ("flush_interval", self.flush_interval > 0),
            ("timestamp_type", self.timestamp_type in ("create", "append")),
            ("producer_batches_kept", 1 <= self.producer_batches_kept <= 4096),
            ("producers_max", self.producers_max >= 1),
            ("recovery_batches_max", self.recovery_batches_max >= 1),
            ("snapshot_batches", self.snapshot_batches >= 1),
        )
        for name, good in checks:
            if not good:
                raise ConfigError(f"log setting {name}={getattr(self, name)!r} is out of range")
