"""Opening a log: find its end, trust nothing above the recovery point, report what was lost.

    boot      where the first bad batch stands      what happens
    same      below the published log end           offline, file kept: only damage explains it
    same      above it                              a torn append of a killed writer: cut
    another   (the scan begins at the point)        the power cut took it: cut, report, new epoch
    any       below the recovery point              not looked for; where it is met: offline
    any       a version of the future               offline, file kept

First everything is read, then judged, and only then is the log changed; every change leaves one
that a second recovery takes to the same end (rule 14, invariant 9). The cost follows what stands
above the recovery point and above the newest snapshot below it: closed segments below are known by
name only.

Owns the judgement. The cut itself is `truncation`'s, the rescue after a failed fsync `rescue`'s.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from penstock.core.epochs import EpochCache, load_epochs, save_epochs
from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.index import IndexWriter
from penstock.core.logconfig import LogConfig
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import PointFile, RecoveryPoint, check_boot_id
from penstock.core.replay import (
    damaged,
    rebuild_epochs,
    rebuild_producers,
    restore_index,
    restore_missing_indexes,
)
from penstock.core.rescue import (
    RESCUE_SUFFIX,
    dirty_again,
    read_mark,
    remove_mark,
    rescue_segment,
    sync_or_mark,
)
from penstock.core.segment import OpenSegment, Scan, Stop, batch_time, list_segments, segment_path
from penstock.core.snapshots import remove_snapshots_above
from penstock.core.storage import READ_WRITE, Storage, write_zeros
from penstock.core.truncation import Tail, create_segment, examine_tail, remove_segments

logger = logging.getLogger("penstock.core.recovery")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log found and did."""

    reason: str
    """`created`, `clean` (nothing stood above the recovery point), `recovered`, or `cut`."""
    log_start: int
    log_end: int
    leader_epoch: int
    same_boot: bool
    epoch_bumped: bool
    lost: tuple[int, int] | None
    """First lost offset and the end of the loss as far as the remains tell; None: nothing lost."""
    lost_bytes: int
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
        if self.segments_rescued:
            text += f"; {self.segments_rescued} segments rescued after a failed fsync"
        return text


@dataclass(slots=True)
class Recovered:
    """The parts of an open log, as `Log` takes them over."""

    bases: list[int]
    active: OpenSegment
    unsynced: list[OpenSegment]
    log_end: int
    durable: int
    order: tuple[int, int]
    append_timestamp: int
    producers: ProducerTable
    epochs: EpochCache
    point_file: PointFile
    batches_above_point: int


