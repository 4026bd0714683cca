"""The reading half of a recovery: examines a partition's folder, and finds the end of its log.

Verifies every batch from the recovery point on, through all segments that continue each other.
Derived state (indexes, producers, epochs) follows along. No byte of a segment is changed here; a
new folder gets its first one.

Owns the findings. `recovery` decides their meaning and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.epochs import load_epochs
from penstock.core.errors import LogOfflineError
from penstock.core.index import IndexWriter
from penstock.core.indexrestoring import missing_indexes
from penstock.core.logconfig import LogConfig
from penstock.core.logrestart import wipe
from penstock.core.logstart import first_live, load_start
from penstock.core.recoverypoint import PointFile, RecoveryPoint
from penstock.core.replay import (
    damaged,
    rebuild_epochs,
    rebuild_producers,
    restore_index,
)
from penstock.core.rescue import RESCUE_SUFFIX, read_mark
from penstock.core.segment import OpenSegment, Scan, batch_time, list_segments, segment_path
from penstock.core.snapshots import load_snapshot
from penstock.core.storage import READ_WRITE, TEMPORARY_SUFFIX, Storage
from penstock.core.swapping import CLEANED_SUFFIX, finish_swaps
from penstock.core.truncation import create_segment


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The arguments of `Log.open`."""

    storage: Storage
    folder: str
    config: LogConfig
    owner: tuple[bytes, int]
    generation: int
    boot_id: str
    published: int | None
    node_clean: bool
    replicated: bool = False
    """Epochs are the controller's, and compaction in the leader's log leaves gaps at any place."""


