"""Follows and leads a replicated log: keeps a leader's batches as they are, in epochs of others.

    append_verbatim   verify each batch, keep all its bytes; producers, transactions, epochs and
                      indexes are brought along as if it had been judged here
    lead              an epoch begins at the log's end, on the device before its first append
    follow            epochs that were begun here without a record are forgotten
    truncate_to       the log ends earlier: synced, marked, published, cut
    restart        everything goes, and an empty log starts elsewhere (`logrestart`)

A batch continues the log if it begins at the log's end. It may begin beyond the end if compaction
removed the batches between; it says so itself (`FLAG_COMPACTED`). In a copy of the log the gap may
then be at any place, also in the active segment. Where an open transaction has data here, such a
gap may hide its outcome. The replica does not pass over it: it cuts the log at `undecided` and
copies it again, and the leader has the outcome there. A replica that was away for longer than
tombstones are kept may have records of keys that were deleted since. It takes no compacted batch
behind them (`is_outdated`): its log has to begin again.

Owns a replica's changes to its log, and the order of these steps. Others decide the leader and the
committed offset.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from penstock.core.admission import verify_verbatim
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import ErrorCode, NotLeaderError, StorageError
from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL, FLAG_COMPACTED, BatchHeader
from penstock.core.log import Log
from penstock.core.logrestart import wipe
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.replay import rebuild_producers
from penstock.core.segment import batch_time
from penstock.core.snapshots import remove_useless_snapshots
from penstock.core.swapping import forget_cleaned_to

Publish = Callable[[int], None]


class Verbatim(NamedTuple):
    """The result of an append of some batches: the first `taken` of them are in the log, which ends
    at `log_end`. `error` and `message` give the reason against the next one."""

    log_end: int
    taken: int
    error: ErrorCode
    message: str


class LogReplica:
    """The replica's side of a log. It has the log; besides it only `Log` itself changes it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.undecided: Sequence[int] = ()
        """Where the transactions began, the oldest first, whose outcome compaction may have taken
        before the batch that `append_verbatim` refused last."""
        self.is_outdated = False
        """Whether `append_verbatim` refused one for what may have been deleted before it."""

    # ---- following

    def append_verbatim(
        self,
        batches: Sequence[memoryview],
        now_us: int,
        publish: Publish | None = None,
        *,
        passes_over: bool = True,
        copied: Container[int] = (),
        was_away: bool = False,
    ) -> Verbatim:
        """Appends these batches of the leader's log, in order, up to the first that it must refuse.
        Batches that are here already count as taken. Without `passes_over` none may begin beyond
        the end, compacted or not: the batches between may have been refused. `copied` names an
        earlier `undecided` that is copied again: a transaction open there is open in the leader's
        log, too. `was_away` says that tombstones behind the end may have come and gone through
        compaction.

        Calls `publish` with a lower end where an empty log has to begin a little earlier, with the
        first batch of the leader's log. Raises a retriable `StorageError` with nothing consumed, or
        `LogOfflineError`.
        """
        log = self._log
        log.check_online()
        self.undecided, self.is_outdated = (), False
        (topic_id, partition), known = log.owner, (log.epochs.latest, 0)
        was_away = was_away and not self._is_empty
        heads: list[BatchHeader] = []
        good: list[memoryview] = []
        begins, has_open = log.log_end, False
        end, order, taken, error, why = begins, log.order, 0, ErrorCode.NONE, ""
        for batch in batches:
            head = verify_verbatim(batch, topic_id, partition)
            if not isinstance(head, BatchHeader):
                error, why = ErrorCode(head.error), head.message
                break
            if head.next_offset <= end:
                taken += 1
                continue
            if was_away and not heads:
                error, why = self._outdated(head)
            if error:
                break
            if head.base_offset < end and not heads and self._is_empty:
                begins = head.base_offset
            elif head.base_offset != end:
                error, why = self._objection(head, end, passes_over)
                if not error:
                    error, why = self._doubt(head, has_open, copied)
            newest = max(order, known)
            if not error and (head.leader_epoch, head.generation) < newest:
                error = ErrorCode.CORRUPT_BATCH
                why = f"epoch {head.leader_epoch}/{head.generation} does not follow {newest}"
            if error:
                break
            taken += 1
            heads.append(head)
            good.append(batch)
            has_open = has_open or _is_open_data(head)
            end, order = head.next_offset, (head.leader_epoch, head.generation)
        if heads and begins < log.log_end:
            self._append_earlier(begins, heads, good, now_us, publish)
        elif heads:
            self._append(heads, good, now_us)
        return Verbatim(log.log_end, taken, error, why)

    @property
    def _is_empty(self) -> bool:
        return self._log.log_start == self._log.log_end and not self._log.valid_bytes

    def _outdated(self, head: BatchHeader) -> tuple[ErrorCode, str]:
        """Why who was away does not go on with that batch; nothing where it may."""
        self.is_outdated = bool(head.flags & FLAG_COMPACTED)
        if not self.is_outdated:
            return ErrorCode.NONE, ""
        return ErrorCode.BEYOND_LOG_END, (
            f"compaction was at offset {head.base_offset}, and may have taken tombstones of keys "
            "that are here"
        )

    @staticmethod
    def _objection(head: BatchHeader, end: int, passes_over: bool) -> tuple[ErrorCode, str]:
        """Why a batch does not continue a log that ends there; nothing where it does."""
        if head.base_offset < end:
            what = f"offsets {head.base_offset} to {head.next_offset} lie across the log's end"
        elif not (passes_over and head.flags & FLAG_COMPACTED):
            what = f"offset {head.base_offset} lies beyond the log's end"
        else:
            return ErrorCode.NONE, ""
        return ErrorCode.BEYOND_LOG_END, f"{what}, which is {end}"

    def _doubt(
        self, head: BatchHeader, has_open: bool, copied: Container[int]
    ) -> tuple[ErrorCode, str]:
        """Returns why a replica may not pass over the batches that compaction removed before this
        one. `has_open` says that open data lies between the log's end and that batch."""
        undecided = self._log.producers.undecided()
        if not all(start in copied for start in undecided):
            self.undecided = undecided
        elif not has_open:
            return ErrorCode.NONE, ""
        return ErrorCode.BEYOND_LOG_END, (
            f"compaction took the batches before offset {head.base_offset}, maybe the outcome of a "
            "transaction that is open here"
        )

    def _append_earlier(
        self,
        begins: int,
        heads: list[BatchHeader],
        batches: Sequence[memoryview],
        now_us: int,
        publish: Publish | None,
    ) -> None:
        """The log is empty, and the first of these batches lies across its start."""
        log = self._log
        start = log.log_start
        self._begin(begins, publish)
        self._append(heads, batches, now_us)
        log.sync()  # a log does not start beyond what is on the device
        try:
            log.cleanup.lower_start(start)
        except StorageError as error:
            log.judge(error)

    def _append(self, heads: list[BatchHeader], batches: Sequence[memoryview], now_us: int) -> None:
        log = self._log
        chain, config, producers = log.chain, log.config, log.producers
        size = sum(head.length for head in heads)
        if chain.active.valid and (
            chain.active.valid + size > config.segment_bytes or log.needs_roll(now_us)
        ):
            log.roll(now_us)
        self._learn_epochs(heads)
        position, notes = chain.active.valid, []
        for head in heads:
            notes.append((head.base_offset, position, batch_time(head)))
            position += head.length
        try:
            chain.write(batches, position, config.preallocate_bytes)
        except StorageError as error:
            log.judge(error)
        if chain.active.first_append is None:
            chain.active.first_append = heads[0].append_timestamp
        last = heads[-1]
        newest = max(log.append_timestamp, *(head.append_timestamp for head in heads))
        log.grow(last.next_offset, (last.leader_epoch, last.generation), newest, notes)
        for head in heads:
            producers.replay(head)
        if producers.transactions.aborted or len(producers) > log.expiry.due:
            log.tend_producers()

    def _learn_epochs(self, heads: list[BatchHeader]) -> None:
        """Learns epochs from these batches. A gap before a batch counts as part of its epoch:
        nobody knows the epochs that compaction removed."""
        known, end = EpochCache(list(self._log.epochs.entries)), self._log.log_end
        for head in heads:
            known.assign(head.leader_epoch, end)
            end = head.next_offset
        self._adopt(known)

    def _adopt(self, epochs: EpochCache) -> None:
        log = self._log
        if epochs.entries == log.epochs.entries:
            return
        try:
            save_epochs(log.storage, log.folder, epochs)
        except StorageError as error:
            log.judge(error)
        log.epochs = epochs
        log.leader_epoch = epochs.latest

    # ---- roles

    def lead(self, epoch: int) -> None:
        """Begins that epoch at the log's end. Raises `NotLeaderError` where the log has a later
        one, a retriable `StorageError` with nothing changed, or `LogOfflineError`."""
        log = self._log
        log.check_online()
        if epoch < log.epochs.latest or (epoch, log.generation) < log.order:
            raise NotLeaderError(
                f"the log in {log.folder} cannot be led in epoch {epoch} by writer generation "
                f"{log.generation}: it has epoch {log.epochs.latest}, and its last batch is of "
                f"epoch and generation {log.order}"
            )
        epochs = EpochCache(list(log.epochs.entries))
        epochs.assign(epoch, log.log_end)
        self._adopt(epochs)

    def follow(self) -> None:
        """Forget epochs that were begun here and hold nothing: the next leader may have records of
        an older one at the same offsets. Raises as `lead`."""
        log = self._log
        log.check_online()
        epochs = EpochCache(list(log.epochs.entries))
        epochs.truncate_end(log.log_end)
        self._adopt(epochs)

    def note_committed(self, offset: int) -> None:
        """Nothing below is ever truncated, so that older snapshots are not needed for that."""
        self._log.syncs.committed = offset

    # ---- truncation

    def truncate_to(self, offset: int, publish: Publish | None = None) -> int:
        """Ends the log at `offset`, or at the start of the batch that holds it. Returns the new
        end.

        Syncs first. Calls `publish` with the new end once the truncation is certain to happen, and
        before the cut. A state page with a higher end after the cut would look like damage to the
        next open in this boot. Raises `LogOfflineError` when it fails half-way: the next open
        finishes it.
        """
        log = self._log
        if offset >= log.log_end:
            return log.log_end
        log.check_offset(offset)
        log.sync()
        try:
            log.cleanup.settle()
        except StorageError as error:
            log.judge(error)
        try:
            return self._truncate(offset, publish)
        except StorageError as error:
            raise log.go_offline(error) from error

    def _truncate(self, offset: int, publish: Publish | None) -> int:
        log, syncs, chain = self._log, self._log.syncs, self._log.chain
        storage, folder = log.storage, log.folder
        base, position, end = chain.locate(offset)
        if end < log.log_start:  # it lies within a batch
            log.cleanup.lower_start(end)
        log.order = (log.epochs.epoch_at(end - 1) or 0, 0)
        at = log.append_timestamp
        syncs.move(RecoveryPoint(base, position, end, *log.order, at, log.boot_id, truncating=True))
        if publish is not None:
            publish(end)
        forget_cleaned_to(storage, folder)
        remove_useless_snapshots(storage, folder, end, end)
        syncs.forget_snapshots()
        chain.truncate(base, position, end, log.boot_id, log.config.index_interval_bytes)
        log.log_end = end
        log.epochs.truncate_end(end)
        if log.replicated:
            log.leader_epoch = log.epochs.latest
        else:
            log.epochs.assign(log.leader_epoch, end)
        save_epochs(storage, folder, log.epochs)
        kept = log.config.producer_batches_kept
        log.producers, _ = rebuild_producers(storage, folder, chain.bases, end, kept)
        log.producers.transactions.take_aborted()
        log.aborted.cut(chain.bases, end)
        if log.replicated:  # a segment begins here, as at each roll: the next trim may need it
            syncs.snapshot(log.producers, end, durable=True)
        syncs.move(log.point())
        return end

    # ---- beginning again

    def restart(self, log_start: int, publish: Publish | None = None) -> None:
        """Let go of everything, producers too, and be an empty log that starts there. `publish` is
        called with the new end when that is certain to happen and before anything goes.

        Raises a retriable `StorageError` while a sync or a swap is under way, or `LogOfflineError`
        when it fails half-way: the next open finishes it.
        """
        log = self._log
        log.check_online()
        if self._is_empty and log.segments == (log_start,):
            return
        if log.syncs.job is not None:
            raise StorageError(
                f"a sync of {log.folder} is under way: finish it first", retriable=True
            )
        try:
            log.cleanup.settle()
        except StorageError as error:
            log.judge(error)
        self._begin(log_start, publish)

    def _begin(self, start: int, publish: Publish | None) -> None:
        try:
            self._wipe(start, publish)
        except StorageError as error:
            raise self._log.go_offline(error) from error

    def _wipe(self, start: int, publish: Publish | None) -> None:
        log = self._log
        at, interval = log.append_timestamp, log.config.index_interval_bytes
        log.syncs.move(RecoveryPoint(start, 0, start, 0, 0, at, log.boot_id, beginning=True))
        if publish is not None:
            publish(start)
        log.chain.restart(wipe(log.storage, log.folder, start, interval))
        log.aborted.forget()
        log.log_end = log.cleanup.log_start = start
        log.order = (0, 0)
        log.producers = ProducerTable(log.config.producer_batches_kept)
        log.epochs = EpochCache()
        log.leader_epoch = 0
        log.syncs.restart(log.point())


def _is_open_data(head: BatchHeader) -> bool:
    """Data whose transaction was not decided when its log was compacted last."""
    return head.attributes & (ATTR_TRANSACTIONAL | ATTR_CONTROL) == ATTR_TRANSACTIONAL