class Recovery:
    """One opening of one log: `run` it once."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        config: LogConfig,
        *,
        owner: tuple[bytes, int],
        generation: int,
        boot_id: str,
        published: int | None,
        node_clean: bool,
    ) -> None:
        check_boot_id(boot_id)
        self._storage = storage
        self._folder = folder
        self._config = config
        self._owner = owner
        self._generation = generation
        self._boot_id = boot_id
        self._published = published
        self._node_clean = node_clean
        self._point_file = PointFile(storage, folder)
        self._scanned: list[OpenSegment] = []
        self._batches = 0
        self._bytes = 0
        self._tail = Tail(0, 0)
        self._lost_bytes = 0
        self._lost_to = 0

    def run(self) -> tuple[Recovered, RecoveryReport]:
        started = time.monotonic()
        try:
            self._read()
            cause = self._judge()
            recovered, bumped, rescued = self._change(cause)
        except Exception as error:
            for segment in self._scanned:
                self._storage.close(segment.fd)
            if isinstance(error, StorageError) and not error.retriable:
                raise LogOfflineError(f"cannot open the log in {self._folder}: {error}") from error
            raise
        reason = "recovered" if self._batches else "clean"
        report = RecoveryReport(
            reason="created" if self._created else "cut" if cause else reason,
            log_start=recovered.bases[0],
            log_end=recovered.log_end,
            leader_epoch=recovered.epochs.latest,
            same_boot=self._same_boot,
            epoch_bumped=bumped,
            lost=(recovered.log_end, max(recovered.log_end, self._lost_to)) if cause else None,
            lost_bytes=self._lost_bytes,
            cause=cause,
            segments_removed=len(self._later) if cause else 0,
            segments_rescued=rescued,
            batches_scanned=self._batches,
            bytes_scanned=self._bytes,
            seconds=time.monotonic() - started,
        )
        if cause:
            logger.warning("%s: %s", self._folder, report.summary())
        return recovered, report

    # ---- read

    def _read(self) -> None:
        storage, folder = self._storage, self._folder
        self._point = self._point_file.load()
        self._created = self._prepare()
        self._bases = bases = list_segments(storage, folder)
        self._same_boot = self._published is not None or (
            self._point is not None and self._point.boot_id == self._boot_id
        )
        self._marked = read_mark(storage, folder, self._boot_id, same_boot=self._same_boot)
        epochs = load_epochs(storage, folder)
        self._epochs_lost = epochs is None
        self._epochs = rebuild_epochs(storage, folder, bases) if epochs is None else epochs
        self._epochs_known = self._epochs.entries
        start = self._point or RecoveryPoint(bases[0], 0, bases[0], 0, 0, 0, self._boot_id)
        if start.segment_base not in bases:
            raise LogOfflineError(
                f"{segment_path(folder, start.segment_base)} is gone, but the recovery point names "
                "it. Restore it, or restore the partition from a replica or a backup."
            )
        self._start = start
        interval = self._config.index_interval_bytes
        restore_missing_indexes(storage, folder, bases, start.segment_base, interval)
        kept = self._config.producer_batches_kept
        self._producers = rebuild_producers(storage, folder, bases, start.offset, kept)
        self._scan(start)
        if self._point is None:
            # All of the log was just read, but a snapshot may know producers from before its start.
            self._producers = rebuild_producers(storage, folder, bases, self._end.offset, kept)

    def _prepare(self) -> bool:
        """Have a folder with a segment, without leftovers; whether the log is new."""
        storage, folder = self._storage, self._folder
        if not storage.exists(folder):
            storage.makedirs(folder)
            storage.fsync_folder(folder.rpartition("/")[0] or "/")
        for name in storage.listdir(folder):
            if name.endswith((".tmp", RESCUE_SUFFIX)):
                storage.unlink(f"{folder}/{name}")
        if list_segments(storage, folder):
            return False
        if self._point is not None:
            raise LogOfflineError(
                f"{folder} has a recovery point but no segment. Restore the partition from a "
                "replica or a backup, or remove the folder to begin anew."
            )
        fresh = create_segment(storage, folder, 0, self._config.index_interval_bytes)
        storage.close(fresh.fd)
        storage.fsync_folder(folder)
        return True

    def _scan(self, start: RecoveryPoint) -> None:
        """Verify every batch from the start point on, through as many segments as continue it."""
        offset, order = start.offset, (start.leader_epoch, start.generation)
        self._append_timestamp = start.append_timestamp
        first = self._bases.index(start.segment_base)
        for i, base in enumerate(self._bases[first:], first):
            following = self._bases[i + 1] if i + 1 < len(self._bases) else None
            segment = self._open(base, start if base == start.segment_base else None)
            scan = self._end = Scan(
                self._storage,
                segment.fd,
                position=segment.valid,
                offset=offset,
                order=order,
                owner=self._owner,
                until=following,
                bodies=True,
            )
            self._scan_segment(scan, segment, replay=self._point is not None)
            offset, order = scan.offset, scan.order
            if following is not None and offset > following:
                raise damaged(
                    segment_path(self._folder, base), scan, f"the segment at offset {following}"
                )
            if offset != following:
                break
        self._later = [base for base in self._bases if base > self._scanned[-1].base_offset]

    def _open(self, base: int, start: RecoveryPoint | None) -> OpenSegment:
        storage, folder, interval = self._storage, self._folder, self._config.index_interval_bytes
        fd = storage.open(segment_path(folder, base), READ_WRITE)
        segment = OpenSegment(base, fd, IndexWriter(storage, folder, base, interval))
        self._scanned.append(segment)
        segment.allocated = storage.size(fd)
        if start is None:
            segment.index.restart()
            return segment
        segment.valid = segment.synced = start.position
        segment.index = restore_index(
            storage, folder, base, fd, interval, position=start.position, until=start.offset
        )
        for _, head in Scan(storage, fd, position=0, offset=base, until=start.offset):
            segment.first_append = head.append_timestamp
            break
        return segment

    def _scan_segment(self, scan: Scan, segment: OpenSegment, *, replay: bool) -> None:
        for position, head in scan:
            segment.index.note(head.base_offset, position, batch_time(head))
            if segment.first_append is None:
                segment.first_append = head.append_timestamp
            self._append_timestamp = max(self._append_timestamp, head.append_timestamp)
            self._epochs.assign(head.leader_epoch, head.base_offset)
            if replay:
                self._producers.replay(head)
        self._batches += scan.batches
        self._bytes += scan.position - segment.valid
        segment.valid = scan.position

    # ---- judge

    def _judge(self) -> str:
        """Why the log has to be cut where the scan ended; empty if it simply ends there. Raises
        `LogOfflineError` where a cut would hide damage."""
        scan, last = self._end, self._scanned[-1]
        path = segment_path(self._folder, last.base_offset)
        if scan.stop is Stop.VERSION:
            raise LogOfflineError(f"{path}: {scan.detail}. Run the release that wrote it.")
        if self._published is not None and scan.offset < self._published:
            raise damaged(path, scan, f"offset {self._published}, published in this boot")
        whole = scan.stop in (Stop.END, Stop.ZERO) and not self._later
        if whole and self._node_clean and not self._batches:
            return ""
        self._tail = examine_tail(self._storage, last.fd, last.valid, self._owner)
        self._lost_bytes = self._tail.end - last.valid
        if whole and not self._lost_bytes:
            return ""
        if self._point is None and self._later:
            raise damaged(path, scan, f"offset {self._later[-1]}, and the recovery point is lost")
        self._lost_to = max(self._tail.next_offset, *self._later, 0)
        detail = f" ({scan.detail})" if scan.detail else ""
        behind = ", with bytes behind them" if scan.stop is Stop.ZERO else ""
        return f"{path} has at byte {scan.position} {scan.stop.value}{detail}{behind}"

    # ---- change

    def _change(self, cause: str) -> tuple[Recovered, bool, int]:
        storage, folder = self._storage, self._folder
        log_end, order = self._end.offset, self._end.order
        last = self._scanned[-1]
        if cause:
            remove_segments(storage, folder, self._later)
            if not last.valid or last.base_offset not in self._marked:
                write_zeros(storage, last.fd, last.valid, self._tail.end)
                sync_or_mark(storage, folder, self._boot_id, last.base_offset, last.fd)
                last.synced = last.valid
        rescued = self._rescue()
        for segment in self._scanned:
            segment.index.settle(durable=not self._same_boot)
        bumped = self._bump(cause, log_end, order)
        folder_changed = remove_snapshots_above(storage, folder, log_end) or rescued > 0
        active = last
        if last.valid and (cause or last.base_offset in self._marked):
            active = create_segment(storage, folder, log_end, self._config.index_interval_bytes)
            folder_changed = True
        if folder_changed:
            storage.fsync_folder(folder)
        remove_mark(storage, folder)
        durable = self._start.offset
        if not self._same_boot or self._point is None:
            durable = log_end
            self._sync_all(active, log_end, order)
        unsynced = []
        for segment in self._scanned:
            if segment.synced < segment.valid:
                dirty_again(storage, segment.fd, segment.synced, segment.valid)
            if segment is active:
                continue
            if segment.synced < segment.valid:
                unsynced.append(segment)
            else:
                storage.close(segment.fd)
        recovered = Recovered(
            bases=list_segments(storage, folder),
            active=active,
            unsynced=unsynced,
            log_end=log_end,
            durable=durable,
            order=order,
            append_timestamp=self._append_timestamp,
            producers=self._producers,
            epochs=self._epochs,
            point_file=self._point_file,
            batches_above_point=self._batches if durable < log_end else 0,
        )
        return recovered, bumped, rescued

    def _rescue(self) -> int:
        """Redo what a process died in between a failed fsync and the rescue (rule 16)."""
        rescued = 0
        for segment in self._scanned:
            if segment.base_offset in self._marked and segment.valid:
                rescue_segment(
                    self._storage,
                    self._folder,
                    segment.base_offset,
                    segment.fd,
                    segment.valid,
                    self._owner,
                )
                segment.synced = segment.valid
                rescued += 1
        return rescued

    def _bump(self, cause: str, log_end: int, order: tuple[int, int]) -> bool:
        """Begin a new leader epoch where offsets may be given a second time (rule 15), and where
        batches of this process would fall behind the order of what is there."""
        epochs = self._epochs
        newest = max(epochs.latest, order[0])
        epochs.truncate_end(log_end + 1)
        bump = (
            self._epochs_lost
            or (not self._same_boot and not self._node_clean)
            or (bool(cause) and self._published is None)
            or (newest, self._generation) < order
        )
        if bump:
            epochs.assign(newest + 1, log_end)
        if self._epochs_lost or epochs.entries != self._epochs_known:
            save_epochs(self._storage, self._folder, epochs)
        return bump and not self._created

    def _sync_all(self, active: OpenSegment, log_end: int, order: tuple[int, int]) -> None:
        """After a reboot, what was read came from the device; one cheap sync makes it certain."""
        for segment in self._scanned:
            if segment.synced < segment.valid:
                sync_or_mark(
                    self._storage, self._folder, self._boot_id, segment.base_offset, segment.fd
                )
                segment.synced = segment.valid
        self._storage.fsync_folder(self._folder)
        point = RecoveryPoint(
            active.base_offset,
            active.valid,
            log_end,
            *order,
            self._append_timestamp,
            self._boot_id,
        )
        self._point_file.write(point, durable=True)
