"""Opening a log: find its end, trust nothing above the recovery point, report what was lost.

    boot      where the first bad batch is        what happens
    same      below the published log end           offline, file kept: only damage explains it
    same      above it                              a torn append of a killed writer: cut
    another   (the scan begins at the point)        the power cut took it: cut, report, new epoch
    any       below the recovery point              not looked for; where it is met: offline
    any       a truncation was under way            finished: the log ends at the recovery point
    any       it was about to begin again            finished: empty from the recovery point on
    any       a version of the future               offline, file kept
    the folder was copied here, or brought back     as in another boot, and without a clean mark

A recovery reads everything, then judges, and only then changes the log. After every change a second
recovery comes to the same end (rule 14, invariant 9). The cost follows the bytes above the recovery
point and above the newest snapshot below it. Closed segments below are known by name only.

Owns the judgement. The cut itself is `truncation`'s, the rescue after a failed fsync `rescue`'s.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import (
    CorruptBatchError,
    LogOfflineError,
    StorageError,
    UnsupportedVersionError,
)
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import PointFile, RecoveryPoint, check_boot_id
from penstock.core.replay import damaged, settle_aborted
from penstock.core.rescue import dirty_again, remove_mark, rescue_segment, sync_or_mark
from penstock.core.segment import (
    OpenSegment,
    Stop,
    list_segments,
    remove_orphans,
    remove_segment,
    segment_path,
)
from penstock.core.snapshots import list_snapshots, remove_useless_snapshots
from penstock.core.storage import write_zeros
from penstock.core.survey import OpenRequest, Survey
from penstock.core.swapping import forget_cleaned_to
from penstock.core.truncation import Tail, create_segment, examine_tail, remove_segments

logger = logging.getLogger("penstock.core.recovery")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings and changes of opening a log."""

    reason: str
    """`created`, `clean` (nothing was above the recovery point), `recovered`, `cut`, or `truncated`
    (a truncation that was killed is finished)."""
    log_start: int
    log_end: int
    leader_epoch: int
    same_boot: bool
    epoch_bumped: bool
    lost: tuple[int, int] | None
    """First lost offset and the end of the loss as far as the remains tell; None: nothing lost."""
    lost_bytes: int
    missing: tuple[int, int] | None
    """Offsets that the log published in this boot before this copy of it took its place."""
    cause: str
    segments_removed: int
    segments_rescued: int
    batches_scanned: int
    bytes_scanned: int
    seconds: float

    def summary(self) -> str:
        """One line for the log of the node."""
        text = (
            f"{self.reason}: offsets {self.log_start} to {self.log_end}, leader epoch "
            f"{self.leader_epoch}{' (new)' if self.epoch_bumped else ''}, {self.batches_scanned} "
            f"batches ({self.bytes_scanned} bytes) checked in {self.seconds:.3f} s"
        )
        if self.lost is not None:
            first, end = self.lost
            behind = f"{first} to at least {end}" if end > first else f"from {first} on"
            text += f"; lost offsets {behind}, {self.lost_bytes} bytes: {self.cause}"
        if self.missing is not None:
            text += (
                f"; offsets {self.missing[0]} to {self.missing[1]} are missing: the folder was "
                "brought back from a copy"
            )
        if self.segments_rescued:
            text += f"; {self.segments_rescued} segments rescued after a failed fsync"
        return text


@dataclass(slots=True)
class Recovered:
    """The parts of an open log, as `Log` takes them over."""

    bases: list[int]
    unindexed: list[int]
    log_start: int
    active: OpenSegment
    unsynced: list[OpenSegment]
    log_end: int
    durable: int
    point: RecoveryPoint
    is_settled: bool
    """The folder, the snapshot and `point` are as a clean close wants them."""
    order: tuple[int, int]
    append_timestamp: int
    producers: ProducerTable
    epochs: EpochCache
    point_file: PointFile
    batches_above_point: int


