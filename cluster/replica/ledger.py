"""Where a replica's log begins and ends, and which leader epoch wrote what of it."""

from __future__ import annotations

from penstock.core.epochs import EpochCache


class LogEnds:
    """Invariant: log_start <= high_watermark <= log_end, but while a follower begins again.

    `synced`: how far the log is on stable storage, where records count only there
    (`durability="fsync"`); None where they count as soon as they are appended. `truncated_below`
    counts records that were committed once and are gone: only an unclean election does that."""

    def __init__(
        self, log_start: int = 0, log_end: int = 0, high_watermark: int = 0,
        epochs: EpochCache | None = None, synced: int | None = None,
    ) -> None:  # fmt: skip
        self.log_start = log_start
        self.log_end = log_end
        self.high_watermark = min(high_watermark, log_end)
        self.epochs = epochs or EpochCache()
        self.synced = synced
        self.truncated_below = 0

    @property
    def stored(self) -> int:
        """How far this replica answers for what it has."""
        return self.log_end if self.synced is None else min(self.synced, self.log_end)

    @property
    def last_epoch(self) -> int | None:
        """Of the last record, also of one that was trimmed; None where none is known."""
        return self.epochs.epoch_at(self.log_end - 1)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The newest epoch here at or below that one, and where it ends."""
        found = self.epochs.end_offset(epoch, self.log_end)
        return (self.epochs.latest, self.log_end) if found is None else found

    def appended(self, log_end: int, epoch: int) -> None:
        """Records of that epoch up to there, behind what was there."""
        assert log_end >= self.log_end, (log_end, self.log_end)
        if log_end > self.log_end:
            assert epoch >= self.epochs.latest, (epoch, self.epochs.entries)
            if epoch > self.epochs.latest or not self.epochs.entries:
                self.epochs.assign(epoch, self.log_end)
        self.log_end = log_end

    def truncate(self, end: int) -> None:
        self.truncated_below += max(0, self.high_watermark - end)
        self.log_end = end
        if self.synced is not None:
            self.synced = min(self.synced, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_end(end)

    def restart(self, log_start: int) -> None:
        """Nothing of this log is in the leader's any more."""
        self.log_start = self.log_end = self.high_watermark = log_start
        if self.synced is not None:
            self.synced = log_start
        self.epochs = EpochCache()

    def trim(self, log_start: int) -> None:
        """Retention: the log begins there now, or where it ends. Epochs from before are kept: a
        replica that was away may have parted from this log there."""
        start = min(log_start, self.high_watermark)
        if start > self.log_start:
            self.log_start = start
