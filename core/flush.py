"""Forces the log to the device, by a job that another thread may run.

    begin     this thread    what is dirty now, and the recovery point that it will have reached
    run       any thread     fdatasync of the segments, fsync of the folder: system calls only
    finish    this thread    `durable` and the recovery point move; failed segments are rescued

One job at a time: two fsyncs of one descriptor share its error report, and the first would eat it.
Indexes, snapshots and the point itself go along now and then, which only bounds the work of a
recovery: it checks all of them.

Owns `SyncJob`, `durable`, the recovery point and the upkeep of snapshots. Holds no thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from penstock.core.aborted import AbortedWriter, txn_path
from penstock.core.chain import Chain
from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.index import index_paths
from penstock.core.indexrestoring import PREPARED_SUFFIX
from penstock.core.logconfig import LogConfig
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import PointFile, RecoveryPoint
from penstock.core.rescue import write_mark
from penstock.core.segment import OpenSegment
from penstock.core.snapshots import Snapshots, snapshot_path
from penstock.core.storage import Storage

logger = logging.getLogger("penstock.core.log")

INDEX_SYNC_ENTRIES: Final = 4096
"""Index entries of the active segment after which a sync includes its index. After a power cut a
recovery reads the headers of at most this many intervals of log (64 MiB) again."""

POINT_SYNC_EVERY: Final = 64
POINT_SYNC_BYTES: Final = 16 << 20
"""A sync takes the recovery point along once so many were written to its file since, or one that is
so far ahead. After a power cut a recovery checks this much more, of each log, than it had to."""

WRITEBACK_BYTES: Final = 8 << 20
"""So much that came together is begun to be written to the device. Left to the kernel, half a
minute's worth or a whole segment goes at once, and other syncs of the device wait behind it."""


class Writeback(NamedTuple):
    """A range of bytes for the kernel to begin to write. Any thread may call `run`, or none: a sync
    writes the rest. A descriptor that was closed meanwhile does no harm."""

    storage: Storage
    fd: int
    position: int
    length: int

    def run(self) -> None:
        self.storage.begin_writeback(self.fd, self.position, self.length)


@dataclass(slots=True)
class SyncJob:
    """Made by `Log.begin_sync`, given back to `Log.finish_sync`. In between `run` may be called
    once, in any thread: it makes system calls only, on descriptors that the log keeps open."""

    storage: Storage
    folder: str
    point: RecoveryPoint
    targets: list[tuple[OpenSegment, int]]
    derived: list[str]
    folder_changed: bool
    failed: list[OpenSegment] = field(default_factory=list)
    error: StorageError | None = None
    folder_error: StorageError | None = None
    aborted: set[int] = field(default_factory=set)
    """Segments whose `.txn` belongs to this sync. The file must be on the device before the
    recovery point passes its markers, since a recovery does not look for them below."""
    indexes: list[int] = field(default_factory=list)
    """Segments whose indexes were made again, and are to come into place."""
    ran: bool = False
    seconds: float = 0.0
    """How long `run` took, told by who ran it."""

    def run(self) -> None:
        """Never raises: what failed is kept for `finish_sync`."""
        for segment, _ in self.targets:
            try:
                self.storage.fdatasync(segment.fd)
            except StorageError as error:
                self.failed.append(segment)
                self.error = error
                self._mark(segment.base_offset)
        if self.folder_changed:
            try:
                self.storage.fsync_folder(self.folder)
            except StorageError as error:
                self.folder_error = error
        for base in sorted(self.aborted):
            try:
                self.storage.sync_file(txn_path(self.folder, base))
            except StorageError as error:
                self.folder_error = error
        for path in self.derived:
            try:
                self.storage.sync_file(path)
            except StorageError:
                # Indexes, snapshots and the point only save work to recovery, which checks them.
                continue
        try:
            for base in self.indexes:
                for path in index_paths(self.folder, base):
                    self.storage.sync_file(path + PREPARED_SUFFIX)
        except StorageError as error:
            logger.warning("%s: indexes not made again: %s", self.folder, error)
            self.indexes = []
        self.ran = True

    def _mark(self, base_offset: int) -> None:
        """At once: the process may die before `finish_sync` comes to the rescue."""
        try:
            write_mark(self.storage, self.folder, self.point.boot_id, [base_offset])
        except StorageError as error:
            logger.error(
                "%s: failed fsync not marked: %s", self.folder, error, extra={"folder": self.folder}
            )


