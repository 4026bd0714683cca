"""The log and the page of every role: append, sync, roll, trim, swap, and publish.

A role joins one `core.log.Log` with its state page. It appends, and publishes in the order that
readers rely on (bytes, then segment, then offsets). It decides when to sync. `ipc.writer` drives it
and knows nothing of logs.

Owns these orders. The roles on top of it decide the committed offset, and who may append.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from itertools import compress
from typing import Final, Self

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode, LogOfflineError, StorageError
from penstock.core.header import ATTR_CONTROL, ATTRIBUTES_AT
from penstock.core.log import AppendResult, Log, LogConfig, SyncJob, Writeback
from penstock.core.opentransactions import OpenTransaction
from penstock.core.storage import Storage
from penstock.core.swapping import Prepared, drop_prepared
from penstock.ipc import layout as lo
from penstock.ipc.cleaning import segment_sizes
from penstock.ipc.freed import Freed
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.partitionrole import TICK, errno_of
from penstock.ipc.state import OpenSince, StatePage

logger = logging.getLogger("penstock.writer")

RESTORE_BATCHES: Final = 1000
"""Batch headers that one step of making lost indexes again reads: what lanes wait for then, some
milliseconds."""
RESTORE_RETRY: Final = 60.0
"""Seconds until it is tried again after it found no room or no descriptor."""
ROOM_BYTES: Final = 1 << 20
"""Bytes that a partition appends at most between two looks at the room on the disk."""


def log_config(settings: TopicSettings, batch_bytes_max: int) -> LogConfig:
    """The log's part of a topic's settings."""
    default = LogConfig()
    flush = {"os": "os", "interval": "interval", "fsync": "batch"}[settings.durability]
    return LogConfig(
        segment_bytes=settings.segment_bytes or default.segment_bytes,
        segment_age=settings.segment_age,
        batch_bytes_max=batch_bytes_max,
        flush=flush,  # type: ignore[arg-type]
        flush_interval=settings.flush_interval or default.flush_interval,
        timestamp_type=settings.timestamp_type,  # type: ignore[arg-type]
    )


class LogRole:
    """The log of one partition and its state page. One instance per open partition of a writer
    process."""

    def __init__(
        self, log: Log, state: StatePage, order: OpenPartition, storage: Storage, shown: int
    ) -> None:
        self.page = order.page
        self._storage = storage
        self._folder = order.folder
        self.name: str = order.name
        self._log = log
        self._state = state
        self._disk = state.disk
        self._full = state.full_pages
        self._settings = order.settings
        self._group_commit = order.settings.durability == "fsync"
        self._syncing = False
        self._is_held = False
        self._oldest_open: OpenTransaction | None = None
        self._seen_at = 0
        self._last_sync = -math.inf
        self._restore_at = 0.0
        self._expired = 0
        self.offline = ""
        self._segment_base = log.segment_base
        self._sync_wanted = log.durable < log.log_end  # a producer may still wait for it
        if self._group_commit:
            try:
                log.sync()  # what a killed writer appended and never synced must not be visible yet
            except BaseException:
                log.close(clean=False)
                raise
        # A predecessor showed only synced offsets in this epoch, although it could not write the
        # recovery point; a sync from there on brings the log past it.
        is_same = order.replicated or state.leader_epoch == log.leader_epoch
        self._shown = min(shown, log.log_end) if is_same else 0
        state.publish_epoch(self.leader_epoch)
        state.publish_log_start(log.log_start)
        state.publish_oldest_open(None)  # a page that is reused shows a predecessor's
        self._publish()
        self._publish_durable()
        state.publish_status(self._usual_status)

    @classmethod
    def open(
        cls,
        storage: Storage,
        order: OpenPartition,
        state: StatePage,
        *,
        generation: int,
        batch_bytes_max: int,
        now_us: int,
        attached: Callable[[], Container[int]] | None = None,
        believed_us: Callable[[], int] | None = None,
    ) -> tuple[Self, str]:
        """Recover the log and publish its page; the second value says what recovery did. `attached`
        gives the producers that have a lane, `believed_us` the time by which they expire."""
        identity = state.identity
        same = identity is not None and identity == (order.topic_id, order.partition)
        published = state.log_end if same and state.status != lo.STATUS_ABSENT else None
        shown = state.durable if published is not None else 0
        log, report = Log.open(
            storage,
            order.folder,
            log_config(order.settings, batch_bytes_max),
            topic_id=order.topic_id,
            partition=order.partition,
            generation=generation,
            now_us=now_us,
            boot_id=order.boot_id,
            published=published,
            node_clean=order.clean,
            attached=attached,
            believed_us=believed_us,
            replicated=order.replicated,
        )
        state.claim(order.topic_id, order.partition, generation)
        return cls(log, state, order, storage, shown), report.summary()

    @property
    def leader_epoch(self) -> int:
        return self._log.leader_epoch

    @property
    def _usual_status(self) -> int:
        """Returns the page's status while nothing is wrong."""
        return lo.STATUS_ONLINE

    @property
    def log_end(self) -> int:
        return self._log.log_end

    @property
    def tick_every(self) -> float:
        if self._settings.durability != "interval":
            return TICK
        return min(TICK, self._log.config.flush_interval)

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        if self._full.has(self.page):
            return self._append_to_full(batches, now_us)
        return self._append(batches, now_us)

    def _append_to_full(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        """Appends to a log whose namespace has as many bytes as it may. Transactions end
        nevertheless: others' records may wait behind theirs. A repeated batch gets its usual
        answer: its sender would take it for lost, and send it once more."""
        are_control = [bool(batch[ATTRIBUTES_AT] & ATTR_CONTROL) for batch in batches]
        control = list(compress(batches, are_control))
        taken = iter(self._append(control, now_us) if control else ())
        full = refused(
            ErrorCode.NAMESPACE_FULL,
            f"{self.name}: its namespace has as many bytes on the disk as its limit "
            "disk_bytes_max allows",
        )
        return [
            next(taken) if is_control else self._log.repeated(batch) or full
            for batch, is_control in zip(batches, are_control, strict=True)
        ]

    def _append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        log = self._log
        try:
            at = log.valid_bytes
            if self._is_held or abs(at - self._seen_at) >= ROOM_BYTES or self._disk.is_stopped:
                self._check_room()
            results = log.append(batches, now_us)
            if self._group_commit and log.log_end > log.durable:
                self._sync()  # what an earlier call appended and could not sync, too
        except LogOfflineError as error:
            return self._go_offline(error, len(batches))
        except StorageError as error:
            if not error.retriable:
                return self._go_offline(error, len(batches))
            self._state.publish_status(lo.STATUS_FULL, errno_of(error))
            self._state.count_throttle()
            raise
        self._publish()
        if self._state.status == lo.STATUS_FULL:
            self._go_on()
        if self._group_commit:
            self._state.publish_durable(log.durable)
        if log.segment_base != self._segment_base:
            self._segment_base = log.segment_base
            self._sync_wanted = True
        return results

    def _note_segment(self) -> None:
        if self._log.segment_base != self._segment_base:
            self._segment_base = self._log.segment_base
            self._sync_wanted = True

    def writeback(self) -> Writeback | None:
        return self._log.writeback()

    def _go_on(self) -> None:
        self._is_held = False
        self._state.publish_status(self._usual_status)
        logger.info("%s: there is room again, writing goes on", self.name)

    def _check_room(self) -> None:
        """Refuses while what is left of the disk is to be kept. The node looks now and then; after
        every `ROOM_BYTES` this does, too: a small disk could be full before the node looks."""
        disk = self._disk
        if not disk.is_stopped and self._has_room(disk.read().stop_below):
            return
        self._is_held = True
        raise StorageError(
            f"the disk has less room than disk_stop ({disk.read().stop_below} bytes): nothing is "
            "appended until there is more",
            retriable=True,
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _has_room(self, wanted: int) -> bool:
        self._seen_at = self._log.valid_bytes
        try:
            room = os.statvfs(self._folder)
        except OSError:
            return True  # the append will say what is wrong
        return room.f_bavail * room.f_frsize >= wanted

    def count(self, batches: Sequence[memoryview], results: list[AppendResult]) -> None:
        duplicates = refusals = nbytes = appended = records = 0
        for batch, result in zip(batches, results, strict=True):
            if result.error:
                refusals += 1
                logger.log(
                    # The node says once that a namespace is full, the counter how many came.
                    logging.DEBUG if result.error == ErrorCode.NAMESPACE_FULL else logging.WARNING,
                    "%s: refused a batch: %s",
                    self.name,
                    result.message,
                    extra={"reason": result.message},
                )
            elif result.duplicate:
                duplicates += 1
            else:
                appended += 1
                nbytes += len(batch)
                records += result.next_offset - result.base_offset
        self._state.count(records, nbytes, appended, duplicates, refusals)

    def _publish(self) -> None:
        state = self._state
        base, valid_bytes, end, last_stable, oldest = self._log.published()
        state.publish_segment(base, valid_bytes)
        state.publish_ends(end, end, last_stable)
        if oldest is not self._oldest_open:
            self._publish_oldest(oldest)

    def _publish_oldest(self, oldest: OpenTransaction | None) -> None:
        self._oldest_open = oldest
        self._state.publish_oldest_open(
            oldest and OpenSince(oldest.producer_id, oldest.epoch, oldest.began_us)
        )

    def _publish_durable(self) -> None:
        self._state.publish_durable(max(self._log.durable, self._shown))

    def _show(self) -> None:
        """`_publish` where nothing was synced just now: not before it is, if it has to be first
        (rule 15)."""
        if self._group_commit and self._log.durable < self._log.log_end:
            self._sync_wanted = True
        else:
            self._publish()

    def _go_offline(self, error: Exception, count: int) -> list[AppendResult]:
        if self._state.status != lo.STATUS_OFFLINE:
            logger.error("%s: offline: %s", self.name, error)
        self.offline = self.offline or str(error)
        self._state.publish_status(lo.STATUS_OFFLINE, errno_of(error))
        return [refused(ErrorCode.PARTITION_OFFLINE, str(error))] * count

    def tick(self, now: float, now_us: int) -> SyncJob | None:
        log = self._log
        if (expired := log.expiry.expired) > self._expired:
            self._state.count_expired(expired - self._expired)
            self._expired = expired
        if self._state.status == lo.STATUS_OFFLINE:
            return None
        if self._is_held and not self._state.disk.is_stopped:
            self._go_on()  # also where nobody waits any more
        try:
            if log.needs_roll(now_us):
                log.roll(now_us)
                self._segment_base = log.segment_base
                self._sync_wanted = True
                self._show()
            if log.note_held_aborts():
                self._show()
            due = self._sync_wanted or log.sync_due(now - self._last_sync)
            if due and not self._syncing:
                return self._begin_sync(now)
        except LogOfflineError as error:
            self._go_offline(error, 0)
        except StorageError as error:
            logger.warning("%s: %s", self.name, error)
        return None

    def lacks_indexes(self, now: float) -> bool:
        return self._log.lacks_indexes and now >= self._restore_at

    def restore_indexes(self, now: float) -> None:
        try:
            if not self._log.restore_indexes(RESTORE_BATCHES):
                logger.info("%s: the indexes that were missing are made again", self.name)
        except StorageError as error:
            if not error.retriable:
                self._go_offline(error, 0)
                return
            self._restore_at = now + RESTORE_RETRY
            logger.warning("%s: indexes are missing, for now: %s", self.name, error)

    def _begin_sync(self, now: float) -> SyncJob | None:
        """A job for the flusher, or None where nothing is unsynced. Partitions that sync before
        they answer do it here and now: a job under way would keep their next append waiting."""
        self._last_sync = now
        self._sync_wanted = False
        if self._group_commit:
            self._sync()
            self._publish()
            self._publish_durable()
            return None
        job = self._log.begin_sync()
        self._syncing = job is not None
        return job

    def _sync(self) -> None:
        began = time.monotonic()
        self._log.sync()
        self._state.count_sync(time.monotonic() - began)

    def request_sync(self) -> None:
        self._sync_wanted = True

    def finish_sync(self, job: SyncJob) -> bool:
        self._syncing = False
        self._state.count_sync(job.seconds)
        before = self._log.durable
        try:
            self._log.finish_sync(job)
        except StorageError as error:
            if error.retriable:
                logger.warning("%s: not synced, will be tried again: %s", self.name, error)
                self._sync_wanted = True
            else:
                self._go_offline(error, 0)
            return False
        self._show()  # a failed fsync that was healed moved the segment (rule 16)
        self._publish_durable()
        return self._log.durable > before

    def configure(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._group_commit = settings.durability == "fsync"
        self._log.configure(log_config(settings, self._log.config.batch_bytes_max))

    def trim(self, before: int, now_us: int) -> Freed:
        log, state = self._log, self._state
        bases = log.segments
        sizes = segment_sizes(self._storage, self._folder, bases[: bisect_left(bases, before)])

        def publish(log_start: int) -> None:
            self._show()  # it may have begun a new segment
            self._publish_durable()
            state.publish_log_start(log_start)

        try:
            start = log.trim(before, publish)
        except StorageError as error:
            if not error.retriable:
                state.count_cleaning_error()
                self._go_offline(error, 0)
            raise
        finally:
            if log.segment_base != self._segment_base:
                self._segment_base = log.segment_base
                self._sync_wanted = True
                self._show()
        left = set(log.segments)
        gone = [size for base, size in sizes.items() if base not in left]
        if gone:
            state.count_cleaning(now_us, len(gone), sum(gone), 0)
        return Freed(start, len(gone), sum(gone))

    def swap(self, prepared: Prepared, records: int, now_us: int) -> Freed:
        log, count = self._log, len(prepared.sources)
        if not count:  # left behind by a cleaner that died
            drop_prepared(self._storage, self._folder, prepared.base)
            return Freed(log.log_start, 0, 0, done=False)
        bases = [source.base for source in prepared.sources]
        sizes = segment_sizes(self._storage, self._folder, bases)
        try:
            done = log.swap(prepared)
        except StorageError as error:
            if not error.retriable:
                self._state.count_cleaning_error()
                self._go_offline(error, 0)
            raise
        if not done:
            return Freed(log.log_start, 0, 0, done=False)
        nbytes = sum(sizes.get(source.base, 0) for source in prepared.sources) - prepared.length
        self._state.count_cleaning(now_us, count - 1, max(0, nbytes), records)
        return Freed(log.log_start, count - 1, nbytes)

    def close(self, *, clean: bool) -> None:
        self._log.close(clean=clean)
        if clean:
            self._publish_durable()