class Survey:
    """The findings of a recovery, complete after `read`. `end` is the scan that found the end of
    the log, in the last of the `scanned` segments. `later` are segments that do not continue it.
    `dead` ones lie below the log start, and `unindexed` ones below the recovery point have lost an
    index."""

    def __init__(self, request: OpenRequest) -> None:
        self._ask = request
        self.point_file = PointFile(request.storage, request.folder)
        self.scanned: list[OpenSegment] = []
        self.batches = 0
        self.bytes = 0

    def read(self) -> None:
        storage, folder = self._ask.storage, self._ask.folder
        self.point = self.point_file.load()
        self.published = self._ask.published
        self.is_copy = self.point_file.is_copy and not self._ask.replicated
        if self.is_copy:
            self.published = None  # it was said of the log that was here before
        if self.point is not None and self.point.beginning:
            self.point = self._begin(self.point)
        self.created = self._prepare()
        bases = list_segments(storage, folder)
        persisted = load_start(storage, folder)
        live = first_live(bases, persisted)
        if live and not self._is_kept(bases[live], persisted):
            live = 0  # what they say of their producers is nowhere else: the next trim sees to it
        self.dead, self.bases = bases[:live], bases[live:]
        bases = self.bases
        self.log_start = max(persisted, bases[0])
        self.same_boot = not self.is_copy and (
            self._ask.published is not None
            or (self.point is not None and self.point.boot_id == self._ask.boot_id)
        )
        self.marked = read_mark(storage, folder, self._ask.boot_id, same_boot=self.same_boot)
        epochs = load_epochs(storage, folder)
        self.epochs_lost = epochs is None
        self.epochs = rebuild_epochs(storage, folder, bases) if epochs is None else epochs
        self.epochs_known = self.epochs.entries
        start = self.point or RecoveryPoint(bases[0], 0, bases[0], 0, 0, 0, self._ask.boot_id)
        if start.segment_base not in bases:
            raise LogOfflineError(
                f"{segment_path(folder, start.segment_base)} is gone, but the recovery point names "
                "it. Restore it, or restore the partition from a replica or a backup."
            )
        self.start = start
        self.unindexed = missing_indexes(storage, folder, bases, start.segment_base)
        kept = self._ask.config.producer_batches_kept
        self.producers, self.replayed_from = rebuild_producers(
            storage, folder, bases, start.offset, kept
        )
        self._scan(start)
        known = self.point is not None and (
            not bases[0] or load_snapshot(storage, folder, start.offset, kept) is not None
        )
        if not known:
            # A newer snapshot may know producers from before the log's start.
            self.producers, self.replayed_from = rebuild_producers(
                storage, folder, bases, self.end.offset, kept
            )

    def _begin(self, point: RecoveryPoint) -> RecoveryPoint:
        """Finishes a log that begins again, and returns the point from then on. The published end
        may belong to either log."""
        interval = self._ask.config.index_interval_bytes
        fresh = wipe(self._ask.storage, self._ask.folder, point.offset, interval)
        self._ask.storage.close(fresh.fd)
        self.published = None
        point = replace(point, beginning=False)
        self.point_file.write(point, durable=True)
        return point

    def _is_kept(self, base: int, log_start: int) -> bool:
        """Returns whether a good snapshot has the producers below offset `base`, where a segment
        begins, also after a power cut. If a leader may have the log truncated, it has them after
        that too. Only the log start is certain to be committed then."""
        kept, end = self._ask.config.producer_batches_kept, 1 << 63
        limit = end if self.point is None else self.point.offset
        if self._ask.replicated:
            limit = min(limit, log_start)
        found = load_snapshot(self._ask.storage, self._ask.folder, limit, kept)
        return found is not None and found[1] >= base

    def _prepare(self) -> bool:
        """Have a folder with a segment, without leftovers; whether the log is new."""
        storage, folder = self._ask.storage, self._ask.folder
        if not storage.exists(folder):
            storage.makedirs(folder)
            storage.fsync_folder(folder.rpartition("/")[0] or "/")
        finish_swaps(storage, folder)
        for name in storage.listdir(folder):
            if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX, RESCUE_SUFFIX)):
                storage.unlink(f"{folder}/{name}")
        if list_segments(storage, folder):
            return False
        if self.point is not None:
            raise LogOfflineError(
                f"{folder} has a recovery point but no segment. Restore the partition from a "
                "replica or a backup, or remove the folder to begin again."
            )
        fresh = create_segment(storage, folder, 0, self._ask.config.index_interval_bytes)
        storage.close(fresh.fd)
        # Its folder is fsynced with its first epoch, which comes before the recovery point.
        return True

    def _scan(self, start: RecoveryPoint) -> None:
        """Verify every batch from the start point on, through as many segments as continue it."""
        offset, order = start.offset, (start.leader_epoch, start.generation)
        self.append_timestamp = start.append_timestamp
        first = self.bases.index(start.segment_base)
        for i, base in enumerate(self.bases[first:], first):
            following = self.bases[i + 1] if i + 1 < len(self.bases) else None
            segment = self._open(base, start if base == start.segment_base else None)
            scan = self.end = Scan(
                self._ask.storage,
                segment.fd,
                position=segment.valid,
                offset=offset,
                order=order,
                owner=self._ask.owner,
                until=start.offset if start.truncating else following,
                bodies=True,
                gaps=self._ask.replicated,
            )
            self._scan_segment(scan, segment, replay=self.point is not None)
            offset, order = scan.offset, scan.order
            if following is not None and offset > following:
                raise damaged(
                    segment_path(self._ask.folder, base), scan, f"the segment at offset {following}"
                )
            if offset != following:
                break
        self.later = [base for base in self.bases if base > self.scanned[-1].base_offset]

    def _open(self, base: int, start: RecoveryPoint | None) -> OpenSegment:
        storage, folder, interval = (
            self._ask.storage,
            self._ask.folder,
            self._ask.config.index_interval_bytes,
        )
        fd = storage.open(segment_path(folder, base), READ_WRITE)
        segment = OpenSegment(base, fd, IndexWriter(storage, folder, base, interval))
        self.scanned.append(segment)
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
            self.append_timestamp = max(self.append_timestamp, head.append_timestamp)
            self.epochs.assign(head.leader_epoch, head.base_offset)
            if replay:
                self.producers.replay(head)
        self.batches += scan.batches
        self.bytes += scan.position - segment.valid
        segment.valid = scan.position
