"""Where a log grows: appends, the row of its segments, and what of it is on the device.

    append   verify each batch, judge its producer and sequence, stamp a private header copy;
             one pwritev for all that were accepted; then indexes, state and answers
    roll     close the active segment and begin the next, by size before an append or by age
    sync     begin_sync (this thread) -> job.run (any thread) -> finish_sync (this thread)

Invariants: one append call lies in one segment; append timestamps never fall; nothing is visible to
the caller's readers before the call returned. An append that raises has consumed nothing.

Owns the order of these steps. What opens, shortens and closes a log is `log`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from typing import Final, NoReturn

from penstock.core.admission import AppendResult, Refusal, refused, verify
from penstock.core.errors import ErrorCode, LogOfflineError, StorageError
from penstock.core.flush import WRITEBACK_BYTES, SyncJob, Writeback, flush_index
from penstock.core.header import (
    ATTR_CONTROL,
    FLAG_APPEND_TIME,
    HEADER_BYTES,
    BatchHeader,
    stamp,
)
from penstock.core.index import FLUSH_ENTRIES
from penstock.core.logview import LogView
from penstock.core.producers import PRODUCER_SILENCE_US, PRODUCER_TTL_US, Answer
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.segment import OpenSegment

logger = logging.getLogger("penstock.core.log")

# Refusals that do not poison what follows: the batch is in the log or fenced, or poisoned already;
# or what follows is refused alike.
_HARMLESS: Final = frozenset(
    {
        ErrorCode.STALE_PRODUCER_EPOCH,
        ErrorCode.POISONED,
        ErrorCode.DUPLICATE_TOO_OLD,
        ErrorCode.TRANSACTION_NOT_OPEN,
        ErrorCode.UNKNOWN_PRODUCER,
    }
)


class LogTail(LogView):
    """The growing half of `Log`, which sets all of these."""

    _topic_id: bytes
    _partition: int
    _boot_id: str
    _order: tuple[int, int]
    _attached: Callable[[], Container[int]] | None
    _believed_us: Callable[[], int] | None
    _producers_due: int
    producers_expired: int
    """Producers that were forgotten since the log was opened."""

    # ---- append

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        """Append the good ones of these batches, in order; one answer for each.

        Raises a retriable `StorageError` with nothing consumed, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        config, chain = self._config, self._chain
        valid = chain.active.valid
        if valid and (
            valid + sum(map(len, batches)) > config.segment_bytes
            or (config.segment_age is not None and self.needs_roll(now_us))
        ):
            self.roll(now_us)
            valid = 0
        if now_us < self._append_timestamp:
            now_us = self._append_timestamp  # the clock was set back: the log's time stands still
        append_time = config.timestamp_type == "append"
        flags = FLAG_APPEND_TIME if append_time else 0
        results: list[AppendResult] = []
        buffers: list[bytearray | memoryview] = []
        notes: list[tuple[int, int, int]] = []
        offset, position = self._log_end, valid
        for batch in batches:
            verdict = verify(batch, self._topic_id, self._partition, config.batch_bytes_max)
            if isinstance(verdict, Refusal):
                results.append(self._refuse(verdict))
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
            result = (offset, following, now_us, 0, False, "")
            results.append(tuple.__new__(AppendResult, result))  # `AppendResult()` is a call more
            offset = following
            position += head.length
        if buffers:
            try:
                chain.write(buffers, position, config.preallocate_bytes)
            except StorageError as error:
                self._producers.rollback()
                self._judge(error)
            self._appended(offset, now_us, notes)
        producers = self._producers
        producers.commit()
        if producers.transactions.aborted:
            self._note_aborted()
        if len(producers) > self._producers_due:
            self._bound_producers()
        return results

    def _bound_producers(self) -> None:
        """Forget the longest silent where there are more than `producers_max`, some at a time.
        Without lanes that are known none is forgotten."""
        if self._attached is None:
            return
        limit, producers, attached = self._config.producers_max, self._producers, self._attached()
        keep, silent = limit - limit // 16, self._silent_before(PRODUCER_SILENCE_US)
        count = producers.expire_oldest(keep, attached, silent)
        if len(producers) > 2 * limit:
            count += producers.expire_oldest(keep, attached, self._append_timestamp + 1)
        self._producers_due = max(limit, len(producers) + limit // 16)
        self._expired(count, f"there were more than producers_max={limit}")

    def _silent_before(self, silence_us: int) -> int:
        """The time of append before which one was silent for so long."""
        now = self._append_timestamp
        return (now if self._believed_us is None else min(now, self._believed_us())) - silence_us

    def _expired(self, count: int, why: str) -> None:
        if count:
            self.producers_expired += count
            logger.info("%s: %d producers forgotten: %s", self._folder, count, why)

    def _note_aborted(self) -> None:
        """After the log and before anybody may read so far. What cannot be written now holds the
        last stable offset back; the next sync or abort tries again."""
        self._chain.folder_changed = True
        taken = self._producers.transactions.take_aborted()
        self._aborted.note(self._chain.active.base_offset, taken)

    def note_held_aborts(self) -> bool:
        """Try once more what held the last stable offset back; whether that is over now."""
        return self._aborted.held is not None and self._aborted.flush()

    def _appended(self, log_end: int, now_us: int, notes: list[tuple[int, int, int]]) -> None:
        self._log_end = log_end
        self._order = (self._leader_epoch, self._generation)
        self._append_timestamp = now_us
        syncs = self._syncs
        syncs.batches_above_point += len(notes)
        syncs.batches_above_snapshot += len(notes)
        active = self._chain.active
        if active.first_append is None:
            active.first_append = now_us
        index = active.index
        grown = False
        for note in notes:
            grown = index.note(*note) or grown
        if grown and index.pending >= FLUSH_ENTRIES:
            flush_index(active, self._folder)

    def _refuse(self, refusal: Refusal) -> AppendResult:
        head = refusal.head
        if head is not None and not head.attributes & ATTR_CONTROL:
            self._producers.poison(head.producer_id, head.producer_epoch)
        # Without a header to trust nobody can be poisoned; the sequence gap that the batch leaves
        # refuses what follows.
        return refusal.result

    def repeated(self, batch: memoryview) -> AppendResult | None:
        """Where a batch is that was appended before, None if it is not known to be."""
        verdict = verify(batch, self._topic_id, self._partition, self._config.batch_bytes_max)
        if isinstance(verdict, Refusal):
            return None
        _, head = verdict
        answer = self._producers.repeat(head)
        return None if answer is None else self._answered(answer, head)

    def _answered(self, answer: Answer, head: BatchHeader) -> AppendResult:
        if answer.error is ErrorCode.NONE:
            _, base, following, at, _ = answer
            return AppendResult(base, following, at, 0, True, "")
        if answer.error not in _HARMLESS and not head.attributes & ATTR_CONTROL:
            self._producers.poison(head.producer_id, head.producer_epoch)
        logger.warning(
            "%s: refused: %s",
            self._folder,
            answer.message,
            extra={"folder": self._folder, "reason": answer.message},
        )
        return refused(answer.error, answer.message)

    def _judge(self, error: StorageError) -> NoReturn:
        """Raise a retriable error as it is, its cause with it; any other takes the log offline."""
        if error.retriable:
            raise error
        raise self._go_offline(error) from error

    def _go_offline(self, error: Exception) -> LogOfflineError:
        if not self._offline:
            self._offline = f"the log in {self._folder} is offline until it is recovered: {error}"
            logger.error("%s", self._offline, extra={"folder": self._folder, "reason": str(error)})
        return LogOfflineError(self._offline)

    # ---- segments

    def roll(self, now_us: int) -> None:
        """Close the active segment and begin the next at the log's end. An empty one stays.

        Raises a retriable `StorageError` with nothing changed, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        active = self._chain.active
        if not active.valid:
            return
        try:
            self._chain.roll(self._log_end, self._config.index_interval_bytes)
        except StorageError as error:
            self._judge(error)
        if self._producers.transactions.aborted_from is not None:
            self._aborted.roll(active.base_offset, self._log_end)
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
        time. Fsynced, and older ones removed, by the next sync. Producers that are long silent and
        have no lane are forgotten (rule 3), by the log's own time, and not before its believed
        one: append times jump with the wall clock."""
        before = self._silent_before(PRODUCER_TTL_US)
        if self._attached is not None and self._producers.is_older(before):
            count = self._producers.expire(before, self._attached())
            self._expired(count, "they were silent for 7 days")
        if len(self._producers) > self._producers_due:
            self._bound_producers()
        if self._aborted.flush():  # the log below a snapshot is not looked through for aborts again
            self._syncs.snapshot(self._producers, self._log_end)

    # ---- sync

    def sync(self) -> None:
        """Everything appended is on the device when this returns (rule 16 applied if needed)."""
        job = self.begin_sync()
        if job is not None:
            job.run()
            self.finish_sync(job)

    def writeback(self) -> Writeback | None:
        """What the kernel is to begin to write out, once enough came together. Promises nothing;
        the next sync has less to wait for, and so have those of others."""
        found = self._chain.writeback(WRITEBACK_BYTES)
        return found and Writeback(self._storage, *found)

    def begin_sync(self) -> SyncJob | None:
        """What has to be forced to the device for all that is appended now; None if nothing has.

        Run it in any thread, then give it to `finish_sync`; appends may go on meanwhile. One at a
        time: another one raises a retriable `StorageError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        if self._syncs.batches_above_snapshot >= self._config.snapshot_batches:
            self.snapshot()
        return self._syncs.begin(self._point())

    def _point(self) -> RecoveryPoint:
        active = self._chain.active
        return RecoveryPoint(
            active.base_offset,
            active.valid,
            self._log_end,
            *self._order,
            self._append_timestamp,
            self._boot_id,
        )

    def finish_sync(self, job: SyncJob) -> None:
        """Take over what a job reached: move `durable` and the recovery point. After a failed
        fsync that could be mended, the log goes on in a new segment.

        Raises `LogOfflineError` if the log could not be brought to the device, and a retriable
        `StorageError` if that has to be tried again.
        """
        try:
            self._syncs.finish(job, self._rescue, self._point)
        except StorageError as error:
            self._judge(error)
        if self._offline:
            raise LogOfflineError(self._offline)

    def _rescue(self, failed: list[OpenSegment]) -> None:
        interval = self._config.index_interval_bytes
        self._chain.rescue(failed, self._log_end, self._boot_id, interval)
