"""A log that replicates: batches of a leader kept as they are, and epochs that others decide.

    append_verbatim   verify each batch, keep all its bytes; producers, transactions, epochs and
                      indexes are brought along as if it had been judged here
    lead              an epoch begins at the log's end, on the device before its first append
    follow            epochs that were begun here without a record are forgotten
    begin_anew        everything goes, and an empty log starts elsewhere (`again`)

A batch continues the log if it begins where that ends, or beyond, if compaction took what was
between: such a batch says so itself (`FLAG_COMPACTED`). In the log of one who copied it the gap may
then be at any place, also in the active segment. Where a transaction is open that has data here,
such a gap may be its outcome: it is not passed over, and `undecided` is from where on the log has
to be cut and copied again; the leader has there what was decided. Who was away for longer than
tombstones are kept may have records of keys that were deleted since, and takes no compacted batch
behind them (`is_outdated`): its log has to begin again.

Owns what only a replicated log does. Who leads, and what is committed, others say.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from penstock.core.admission import verify_verbatim
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import ErrorCode, LogOfflineError, NotLeaderError, StorageError
from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL, FLAG_COMPACTED, BatchHeader
from penstock.core.logrestart import wipe
from penstock.core.logtail import LogTail
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.segment import batch_time

Publish = Callable[[int], None]


class Verbatim(NamedTuple):
    """What became of some batches: the first `taken` of them are in the log, which ends at
    `log_end`; `error` and `message` say why not the next one."""

    log_end: int
    taken: int
    error: ErrorCode
    message: str


class VerbatimLog(LogTail):
    """The replicated half of `Log`."""

    undecided: Sequence[int] = ()
    """Where the transactions began, the oldest first, whose outcome compaction may have taken
    before the batch that `append_verbatim` refused last."""
    is_outdated = False
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
        """Append these batches of the leader's log, in order, up to the first that cannot be; those
        that are here already count as taken. Without `passes_over` none may begin beyond the end,
        compacted or not: what stands between may have been refused. `copied`: what was
        `undecided` and is copied again: what is open there is open in the leader's log, too.
        `was_away`: tombstones behind the end may have come and gone, where compaction was.

        `publish` is called with a lower end where an empty log has to begin a little earlier: with
        the batch in which the leader's log starts. Raises a retriable `StorageError` with nothing
        consumed, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        self.undecided, self.is_outdated = (), False
        was_away = was_away and not self._is_empty
        heads: list[BatchHeader] = []
        good: list[memoryview] = []
        begins, has_open = self._log_end, False
        end, order, taken, error, why = begins, self._order, 0, ErrorCode.NONE, ""
        for batch in batches:
            head = verify_verbatim(batch, self._topic_id, self._partition)
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
            newest = max(order, (self._epochs.latest, 0))
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
        if heads:
            start = self.log_start
            if begins < self._log_end:
                self._begin(begins, publish)
            self._append_heads(heads, good, now_us)
            if begins < start:
                self.sync()  # a log does not start beyond what is on the device
                self._set_start(start)
        return Verbatim(self._log_end, taken, error, why)

    def _outdated(self, head: BatchHeader) -> tuple[ErrorCode, str]:
        """Why who was away does not go on with that batch; nothing where it may."""
        self.is_outdated = bool(head.flags & FLAG_COMPACTED)
        if not self.is_outdated:
            return ErrorCode.NONE, ""
        return ErrorCode.BEYOND_LOG_END, (
            f"compaction was at offset {head.base_offset}, and may have taken tombstones of keys "
            "that are here"
        )

    @property
    def _is_empty(self) -> bool:
        return self.log_start == self._log_end and not self._chain.active.valid

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
        """Why what compaction took before a batch may not be passed over. `has_open`: open data
        stands between the log's end and that batch."""
        undecided = self._producers.undecided()
        if not all(start in copied for start in undecided):
            self.undecided = undecided
        elif not has_open:
            return ErrorCode.NONE, ""
        return ErrorCode.BEYOND_LOG_END, (
            f"compaction took what stood before offset {head.base_offset}, maybe the outcome of a "
            "transaction that is open here"
        )

    def _append_heads(
        self, heads: list[BatchHeader], batches: Sequence[memoryview], now_us: int
    ) -> None:
        chain, config = self._chain, self._config
        size = sum(head.length for head in heads)
        if chain.active.valid and (
            chain.active.valid + size > config.segment_bytes or self.needs_roll(now_us)
        ):
            self.roll(now_us)
        self._learn_epochs(heads)
        position, notes = chain.active.valid, []
        for head in heads:
            notes.append((head.base_offset, position, batch_time(head)))
            position += head.length
        try:
            chain.write(batches, position, config.preallocate_bytes)
        except StorageError as error:
            self._judge(error)
        if chain.active.first_append is None:
            chain.active.first_append = heads[0].append_timestamp
        last = heads[-1]
        newest = max(self._append_timestamp, *(head.append_timestamp for head in heads))
        self._appended(last.next_offset, newest, notes)
        self._order = (last.leader_epoch, last.generation)
        for head in heads:
            self._producers.replay(head)
        if self._producers.transactions.aborted:
            self._note_aborted()
        if len(self._producers) > self._producers_due:
            self._bound_producers()

    def _learn_epochs(self, heads: list[BatchHeader]) -> None:
        """What compaction took before a batch counts as its epoch's: of what was here instead,
        nobody can tell."""
        known, end = EpochCache(list(self._epochs.entries)), self._log_end
        for head in heads:
            known.assign(head.leader_epoch, end)
            end = head.next_offset
        self._adopt(known)

    def _adopt(self, epochs: EpochCache) -> None:
        if epochs.entries == self._epochs.entries:
            return
        try:
            save_epochs(self._storage, self._folder, epochs)
        except StorageError as error:
            self._judge(error)
        self._epochs = epochs
        self._leader_epoch = epochs.latest

    def _set_start(self, start: int) -> None:
        try:
            self._cleanup.lower_start(start)
        except StorageError as error:
            self._judge(error)

    # ---- roles

    def lead(self, epoch: int) -> None:
        """What is appended from now on is of that epoch. Raises `NotLeaderError` where the log has
        a later one, a retriable `StorageError` with nothing changed, or `LogOfflineError`."""
        if self._offline:
            raise LogOfflineError(self._offline)
        if epoch < self._epochs.latest or (epoch, self._generation) < self._order:
            raise NotLeaderError(
                f"the log in {self._folder} cannot be led in epoch {epoch} by writer generation "
                f"{self._generation}: it has epoch {self._epochs.latest}, and its last batch is of "
                f"epoch and generation {self._order}"
            )
        epochs = EpochCache(list(self._epochs.entries))
        epochs.assign(epoch, self._log_end)
        self._adopt(epochs)

    def follow(self) -> None:
        """Forget epochs that were begun here and hold nothing: the next leader may have records of
        an older one at the same offsets. Raises as `lead`."""
        if self._offline:
            raise LogOfflineError(self._offline)
        epochs = EpochCache(list(self._epochs.entries))
        epochs.truncate_end(self._log_end)
        self._adopt(epochs)

    def note_committed(self, offset: int) -> None:
        """Nothing below is ever truncated, so that older snapshots are not needed for that."""
        self._syncs.committed = offset

    # ---- beginning again

    def begin_anew(self, log_start: int, publish: Publish | None = None) -> None:
        """Let go of everything, producers too, and be an empty log that starts there. `publish` is
        called with the new end when that is certain to happen and before anything goes.

        Raises a retriable `StorageError` while a sync or a swap is under way, or `LogOfflineError`
        when it fails half-way: the next open finishes it.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        if self._is_empty and self._chain.bases == [log_start]:
            return
        if self._syncs.job is not None:
            raise StorageError(
                f"a sync of {self._folder} is under way: finish it first", retriable=True
            )
        try:
            self._cleanup.settle()
        except StorageError as error:
            self._judge(error)
        self._begin(log_start, publish)

    def _begin(self, start: int, publish: Publish | None) -> None:
        try:
            self._wipe(start, publish)
        except StorageError as error:
            raise self._go_offline(error) from error

    def _wipe(self, start: int, publish: Publish | None) -> None:
        at, interval = self._append_timestamp, self._config.index_interval_bytes
        self._syncs.move(RecoveryPoint(start, 0, start, 0, 0, at, self._boot_id, beginning=True))
        if publish is not None:
            publish(start)
        self._chain.begin_anew(wipe(self._storage, self._folder, start, interval))
        self._aborted.forget()
        self._log_end = self._cleanup.log_start = start
        self._order = (0, 0)
        self._producers = ProducerTable(self._config.producer_batches_kept)
        self._epochs = EpochCache()
        self._leader_epoch = 0
        self._syncs.begin_anew(self._point())


def _is_open_data(head: BatchHeader) -> bool:
    """Data whose transaction was not decided when its log was compacted last."""
    return head.attributes & (ATTR_TRANSACTIONAL | ATTR_CONTROL) == ATTR_TRANSACTIONAL
