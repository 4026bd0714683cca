"""Bounds of a share group in one partition, and its settings of delivery."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Every bound names itself in the error of who hits it."""

    max_deliveries: int = 5
    """Deliveries after which a record that fails once more is a dead letter. 0: no end."""

    backoff_min: float = 1.0
    """Seconds: a record that failed for the first time waits up to so long. Twice as long at each
    further time."""

    backoff_max: float = 300.0
    """Seconds that a failed record waits at most."""

    delay_max: float = 365 * 86_400.0
    """Seconds that a worker may have a failed record wait. Until when a record is delayed its
    producer says."""

    max_lease: float = 0.0
    """Seconds that a worker has for a record before others get it, unless it asks for more time.
    0: as long as it lives."""

    dedup_window: float = 600.0
    """Seconds that the timestamps of two records of the same dedup id may lie apart, for the second
    one to be no work. 0: each record is."""

    dedup_ids_max: int = 131_072
    """Dedup ids that are known of a partition. Each takes 32 bytes. Where there are more, those
    with the oldest timestamps are forgotten."""

    extend_max: float = 365 * 86_400.0
    """Seconds that a worker may ask for at once."""

    blocks_max: int = 256
    """Blocks of 4,096 offsets in which some record is not done yet. Each takes 40 KB. Where there
    are so many, no further record is delivered before one of them is done."""

    ahead_max: int = 50_000
    """Records that are begun, have nobody, and of which the keys or tenants are known: so far a
    group with an order or with turns looks ahead. Each takes up to 150 bytes."""

    waiting_max: int = 10_000_000
    """Records that wait until they are due. Each takes 8 bytes. Where there are so many, no further
    record is begun with before one of them is due: they are not read, and wait in the topic."""

    runs_max: int = 4096
    """Runs of offsets in one request."""

    reason_bytes_max: int = 1000
    """Length of the reason of a failure, in UTF-8. A longer reason is cut."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_deliveries" else 1 if isinstance(value, int) else 0.0
            if not least <= value <= 2**53:
                raise ConfigError(f"{field.name}: {value!r} is not between {least} and 2**53")
        if self.max_deliveries > 255:
            raise ConfigError(
                f"max_deliveries: {self.max_deliveries} is above 255, or 0 for no end"
            )
        if self.backoff_min > self.backoff_max:
            raise ConfigError(
                f"backoff_min: {self.backoff_min} is above backoff_max, {self.backoff_max}"
            )