class Recovery:
    """One opening of one log: `run` it once."""

    def __init__(self, request: OpenRequest) -> None:
        check_boot_id(request.boot_id)
        self._ask = request
        self._found = Survey(request)
        self._tail = Tail(0, 0)
        self._lost_bytes = 0
        self._lost_to = 0

    def run(self) -> tuple[Recovered, RecoveryReport]:
        started = time.monotonic()
        found = self._found
        try:
            found.read()
            cause = self._judge()
            recovered, bumped, rescued = self._change(cause)
        except Exception as error:
            for segment in found.scanned:
                self._ask.storage.close(segment.fd)
            unreadable = isinstance(error, CorruptBatchError | UnsupportedVersionError)
            if unreadable or (isinstance(error, StorageError) and not error.retriable):
                raise LogOfflineError(
                    f"cannot open the log in {self._ask.folder}: {error}"
                ) from error
            raise
        lost = cause and not found.start.truncating
        report = RecoveryReport(
            reason=self._reason(cause),
            log_start=recovered.log_start,
            log_end=recovered.log_end,
            leader_epoch=recovered.epochs.latest,
            same_boot=found.same_boot,
            epoch_bumped=bumped,
            lost=(recovered.log_end, max(recovered.log_end, self._lost_to)) if lost else None,
            lost_bytes=self._lost_bytes,
            missing=self._missing(recovered.log_end),
            cause=cause,
            segments_removed=len(found.later) if cause else 0,
            segments_rescued=rescued,
            batches_scanned=found.batches,
            bytes_scanned=found.bytes,
            seconds=time.monotonic() - started,
        )
        if cause or report.missing:
            logger.warning(
                "%s: %s",
                self._ask.folder,
                report.summary(),
                extra={"folder": self._ask.folder, "reason": cause or "brought back"},
            )
        return recovered, report

    @property
    def _is_clean(self) -> bool:
        """Whether the log is as a clean end left it, all of it on the device."""
        return self._ask.node_clean and not self._found.is_copy

    def _missing(self, log_end: int) -> tuple[int, int] | None:
        published = self._ask.published
        if not self._found.is_copy or published is None or published <= log_end:
            return None
        return log_end, published

    def _reason(self, cause: str) -> str:
        if self._found.created:
            return "created"
        if cause:
            return "truncated" if self._found.start.truncating else "cut"
        return "recovered" if self._found.batches else "clean"

    # ---- judge

    def _judge(self) -> str:
        """Why the log has to be cut where the scan ended; empty if it simply ends there. Raises
        `LogOfflineError` where a cut would hide damage."""
        scan, last = self._found.end, self._found.scanned[-1]
        path = segment_path(self._ask.folder, last.base_offset)
        if self._found.start.truncating:
            return f"a truncation to offset {scan.offset} was under way"
        if scan.stop is Stop.VERSION:
            raise LogOfflineError(f"{path}: {scan.detail}. Run the release that wrote it.")
        if self._found.published is not None and scan.offset < self._found.published:
            raise damaged(path, scan, f"offset {self._found.published}, published in this boot")
        if scan.offset < self._found.log_start:
            raise damaged(path, scan, f"offset {self._found.log_start}, where it starts")
        whole = scan.stop in (Stop.END, Stop.ZERO) and not self._found.later
        if whole and self._is_clean and not self._found.batches:
            return ""
        self._tail = examine_tail(self._ask.storage, last.fd, last.valid, self._ask.owner)
        self._lost_bytes = self._tail.end - last.valid
        if whole and not self._lost_bytes:
            return ""
        if self._found.point is None and self._found.later:
            raise damaged(
                path, scan, f"offset {self._found.later[-1]}, and the recovery point is lost"
            )
        self._lost_to = max(self._tail.next_offset, *self._found.later, 0)
        detail = f" ({scan.detail})" if scan.detail else ""
        behind = ", with bytes behind them" if scan.stop is Stop.ZERO else ""
        return f"{path} has at byte {scan.position} {scan.stop.value}{detail}{behind}"

    # ---- change

    def _change(self, cause: str) -> tuple[Recovered, bool, int]:
        storage, folder = self._ask.storage, self._ask.folder
        log_end, order = self._found.end.offset, self._found.end.order
        last = self._found.scanned[-1]
        if cause:
            forget_cleaned_to(storage, folder)
            remove_segments(storage, folder, self._found.later)
            last = self._cut(last)
        rescued = self._rescue()
        for segment in self._found.scanned:
            segment.index.settle(durable=not self._found.same_boot)
        if not self._ask.replicated:
            self._found.epochs.truncate_start(self._found.bases[0])
        bumped = self._bump(cause, log_end, order)
        synced = self._found.start.offset
        folder_changed = remove_useless_snapshots(storage, folder, synced, log_end) or rescued > 0
        for base in self._found.dead:
            remove_segment(storage, folder, base)
        folder_changed |= remove_orphans(storage, folder) or bool(self._found.dead)
        active = last
        if last.valid and (cause or last.base_offset in self._found.marked):
            active = create_segment(storage, folder, log_end, self._ask.config.index_interval_bytes)
            self._found.scanned.append(active)
            folder_changed = True
        folder_changed |= settle_aborted(
            storage,
            folder,
            list_segments(storage, folder),
            log_end,
            self._found.producers,
            self._found.replayed_from,
            is_trusted=self._found.point is not None,
        )
        if folder_changed:
            storage.fsync_folder(folder)
        remove_mark(storage, folder)
        if self._found.same_boot:
            for segment in self._found.scanned:
                dirty_again(storage, segment.fd, segment.synced, segment.valid)
        point, durable = self._found.start, max(self._found.start.offset, self._found.log_start)
        if not self._found.same_boot or self._found.point is None or self._found.start.truncating:
            durable = log_end
            point = self._sync_all(active, log_end, order)
        unsynced = []
        for segment in self._found.scanned:
            if segment is active:
                continue
            if segment.synced < segment.valid:
                unsynced.append(segment)
            else:
                storage.close(segment.fd)
        recovered = Recovered(
            bases=list_segments(storage, folder),
            unindexed=self._found.unindexed,
            log_start=self._found.log_start,
            active=active,
            unsynced=unsynced,
            log_end=log_end,
            durable=durable,
            point=point,
            is_settled=self._is_settled(cause, folder_changed),
            order=order,
            append_timestamp=self._found.append_timestamp,
            producers=self._found.producers,
            epochs=self._found.epochs,
            point_file=self._found.point_file,
            batches_above_point=self._found.batches if durable < log_end else 0,
        )
        return recovered, bumped, rescued

    def _is_settled(self, cause: str, folder_changed: bool) -> bool:
        """Whether all is as the clean close left it, so that a close has nothing to add."""
        found = self._found
        return (
            self._is_clean
            and found.point is not None
            and not (cause or folder_changed or found.batches or found.created)
            and found.end.offset in list_snapshots(self._ask.storage, self._ask.folder)
        )

    def _cut(self, last: OpenSegment) -> OpenSegment:
        """Nothing behind the end of the log may ever come back from the device."""
        storage, folder, base = self._ask.storage, self._ask.folder, last.base_offset
        if base in self._found.marked:
            if last.valid:
                return last  # the rescue copies what is valid and nothing else
            # The cache may show zeros that a failed fsync never wrote: begin with another file.
            storage.close(last.fd)
            last = create_segment(storage, folder, base, self._ask.config.index_interval_bytes)
            self._found.scanned[-1] = last
            storage.fsync_folder(folder)
            return last
        end = storage.size(last.fd) if self._found.start.truncating else self._tail.end
        write_zeros(storage, last.fd, last.valid, end)
        sync_or_mark(storage, folder, self._ask.boot_id, base, last.fd)
        last.synced = last.valid
        return last

    def _rescue(self) -> int:
        """Redo what a process died in between a failed fsync and the rescue (rule 16)."""
        rescued = 0
        for segment in self._found.scanned:
            if segment.base_offset in self._found.marked and segment.valid:
                rescue_segment(
                    self._ask.storage,
                    self._ask.folder,
                    segment.base_offset,
                    segment.fd,
                    segment.valid,
                    self._ask.owner,
                )
                segment.synced = segment.valid
                rescued += 1
        return rescued

    def _bump(self, cause: str, log_end: int, order: tuple[int, int]) -> bool:
        """Begins a new leader epoch where offsets may be given a second time (rule 15). Also begins
        one where batches of this process would fall behind the order in the log. A replicated log
        has its epochs from the controller: its next leader begins a new one."""
        epochs = self._found.epochs
        newest = max(epochs.latest, order[0])
        epochs.truncate_end(log_end + 1)
        bump = not self._ask.replicated and (
            self._found.epochs_lost
            or (not self._found.same_boot and not self._is_clean)
            or (bool(cause) and self._found.published is None)
            or self._found.start.truncating
            or (newest, self._ask.generation) < order
            or epochs.latest < newest  # it began behind the end, before a truncation or a cut
        )
        if bump:
            epochs.assign(newest + 1, log_end)
        if self._found.epochs_lost or epochs.entries != self._found.epochs_known:
            save_epochs(self._ask.storage, self._ask.folder, epochs)
        return bump and not self._found.created

    def _sync_all(self, active: OpenSegment, log_end: int, order: tuple[int, int]) -> RecoveryPoint:
        """After a reboot, what was read came from the device; one cheap sync makes it certain."""
        storage, folder, boot_id = self._ask.storage, self._ask.folder, self._ask.boot_id
        if self._found.is_copy:  # who copied it need not have synced it, below the point neither
            for name in storage.listdir(folder):
                storage.sync_file(f"{folder}/{name}")
        for segment in self._found.scanned:
            if segment.synced < segment.valid:
                sync_or_mark(storage, folder, boot_id, segment.base_offset, segment.fd)
                segment.synced = segment.valid
        if not (self._found.created and self._found.epochs_lost):  # else saving the first epoch did
            storage.fsync_folder(folder)
        point = RecoveryPoint(
            active.base_offset,
            active.valid,
            log_end,
            *order,
            self._found.append_timestamp,
            self._ask.boot_id,
        )
        self._found.point_file.write(point, durable=True)
        return point
