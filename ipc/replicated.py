"""The role of a replicated partition: it leads, or follows, as its replication lane says.

    frame                  idle, following                          leading
    batch of a producer    NOT_LEADER                               appended in the role's epoch;
                                                                    NOT_LEADER once it is offline
    batch of the leader    appended as it is; skipped where it is   STALE_LEADER_EPOCH
                           below the log's end, BEYOND_LOG_END
    Lead e                 leads, if e is later (idle: or the same) done already; later: leads in it
    Follow e               done already; later: follows in it       follows
    Truncate, BeginAnew,   done                                     STALE_LEADER_EPOCH
    Trim e
    HighWatermark e        taken, at most the log's end             the same

Every frame of a past epoch is refused as STALE_LEADER_EPOCH. So is every frame but Lead and Follow
of an epoch that is not known yet. A frame that names another partition, which had the page before,
is refused as CORRUPT_BATCH. Refusals are counted, and the log names each reason once in a role.
Each answer has the log's end as its base offset. A writer may die before it answers, and frames are
done twice. They leave the log as they left it before, because the same frames still follow them in
the lane.

Only a follower that has refused nothing since it began to follow passes over a gap of compaction.
Behind a refused batch, a gap may be that batch. Where the gap may be the outcome of a transaction
that is open here, the log is cut at its beginning, and copied from there. A log that took nothing
for longer than its topic keeps tombstones is copied as a whole.

A role begins idle: nobody knows whether it led. The high watermark only rises, but where the log is
cut below it. Owns the page of a replica. The replicator decides the leader, the committed offset
and the trims.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final

from penstock.core.admission import refused
from penstock.core.errors import (
    CorruptBatchError,
    ErrorCode,
    LogOfflineError,
    NotLeaderError,
    StorageError,
)
from penstock.core.log import AppendResult, Log, SyncJob
from penstock.core.logreplica import LogReplica
from penstock.core.storage import Storage
from penstock.core.swapping import Prepared
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.freed import Freed
from penstock.ipc.lane import Frame
from penstock.ipc.logrole import ROOM_BYTES, LogRole
from penstock.ipc.messages import OpenPartition
from penstock.ipc.partitionrole import errno_of
from penstock.ipc.state import StatePage

logger = logging.getLogger("penstock.writer")


AWAY_MIN: Final = 60.0
"""Seconds without a batch after which a follower may count as having been away."""


class Mode(Enum):
    IDLE = "idle"
    FOLLOWING = "following"
    LEADING = "leading"


class ReplicaRole(LogRole):
    """The role of one replica. `_high_watermark` lies within the log; the page shows it."""

    def __init__(
        self, log: Log, state: StatePage, order: OpenPartition, storage: Storage, shown: int
    ) -> None:
        self._replica = LogReplica(log)
        self._mode = Mode.IDLE
        self._may_pass_over = False
        self._epoch = max(log.leader_epoch, state.leader_epoch)
        self._high_watermark = max(log.log_start, min(state.high_watermark, log.log_end))
        self._trim_to = 0
        self._copied: set[int] = set()
        """Where transactions began that are copied again in this role, not knowing their outcome:
        once each."""
        self._took_at = 0
        """When it last took a batch of the leader's, in microseconds; 0: not in this process."""
        self._complaints: set[ErrorCode] = set()
        """The reasons of this role's refusals that the log has named."""
        self._owner = order.topic_id, order.partition
        self._replica.note_committed(self._high_watermark)
        super().__init__(log, state, order, storage, shown)

    @property
    def leader_epoch(self) -> int:
        return self._epoch

    @property
    def _usual_status(self) -> int:
        return lo.STATUS_ONLINE if self._mode is Mode.LEADING else lo.STATUS_FOLLOWING

    def _publish(self) -> None:
        state, high_watermark = self._state, self._high_watermark
        base, valid_bytes, end, last_stable, oldest = self._log.published()
        assert high_watermark <= end, (high_watermark, end)
        state.publish_segment(base, valid_bytes)
        state.publish_ends(end, high_watermark, min(last_stable, high_watermark))
        self._publish_oldest(oldest)

    # --- what producers and the cleaner ask ---
    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        if self._mode is not Mode.LEADING:
            why = f"{self.name} is led elsewhere, or by nobody"
            return [refused(ErrorCode.NOT_LEADER, why)] * len(batches)
        return super().append(batches, now_us)

    def _go_offline(self, error: Exception, count: int) -> list[AppendResult]:
        """Sends producers on to the next leader, which the controller will name."""
        super()._go_offline(error, 0)
        why = f"the log of {self.name} is offline here: {error}"
        return [refused(ErrorCode.NOT_LEADER, why)] * count

    def count(self, batches: Sequence[memoryview], results: list[AppendResult]) -> None:
        if results[0].error == ErrorCode.NOT_LEADER:
            self._state.count(0, 0, 0, refusals=len(results))
        else:
            super().count(batches, results)

    def trim(self, before: int, now_us: int) -> Freed:
        return super().trim(min(before, self._high_watermark), now_us)

    def swap(self, prepared: Prepared, records: int, now_us: int) -> Freed:
        if prepared.sources and prepared.end > self._high_watermark:
            raise StorageError(
                f"{self.name}: offsets below {prepared.end} are not all committed, only those "
                f"below {self._high_watermark}",
                retriable=True,
            )
        return super().swap(prepared, records, now_us)

    def tick(self, now: float, now_us: int) -> SyncJob | None:
        if self._trim_to and self._state.status != lo.STATUS_OFFLINE:
            self._retain(now_us)
        return super().tick(now, now_us)

    def _retain(self, now_us: int) -> None:
        """Trim as the leader did; later, if a sync is in the way, or not all of that is known to be
        committed here. Whatever the role is by then: what the leader trimmed may differ here."""
        if self._syncing:
            return
        try:
            freed = self.trim(self._trim_to, now_us)
        except StorageError as error:  # which has taken it offline, or may be over soon
            logger.info("%s: not trimmed to %d yet: %s", self.name, self._trim_to, error)
            return
        if freed.log_start >= self._trim_to:
            self._trim_to = 0

    # --- what the replication lane says ---
    def replicate(self, frames: Sequence[Frame], now_us: int) -> list[AppendResult]:
        results: list[AppendResult] = []
        while len(results) < len(frames):
            frame = frames[len(results)]
            try:
                if self._log.offline:
                    raise LogOfflineError(self._log.offline)
                if frame.kind == lo.KIND_REPLICA:
                    results += self._append_run(frames[len(results) :], now_us)
                    continue
                if frame.kind != lo.KIND_ROLE:
                    raise CorruptBatchError("a producer's batch in a replication lane")
                order = ro.decode_order(frame.batch, *self._owner)
                if self._syncing and isinstance(order, ro.Truncate | ro.BeginAnew):
                    break  # until that sync has ended, which takes no longer than the device
                results.append(self._obey(order, now_us))
            except CorruptBatchError as error:
                results.append(self._refused(ErrorCode.CORRUPT_BATCH, str(error)))
            except StorageError as error:
                results.append(self._failed(error))
        refusals = sum(result.error != ErrorCode.NONE for result in results)
        if refusals:
            self._state.count(0, 0, 0, refusals=refusals)
        self._show()
        return results

    def _done(self) -> AppendResult:
        end = self._log.log_end
        return AppendResult(end, end, 0, ErrorCode.NONE, False, "")

    def _refused(self, code: ErrorCode, why: str) -> AppendResult:
        level = logging.DEBUG if code in self._complaints else logging.WARNING
        logger.log(level, "%s: a frame of its replication lane is refused: %s", self.name, why)
        self._complaints.add(code)
        self._may_pass_over = False
        end = self._log.log_end
        return AppendResult(end, end, 0, code, False, why)

    def _stale(self, what: str, epoch: int) -> AppendResult:
        return self._refused(
            ErrorCode.STALE_LEADER_EPOCH,
            f"{what} of epoch {epoch}, while {self._mode.value} in epoch {self._epoch}",
        )

    def _failed(self, error: StorageError) -> AppendResult:
        if error.retriable:
            self._state.publish_status(self._usual_status, errno_of(error))
            self._state.count_throttle()
            return self._refused(ErrorCode.STORAGE_FULL, str(error))
        self._go_offline(error, 0)
        return self._refused(ErrorCode.PARTITION_OFFLINE, str(error))

    def _append_run(self, frames: Sequence[Frame], now_us: int) -> list[AppendResult]:
        """The first frames of these that are batches of one epoch, by one append."""
        epoch, batches = frames[0].fetch_epoch, []
        for frame in frames:
            if frame.kind != lo.KIND_REPLICA or frame.fetch_epoch != epoch:
                break
            batches.append(frame.batch)
        if epoch != self._epoch or self._mode is Mode.LEADING:
            return [self._stale("a batch", epoch)] * len(batches)
        log, replica = self._log, self._replica
        try:
            self._watch_room()
            start = log.log_start
            made = replica.append_verbatim(
                batches, now_us, self._end_at, passes_over=self._may_pass_over,
                copied=self._copied, was_away=self._was_away(now_us),
            )  # fmt: skip
            if replica.undecided and not self._syncing:
                self._copied.update(replica.undecided)
                self._end_log(replica.undecided[0])
            if replica.is_outdated and not self._syncing:
                self._restart(0)  # its leader says where its own starts
            if self._group_commit and log.log_end > log.durable:
                self._sync()
        except StorageError as error:
            return [self._failed(error)] * len(batches)
        if log.log_start != start:
            self._state.publish_log_start(log.log_start)
        self._high_watermark = max(self._high_watermark, log.log_start)
        if self._state.errno:
            self._go_on()
        if self._group_commit:
            self._publish_durable()
        self._note_segment()
        if made.taken:
            self._took_at = now_us
        results = [self._done()] * made.taken
        if made.taken < len(batches):
            refusal = self._refused(made.error, made.message)
            results += [refusal] * (len(batches) - made.taken)
        return results

    def _was_away(self, now_us: int) -> bool:
        """Whether tombstones may have come and gone since it had all that its leader had: what it
        misses was appended after what it has."""
        known = max(self._log.append_timestamp, self._took_at)
        kept = max(AWAY_MIN, self._settings.tombstones_kept)
        return self._settings.compacts and now_us - known > kept * 1e6

    def _watch_room(self) -> None:
        grown = abs(self._log.valid_bytes - self._seen_at)
        if self._is_held or grown >= ROOM_BYTES or self._disk.is_stopped:
            self._check_room()

    def _obey(self, order: ro.RoleOrder, now_us: int) -> AppendResult:
        """Raises `StorageError`."""
        name, epoch = type(order).__name__, order.epoch
        if isinstance(order, ro.Lead):
            return self._lead(epoch)
        if isinstance(order, ro.Follow):
            return self._follow(epoch)
        if epoch != self._epoch:
            return self._stale(name, epoch)
        if isinstance(order, ro.HighWatermark):
            self._rise_to(order.offset)
        elif self._mode is Mode.LEADING:
            return self._stale(name, epoch)
        elif isinstance(order, ro.Truncate):
            self._truncate(order.end)
        elif isinstance(order, ro.BeginAnew):
            self._restart(order.log_start)
        else:
            self._trim_to = max(self._trim_to, order.log_start)
            self._retain(now_us)
        return self._done()

    def _lead(self, epoch: int) -> AppendResult:
        if epoch == self._epoch and self._mode is Mode.LEADING:
            return self._done()
        if epoch < self._epoch or (epoch == self._epoch and self._mode is Mode.FOLLOWING):
            return self._stale("Lead", epoch)
        try:
            self._replica.lead(epoch)
        except NotLeaderError as error:
            return self._refused(ErrorCode.STALE_LEADER_EPOCH, str(error))
        self._take_role(Mode.LEADING, epoch)
        return self._done()

    def _follow(self, epoch: int) -> AppendResult:
        if epoch < self._epoch:
            return self._stale("Follow", epoch)
        if epoch > self._epoch or self._mode is not Mode.FOLLOWING:
            self._take_role(Mode.FOLLOWING, epoch)
        self._replica.follow()
        self._may_pass_over = True  # what was refused stood before this in the lane
        return self._done()

    def _go_on(self) -> None:
        self._complaints.discard(ErrorCode.STORAGE_FULL)
        super()._go_on()

    def _take_role(self, mode: Mode, epoch: int) -> None:
        logger.info("%s: %s in epoch %d", self.name, mode.value, epoch)
        self._mode, self._epoch, self._is_held = mode, epoch, False
        self._complaints.clear()
        self._copied.clear()
        if mode is not Mode.LEADING:
            self._state.publish_status(self._usual_status)
        self._state.publish_epoch(epoch)
        self._state.publish_status(self._usual_status)

    def _rise_to(self, offset: int) -> None:
        shown_to = self._log.durable if self._group_commit else self._log.log_end
        offset = min(offset, shown_to)
        if offset > self._high_watermark:
            self._high_watermark = offset
            self._replica.note_committed(offset)

    # --- cuts ---
    def _truncate(self, end: int) -> None:
        """A compacted log that loses what counted lacks what that had replaced, too, and its leader
        has it: it is copied again."""
        if self._settings.compacts and end < self._high_watermark:
            self._restart(0)
        else:
            self._end_log(end)

    def _end_log(self, end: int) -> None:
        log = self._log
        was, start = log.log_end, log.log_start
        self._replica.truncate_to(max(end, start), self._end_at)
        self._trim_to = min(self._trim_to, log.log_end)  # of another log, from there on
        if log.log_end != was:
            logger.warning("%s: truncated from %d to %d", self.name, was, log.log_end)
        self._cut(start)

    def _restart(self, log_start: int) -> None:
        log = self._log
        was = log.log_start, log.log_end
        if log_start >= log.log_end:
            self._state.publish_log_start(log_start)  # or readers would look for what is gone
        self._replica.restart(log_start, self._end_at)
        logger.warning("%s: begun again at %d, it held %d to %d", self.name, log_start, *was)
        self._high_watermark, self._trim_to = log_start, 0
        self._cut(-1)

    def _end_at(self, end: int) -> None:
        """The log is about to end there."""
        self._high_watermark = min(self._high_watermark, end)
        self._shown = min(self._shown, end)
        self._replica.note_committed(self._high_watermark)
        state = self._state
        state.publish_ends(end, self._high_watermark, min(state.last_stable, self._high_watermark))
        state.publish_durable(min(state.durable, end))

    def _cut(self, start: int) -> None:
        """The log ends where it did not before."""
        self._publish()
        self._publish_durable()
        if self._log.log_start != start:
            self._state.publish_log_start(self._log.log_start)
        self._note_segment()
