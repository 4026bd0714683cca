"""The log of one partition: the only thing that appends to its segments.

    append   verify each batch, judge its producer and sequence, stamp a private header copy;
             one pwritev for all that were accepted; then indexes, state and answers
    roll     close the active segment and begin the next, by size before an append or by age
    sync     begin_sync (this thread) -> job.run (any thread) -> finish_sync (this thread)

Invariants: log_start <= durable <= log_end; the active segment is the last one; one append call
lies in one segment; append timestamps never fall; nothing is visible to the caller's readers before
the call returned. An append that raises has consumed nothing.

Owns the order of these steps and the state between them. No threads, no sockets, no clock: time is
an argument. File access only through `storage`, one open descriptor a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.epochs import EpochCache
from penstock.core.errors import (
    CorruptBatchError,
    ErrorCode,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from penstock.core.flush import SyncJob, remove_mark, rescue_segment, write_mark
from penstock.core.header import (
    FLAG_APPEND_TIME,
    HEADER_BYTES,
    BatchHeader,
    body_is_good,
    checked,
    stamp,
)
from penstock.core.index import FLUSH_ENTRIES, index_paths
from penstock.core.logconfig import LogConfig
from penstock.core.lookup import find_timestamp, read_batches
from penstock.core.producers import Answer, ProducerTable
from penstock.core.recovery import Recovered, Recovery, RecoveryReport
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.segment import OpenSegment
from penstock.core.snapshots import prune_snapshots, snapshot_path, write_snapshot
from penstock.core.storage import Storage, write_all, write_zeros
from penstock.core.truncation import create_segment

__all__ = ["AppendResult", "Log", "LogConfig", "RecoveryReport", "SyncJob"]

logger = logging.getLogger("penstock.core.log")

INDEX_SYNC_ENTRIES: Final = 4096
"""Index entries of the active segment after which a sync takes its index along: after a power cut
at most this many intervals of log (64 MiB) are walked again for their headers."""

POINT_SYNC_EVERY: Final = 64
"""Under `flush="batch"`, every so many syncs take the recovery point file along."""

# Refusals that do not poison what follows: the batch is in the log or fenced, or poisoned already.
_HARMLESS: Final = frozenset(
    {ErrorCode.STALE_PRODUCER_EPOCH, ErrorCode.POISONED, ErrorCode.DUPLICATE_TOO_OLD}
)


class AppendResult(NamedTuple):
    """The answer to one batch. Refused (`error` not NONE): offsets are -1 and it is not in the log.
    `duplicate`: it was in the log already, at these offsets."""

    base_offset: int
    next_offset: int
    append_timestamp: int
    error: int
    duplicate: bool
    message: str


class Log:
    """See the module. Make one by `Log.open`; one thread calls it."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        config: LogConfig,
        recovered: Recovered,
        *,
        owner: tuple[bytes, int],
        generation: int,
        boot_id: str,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._config = config
        self._topic_id, self._partition = self._owner = owner
        self._generation = generation
        self._boot_id = boot_id
        self._bases = recovered.bases
        self._active = recovered.active
        self._sealed = recovered.unsynced
        self._log_end = recovered.log_end
        self._durable = recovered.durable
        self._order = recovered.order
        self._append_timestamp = recovered.append_timestamp
        self._producers = recovered.producers
        self._epochs = recovered.epochs
        self._leader_epoch = recovered.epochs.latest
        self._point_file = recovered.point_file
        self._batches_above_point = recovered.batches_above_point
        self._batches_above_snapshot = recovered.batches_above_point
        # A killed process may have made segments in this boot that no folder fsync has covered.
        self._folder_changed = recovered.durable < recovered.log_end
        self._unsynced_snapshots: list[int] = []
        self._points_unsynced = 0
        self._junk_end = 0  # a failed write may have left bytes between `valid` and here
        self._job: SyncJob | None = None
        self._offline = ""

    @classmethod
    def open(
        cls,
        storage: Storage,
        folder: str,
        config: LogConfig,
        *,
        topic_id: bytes,
        partition: int,
        generation: int,
        now_us: int,
        boot_id: str,
        published: int | None = None,
        node_clean: bool,
    ) -> tuple[Log, RecoveryReport]:
        """Open or create the log in `folder`, recovering it as far as needed.

        `published` is the log end that the state page showed in this same boot, None if that is
        not known; `node_clean` says that the node was shut down cleanly. Raises `LogOfflineError`
        if the log is damaged where it must not be, with its files kept as they are.
        """
        owner = (topic_id, partition)
        recovered, report = Recovery(
            storage,
            folder,
            config,
            owner=owner,
            generation=generation,
            boot_id=boot_id,
            published=published,
            node_clean=node_clean,
        ).run()
        log = cls(
            storage, folder, config, recovered, owner=owner, generation=generation, boot_id=boot_id
        )
        if log.needs_roll(now_us):
            log.roll(now_us)
        return log, report

    # ---- what it is

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def log_start(self) -> int:
        return self._bases[0]

    @property
    def log_end(self) -> int:
        return self._log_end

    @property
    def durable(self) -> int:
        return self._durable

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def segment_base(self) -> int:
        return self._active.base_offset

    @property
    def valid_bytes(self) -> int:
        return self._active.valid

    @property
    def append_timestamp(self) -> int:
        return self._append_timestamp

    @property
    def epochs(self) -> EpochCache:
        return self._epochs

    @property
    def producers(self) -> ProducerTable:
        return self._producers

    @property
    def offline(self) -> str:
        """Why the log takes nothing any more; empty while it does."""
        return self._offline

    def configure(self, config: LogConfig) -> None:
        """Other settings from the next call on. `producer_batches_kept` and the index interval hold
        from the next open and the next segment on."""
        self._config = config

    # ---- append

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        """Append the good ones of these batches, in order; one answer for each.

        Raises a retriable `StorageError` with nothing consumed, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        active, total = self._active, sum(map(len, batches))
        if active.valid and (
            active.valid + total > self._config.segment_bytes
            or (self._config.segment_age is not None and self.needs_roll(now_us))
        ):
            self.roll(now_us)
            active = self._active
        if now_us < self._append_timestamp:
            now_us = self._append_timestamp  # the clock was set back: the log's time stands still
        append_time = self._config.timestamp_type == "append"
        flags = FLAG_APPEND_TIME if append_time else 0
        results: list[AppendResult] = []
        buffers: list[bytearray | memoryview] = []
        notes: list[tuple[int, int, int]] = []
        offset, position = self._log_end, active.valid
        for batch in batches:
            verdict = self._verify(batch)
            if type(verdict) is AppendResult:
                results.append(verdict)
                continue
            private, head = verdict
            answer = self._producers.admit(head, offset, now_us)
            if answer is not None:
                results.append(self._answered(answer, head))
                continue
            stamp(
                private,
                base_offset=offset,
                leader_epoch=self._leader_epoch,
                generation=self._generation,
                append_timestamp=now_us,
                flags=flags,
            )
            buffers.append(private)
            buffers.append(batch[HEADER_BYTES:])
            notes.append((offset, position, now_us if append_time else head.max_timestamp))
            following = offset + head.last_offset_delta + 1
            results.append(AppendResult(offset, following, now_us, 0, False, ""))
            offset = following
            position += head.length
        if buffers:
            self._write(active, buffers, position)
            self._log_end = offset
            self._order = (self._leader_epoch, self._generation)
            self._append_timestamp = now_us
            self._batches_above_point += len(notes)
            self._batches_above_snapshot += len(notes)
            if active.first_append is None:
                active.first_append = now_us
            index = active.index
            for note in notes:
                index.note(*note)
            if index.pending >= FLUSH_ENTRIES:
                self._flush_index(active)
        self._producers.commit()
        return results

    def _verify(self, batch: memoryview) -> tuple[bytearray, BatchHeader] | AppendResult:
        """A private copy of the header and what it says, or the refusal of the batch. All that is
        judged or stamped comes from the copy: the batch itself stands in memory of its producer."""
        private = bytearray(batch[:HEADER_BYTES])
        try:
            head = checked(private)
        except CorruptBatchError as error:
            # Without a header to trust nobody can be poisoned; the sequence gap that this batch
            # leaves refuses what follows.
            return _refusal(ErrorCode.CORRUPT_BATCH, str(error))
        except UnsupportedVersionError as error:
            return _refusal(ErrorCode.UNSUPPORTED_VERSION, str(error))
        if (
            head.topic_id == self._topic_id
            and head.partition == self._partition
            and head.length == len(batch)
            and head.length <= self._config.batch_bytes_max
            and head.base_timestamp <= head.max_timestamp
            and body_is_good(batch, 0, head)
        ):
            return private, head
        self._producers.poison(head.producer_id, head.producer_epoch)
        return self._refuse(batch, head)

    def _refuse(self, batch: memoryview, head: BatchHeader) -> AppendResult:
        """Which of the checks failed, and how to say so."""
        if head.topic_id != self._topic_id:
            return _refusal(
                ErrorCode.WRONG_TOPIC_ID,
                f"the batch is for topic {head.topic_id.hex()}, this log is of "
                f"{self._topic_id.hex()}: was the topic created anew?",
            )
        if head.partition != self._partition:
            return _refusal(
                ErrorCode.UNKNOWN_PARTITION,
                f"the batch is for partition {head.partition}, this log is of {self._partition}",
            )
        if head.length != len(batch):
            return _refusal(
                ErrorCode.CORRUPT_BATCH,
                f"the header says {head.length} bytes, the frame holds {len(batch)}",
            )
        if head.length > self._config.batch_bytes_max:
            return _refusal(
                ErrorCode.BATCH_TOO_LARGE,
                f"the batch has {head.length} bytes, batch_bytes_max is "
                f"{self._config.batch_bytes_max}",
            )
        if head.base_timestamp > head.max_timestamp:
            return _refusal(
                ErrorCode.INVALID_TIMESTAMP,
                f"base timestamp {head.base_timestamp} lies above the maximum "
                f"{head.max_timestamp} of its batch",
            )
        return _refusal(ErrorCode.CORRUPT_BATCH, "the body's checksum is wrong")

    def _answered(self, answer: Answer, head: BatchHeader) -> AppendResult:
        if answer.error is ErrorCode.NONE:
            _, base, following, at, _ = answer
            return AppendResult(base, following, at, 0, True, "")
        if answer.error not in _HARMLESS:
            self._producers.poison(head.producer_id, head.producer_epoch)
        logger.warning("%s: refused: %s", self._folder, answer.message)
        return _refusal(answer.error, answer.message)

    def _write(
        self, active: OpenSegment, buffers: Sequence[bytearray | memoryview], end: int
    ) -> None:
        """One write for all, or none of it happened."""
        storage = self._storage
        try:
            if self._junk_end:
                self._clear_junk(active)
            if end > active.allocated:
                active.reserve(storage, end, self._config.preallocate_bytes)
            write_all(storage, active.fd, buffers, active.valid)
        except StorageError as error:
            self._producers.rollback()
            self._junk_end = max(self._junk_end, end)
            if not error.retriable:
                raise self._go_offline(error) from error
            try:
                self._clear_junk(active)
            except StorageError as second:
                logger.warning("%s: bytes of a failed write stay for now: %s", self._folder, second)
            raise
        active.valid = end

    def _clear_junk(self, active: OpenSegment) -> None:
        """What a failed write left must not look like a batch to a recovery."""
        end = min(self._junk_end, self._storage.size(active.fd))
        if end > active.valid:
            write_zeros(self._storage, active.fd, active.valid, end)
        self._junk_end = 0

    def _flush_index(self, segment: OpenSegment) -> None:
        """Indexes only help: the entries stay in memory and are written with the next ones."""
        try:
            segment.index.flush()
        except StorageError as error:
            logger.warning("%s: index not written, it lags behind: %s", self._folder, error)

    def _go_offline(self, error: Exception) -> LogOfflineError:
        if not self._offline:
            self._offline = f"the log in {self._folder} is offline until it is recovered: {error}"
            logger.error("%s", self._offline)
        return LogOfflineError(self._offline)

    # ---- segments

    def needs_roll(self, now_us: int) -> bool:
        """Whether the active segment has reached its age or size."""
        active, config = self._active, self._config
        if not active.valid or self._offline:
            return False
        if active.valid >= config.segment_bytes:
            return True
        if config.segment_age is None or active.first_append is None:
            return False
        return now_us - active.first_append >= config.segment_age * 1e6

    def roll(self, now_us: int) -> None:
        """Close the active segment and begin the next at the log's end. An empty one stays.

        Raises a retriable `StorageError` with nothing changed, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        active = self._active
        if not active.valid:
            return
        self._folder_changed = True
        try:
            self._clear_junk(active)
            active.index.flush()
            fresh = create_segment(
                self._storage, self._folder, self._log_end, self._config.index_interval_bytes
            )
        except StorageError as error:
            if error.retriable:
                raise
            raise self._go_offline(error) from error
        self._sealed.append(active)
        self._active = fresh
        self._bases.append(fresh.base_offset)
        age = (now_us - (active.first_append or now_us)) / 1e6
        logger.info(
            "%s: segment %d closed with %d bytes after %.0f s",
            self._folder,
            active.base_offset,
            active.valid,
            age,
        )
        self.snapshot()

    def snapshot(self) -> None:
        """Write the producer state at the log's end. A failure is logged: it only costs recovery
        time. Fsynced, and older ones removed, by the next sync."""
        try:
            write_snapshot(self._storage, self._folder, self._producers, self._log_end)
        except StorageError as error:
            logger.warning("%s: no producer snapshot: %s", self._folder, error)
            return
        self._batches_above_snapshot = 0
        self._unsynced_snapshots.append(self._log_end)

    # ---- sync

    def sync_due(self, seconds_since_last: float) -> bool:
        """Whether the flush mode, a closed segment or the bound on recovery asks for a sync."""
        if self._job is not None or self._offline or self._durable == self._log_end:
            return False
        mode = self._config.flush
        return (
            mode == "batch"
            or bool(self._sealed)
            or self._batches_above_point >= self._config.recovery_batches_max
            or (mode == "interval" and seconds_since_last >= self._config.flush_interval)
        )

    def sync(self) -> None:
        """Everything appended is on the device when this returns (rule 16 applied if needed)."""
        job = self.begin_sync()
        if job is not None:
            job.run()
            self.finish_sync(job)

    def begin_sync(self) -> SyncJob | None:
        """What has to be forced to the device for all that is appended now; None if nothing has.

        Run it in any thread, then give it to `finish_sync`; appends may go on meanwhile. One at a
        time: two fsyncs of one descriptor share its error report, and the first one would eat it.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        if self._job is not None:
            raise StorageError(
                f"a sync of {self._folder} is under way: finish it first", retriable=True
            )
        segments = [*self._sealed, self._active]
        targets = [(segment, segment.valid) for segment in segments if segment.synced < segment.valid]
        if not targets and not self._folder_changed and self._durable == self._log_end:
            return None
        for segment, _ in targets:
            self._flush_index(segment)
        if self._batches_above_snapshot >= self._config.snapshot_batches:
            self.snapshot()
        self._job = SyncJob(
            storage=self._storage,
            folder=self._folder,
            point=self._point(),
            targets=targets,
            derived=self._derived(),
            folder_changed=self._folder_changed,
        )
        self._folder_changed = False
        self._batches_above_point = 0
        return self._job

    def _point(self) -> RecoveryPoint:
        return RecoveryPoint(
            self._active.base_offset,
            self._active.valid,
            self._log_end,
            *self._order,
            self._append_timestamp,
            self._boot_id,
        )

    def _derived(self) -> list[str]:
        """Files that only save recovery work: synced now and then, so that it stays bounded."""
        paths = [snapshot_path(self._folder, offset) for offset in self._unsynced_snapshots]
        for segment in self._sealed:
            paths.extend(index_paths(self._folder, segment.base_offset))
        index = self._active.index
        if index.entries - index.synced_entries >= INDEX_SYNC_ENTRIES:
            paths.extend(index_paths(self._folder, self._active.base_offset))
            index.synced_entries = index.entries
        if self._points_unsynced >= (POINT_SYNC_EVERY if self._config.flush == "batch" else 1):
            paths.append(self._point_file.path)
            self._points_unsynced = 0
        self._unsynced_snapshots = []
        return paths

    def finish_sync(self, job: SyncJob) -> None:
        """Take over what a job reached: move `durable` and the recovery point.

        Raises `LogOfflineError` if the log could not be brought to the device.
        """
        if job is not self._job or not job.ran:
            raise ValueError("finish_sync wants the job that begin_sync gave, after it ran")
        self._job = None
        if self._offline:
            raise LogOfflineError(self._offline)
        if job.folder_error is not None:
            raise self._go_offline(job.folder_error) from job.folder_error
        for segment, reached in job.targets:
            if segment not in job.failed:
                segment.synced = reached
        point = job.point
        try:
            if job.failed:
                logger.error("%s: a sync failed: %s", self._folder, job.error)
                self._rescue(job.failed)
                if self._log_end == self._active.base_offset and not self._sealed_open():
                    point = self._point()
            self._retire()
            self._durable = max(self._durable, point.offset)
            self._save_point(point)
        except StorageError as error:
            raise self._go_offline(error) from error

    def _sealed_open(self) -> bool:
        return any(segment.synced < segment.valid for segment in self._sealed)

    def _retire(self) -> None:
        """Let go of closed segments that are on the device as a whole."""
        for segment in self._sealed:
            if segment.synced == segment.valid:
                self._storage.close(segment.fd)
        self._sealed = [segment for segment in self._sealed if segment.synced < segment.valid]

    def _save_point(self, point: RecoveryPoint, *, durable: bool = False) -> None:
        try:
            self._point_file.write(point, durable=durable)
            self._points_unsynced += 1
            prune_snapshots(self._storage, self._folder, self._durable)
        except StorageError as error:
            if not error.retriable:
                raise
            # The old point stays: a recovery reads more than it would have to.
            logger.warning("%s: recovery point not written: %s", self._folder, error)

    def _rescue(self, failed: list[OpenSegment]) -> None:
        """Rule 16, see `flush`. Whatever fails in here leaves the mark, and the log offline."""
        storage, folder = self._storage, self._folder
        write_mark(storage, folder, self._boot_id, [segment.base_offset for segment in failed])
        for segment in failed:
            rescue_segment(
                storage, folder, segment.base_offset, segment.fd, segment.valid, self._owner
            )
            segment.synced = segment.valid
        if self._active in failed:
            closed = self._active
            self._junk_end = 0
            self._flush_index(closed)
            self._active = create_segment(
                storage, folder, self._log_end, self._config.index_interval_bytes
            )
            self._bases.append(self._log_end)
            self._sealed.append(closed)
        storage.fsync_folder(folder)
        remove_mark(storage, folder)

    # ---- reading, for tools and tests

    def read(self, offset: int, max_bytes: int) -> list[tuple[BatchHeader, bytes]]:
        """Whole batches from the one that holds `offset` on, up to `max_bytes` but at least one;
        none at the log's end."""
        if not self.log_start <= offset <= self._log_end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log in {self._folder}: it holds {self.log_start} "
                f"to {self._log_end}"
            )
        return read_batches(
            self._storage, self._folder, self._bases, self._log_end, offset, max_bytes
        )

    def offset_for_timestamp(self, timestamp: int) -> int | None:
        """The base offset of the first batch with a record at or after this time (microseconds);
        None if there is none. Which record of the batch it is, only its columns tell."""
        return find_timestamp(self._storage, self._folder, self._bases, self._log_end, timestamp)

    # ---- end

    def close(self, *, clean: bool) -> None:
        """`clean`: sync, snapshot and recovery point first, so that the next open reads nothing."""
        if clean and not self._offline:
            self.sync()
            self.snapshot()
            self._save_point(self._point(), durable=True)
        elif not self._offline:
            self._flush_index(self._active)
        for segment in (*self._sealed, self._active):
            self._storage.close(segment.fd)
        self._offline = self._offline or f"the log in {self._folder} is closed"


def _refusal(error: ErrorCode, message: str) -> AppendResult:
    return AppendResult(-1, -1, 0, int(error), False, message)