class Syncs:
    """The synced part of a log, and the sync job that is under way."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        chain: Chain,
        point_file: PointFile,
        aborted: AbortedWriter,
        *,
        durable: int,
        point: RecoveryPoint,
        is_settled: bool,
        batches: int,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._chain = chain
        self._point_file = point_file
        self._aborted = aborted
        self._snapshots = Snapshots(storage, folder)
        # Those of a process that was killed may not be on the device yet.
        self._fresh_snapshots = list(self._snapshots.offsets)
        self._fresh_points = 0  # written since the file was last synced
        self._kept = point if is_settled else None  # the file on the device has it, or an older one
        self._point = point
        self._settled = point if is_settled else None
        chain.folder_changed = not is_settled
        self.committed: int | None = None
        """An offset to which the log may be truncated, where that is less than the synced end.
        Snapshots from there on do not make older ones needless."""
        self._left = 0  # no point that a power cut may bring back names a segment below this one
        self.durable = durable
        self.job: SyncJob | None = None
        self.batches_above_point = batches
        self.batches_above_snapshot = batches

    def due(self, config: LogConfig, log_end: int, seconds_since_last: float) -> bool:
        if self.job is not None:
            return False
        if self._chain.restoring.wants_sync:
            return True
        return self.durable != log_end and (
            config.flush == "batch"
            or bool(self._chain.closed)
            or self.batches_above_point >= config.recovery_batches_max
            or (config.flush == "interval" and seconds_since_last >= config.flush_interval)
        )

    def is_settled(self, point: RecoveryPoint) -> bool:
        """Whether nothing has happened since a clean close left the log at this very point."""
        return point == self._settled == self._point and not self._chain.folder_changed

    def begin(self, point: RecoveryPoint) -> SyncJob | None:
        """A job for all that is appended; None if all of it is on the device."""
        if self.job is not None:
            raise StorageError(
                f"a sync of {self._folder} is under way: finish it first", retriable=True
            )
        chain = self._chain
        targets, indexes = chain.unsynced(), chain.restoring.take_prepared()
        is_clean = not (targets or indexes or chain.folder_changed)
        if is_clean and self.durable == point.offset:
            return None
        for segment, _ in targets:
            flush_index(segment, self._folder)
        self._aborted.flush()
        self.job = SyncJob(
            storage=self._storage,
            folder=self._folder,
            point=point,
            targets=targets,
            derived=self._derived(),
            folder_changed=chain.folder_changed,
            aborted=self._aborted.take_unsynced(),
            indexes=indexes,
        )
        chain.folder_changed = False
        self.batches_above_point = 0
        return self.job

    def _derived(self) -> list[str]:
        chain, folder = self._chain, self._folder
        paths = [snapshot_path(folder, offset) for offset in self._fresh_snapshots]
        for segment in chain.closed:
            paths.extend(index_paths(folder, segment.base_offset))
        index = chain.active.index
        if index.entries - index.synced_entries >= INDEX_SYNC_ENTRIES:
            paths.extend(index_paths(folder, chain.active.base_offset))
            index.synced_entries = index.entries
        if self._is_point_due():
            paths.append(self._point_file.path)
            self._fresh_points, self._kept = 0, self._point
        self._fresh_snapshots = []
        return paths

    def _is_point_due(self) -> bool:
        """Its own sync costs what that of the segment does."""
        point, kept = self._point, self._kept
        return self._fresh_points > 0 and (
            kept is None
            or self._fresh_points >= POINT_SYNC_EVERY
            or point.segment_base != kept.segment_base
            or point.position - kept.position >= POINT_SYNC_BYTES
        )

    def finish(
        self,
        job: SyncJob,
        rescue: Callable[[list[OpenSegment]], None],
        new_point: Callable[[], RecoveryPoint],
    ) -> None:
        """Takes over the result of a job. Raises a retriable `StorageError` if some of it was not
        even begun: the caller asks for a sync again. After any other error the log must go offline.
        """
        if job is not self.job or not job.ran:
            raise ValueError("finish_sync wants the job that begin_sync gave, after it ran")
        self.job = None
        self._install(job.indexes)
        if job.folder_error is not None:
            self._aborted.unsynced |= job.aborted
        if job.folder_error is not None and not job.folder_error.retriable:
            raise job.folder_error
        for segment, reached in job.targets:
            segment.synced = reached
        point = job.point
        if job.failed:  # `synced` is not true of them before the rescue
            logger.error(
                "%s: a sync failed: %s", self._folder, job.error, extra={"folder": self._folder}
            )
            try:
                rescue(job.failed)
            except StorageError as error:
                raise LogOfflineError(str(error)) from error
            if not self._chain.unsynced():
                point = new_point()
        elif job.folder_error is not None:
            self._chain.folder_changed = True
            raise job.folder_error
        self._chain.retire()
        self.durable = max(self.durable, point.offset)
        self._point = point
        self.save_point(point)

    def _install(self, indexes: list[int]) -> None:
        try:
            self._chain.restoring.install(self._chain.bases, indexes)
        except StorageError as error:  # look-ups go without, and the next open makes them again
            logger.warning("%s: indexes not put in place: %s", self._folder, error)

    def move(self, point: RecoveryPoint) -> None:
        """Set `durable` and the recovery point, on the device: around a truncation."""
        self._point_file.write(point, durable=True)
        self.durable = point.offset
        self._point = self._kept = point
        self._left = min(self._left, point.segment_base)

    def restart(self, point: RecoveryPoint) -> None:
        """Records that the log is empty and begins at this point."""
        self.move(point)
        self._snapshots.list_again()
        self._fresh_snapshots = []
        self._fresh_points = self.batches_above_point = self.batches_above_snapshot = 0

    @property
    def _settled_to(self) -> int:
        return self.durable if self.committed is None else min(self.durable, self.committed)

    def leave(self, end: int) -> None:
        """Prepares for segments below `end` to go or change: no recovery point names one, not even
        after a power cut. A segment begins at `end`, and everything below it is on the device.

        Raises a retriable `StorageError` while a sync is under way that began in one.
        """
        if self._left >= end:
            return
        if self.job is not None and self.job.point.segment_base < end:
            raise StorageError(
                f"a sync of {self._folder} is under way that began below offset {end}: finish it "
                "first",
                retriable=True,
            )
        point = self._point
        if point.segment_base < end:  # it is at the end of a segment that was closed since
            self._storage.fsync_folder(self._folder)  # the next one's name may not be there yet
            point = replace(point, segment_base=end, position=0, offset=end)
        for durable in (False, True):  # both slots
            self._point_file.write(point, durable=durable)
        self._point, self._left = point, point.segment_base

    def keep_producers(self, end: int) -> bool:
        """Returns whether the device keeps the producer state below `end` without the batches
        there. A good snapshot of the durable log at `end` or above keeps it."""
        found = self._snapshots.newest(self._settled_to)
        if found is None or found < end:
            return False
        self._storage.sync_file(snapshot_path(self._folder, found))
        return True

    def forget_snapshots(self) -> None:
        """Some were removed from the folder."""
        self._snapshots.list_again()

    def sync_snapshots(self) -> None:
        """Those that no sync has taken along yet: what they say of producers from before the log
        start is nowhere else."""
        for offset in self._fresh_snapshots:
            self._storage.sync_file(snapshot_path(self._folder, offset))
        self._fresh_snapshots = []

    def save_point(self, point: RecoveryPoint, *, durable: bool = False) -> None:
        """Write the recovery point, and remove the snapshots that it makes needless."""
        try:
            self._point_file.write(point, durable=durable)
            self._fresh_points += 1
            self._snapshots.prune(self._settled_to)
        except StorageError as error:
            if not error.retriable:
                raise
            # The old point stays: a recovery reads more than it would have to.
            logger.warning(
                "%s: recovery point not written: %s",
                self._folder,
                error,
                extra={"folder": self._folder},
            )

    def snapshot(self, producers: ProducerTable, log_end: int, *, durable: bool = False) -> None:
        """Writes the producer state. A failure is only logged: it costs recovery time. `durable`
        syncs the file at once, for a recovery point that is there already or soon.

        An existing snapshot is not replaced. It may be on the device, and it may be the only one
        with producers from before the log start.
        """
        try:
            if not self._snapshots.has(log_end):
                self._snapshots.write(producers, log_end, durable=durable)
        except StorageError as error:
            logger.warning(
                "%s: no producer snapshot: %s", self._folder, error, extra={"folder": self._folder}
            )
            return
        self.batches_above_snapshot = 0
        self._fresh_snapshots.append(log_end)
        self._chain.folder_changed = True


def flush_index(segment: OpenSegment, folder: str) -> None:
    """Indexes only help: what cannot be written stays in memory and goes with the next entries."""
    try:
        segment.index.flush()
    except StorageError as error:
        logger.warning(
            "%s: index not written, it lags behind: %s", folder, error, extra={"folder": folder}
        )
