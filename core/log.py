"""The log of one partition: the only thing that appends to its segments.

    append   verify each batch, judge its producer and sequence, stamp a private header copy;
             one pwritev for all that were accepted; then indexes, state and answers
    roll     close the active segment and begin the next, by size before an append or by age
    sync     begin_sync (this thread) -> job.run (any thread) -> finish_sync (this thread)
    trim     the log start moves up: persisted, published, and only then are segments removed
    swap     a cleaned segment takes the place of those that it was made of

Invariants: log_start <= durable <= log_end; the active segment is the last one; one append lies in
one segment. Append timestamps never fall. Nothing is visible to the caller's readers before the
call returned. An append that raises has consumed nothing.

Owns a log's life (open, close), the order of these steps, and the state between them. `logreplica`
does the rest for a replicated log. No threads, no sockets, no clock: time is an argument. File
access is only through `storage`, with one open descriptor a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import NoReturn

from penstock.core.aborted import AbortedWriter
from penstock.core.admission import AppendResult, Refusal, refused, verify
from penstock.core.chain import Chain
from penstock.core.cleanup import Cleanup
from penstock.core.errors import ErrorCode, LogOfflineError, OffsetOutOfRangeError, StorageError
from penstock.core.flush import WRITEBACK_BYTES, SyncJob, Syncs, Writeback, flush_index
from penstock.core.header import FLAG_APPEND_TIME, HEADER_BYTES, BatchHeader, stamp
from penstock.core.index import FLUSH_ENTRIES
from penstock.core.indexrestoring import IndexRestoring
from penstock.core.logconfig import LogConfig
from penstock.core.lookup import read_batches
from penstock.core.opentransactions import OpenTransaction
from penstock.core.producerexpiry import ProducerExpiry
from penstock.core.producers import AppendAnswer
from penstock.core.recovery import Recovered, Recovery, RecoveryReport
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.segment import OpenSegment
from penstock.core.storage import Storage
from penstock.core.survey import OpenRequest
from penstock.core.swapping import Prepared, SwapJob

__all__ = ["AppendResult", "Log", "LogConfig", "RecoveryReport", "SyncJob", "Writeback"]

logger = logging.getLogger("penstock.core.log")


class Log:
    """The log of one partition. Make one by `Log.open`; one thread calls it. Only this class and
    the log's `LogReplica` set its attributes; everybody may read them."""

    def __init__(self, request: OpenRequest, recovered: Recovered, expiry: ProducerExpiry) -> None:
        self.storage = storage = request.storage
        self.folder = folder = request.folder
        self.config = request.config
        self.owner = request.owner
        self.generation = request.generation
        self.boot_id = request.boot_id
        self.replicated = request.replicated
        interval = request.config.index_interval_bytes
        self.chain = Chain(
            storage,
            folder,
            request.owner,
            recovered.bases,
            recovered.unsynced,
            recovered.active,
            IndexRestoring(storage, folder, recovered.unindexed, interval),
        )
        self.log_end = recovered.log_end
        self.order = recovered.order
        """Leader epoch and generation of the last batch: those of the next are not below."""
        self.append_timestamp = recovered.append_timestamp
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.leader_epoch = recovered.epochs.latest
        self.expiry = expiry
        self.aborted = AbortedWriter(storage, folder)
        if recovered.producers.transactions.aborted_from is not None:
            # A killed writer may have noted some that no sync has taken to the device yet.
            ends = pairwise((*recovered.bases, recovered.log_end))
            self.aborted.unsynced = {base for base, end in ends if end > recovered.durable}
        self.syncs = Syncs(
            storage,
            folder,
            self.chain,
            recovered.point_file,
            self.aborted,
            durable=recovered.durable,
            point=recovered.point,
            is_settled=recovered.is_settled,
            batches=recovered.batches_above_point,
        )
        self.cleanup = Cleanup(storage, folder, self.chain, self.syncs, recovered.log_start)
        self.offline = ""
        """Why the log takes nothing any more; empty while it does."""

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
        attached: Callable[[], Container[int]] | None = None,
        believed_us: Callable[[], int] | None = None,
        replicated: bool = False,
    ) -> tuple[Log, RecoveryReport]:
        """Open or create the log in `folder`, recovering it as far as needed.

        `published` is the log end that the state page showed in this same boot, None if that is
        not known; `node_clean` says that the node was shut down cleanly. `attached` gives the
        producers that have a lane: without it none is ever forgotten. `believed_us`: a time that
        append times may be ahead of, and before which none is. `replicated`: it leads in no epoch
        before `LogReplica.lead` says so. Raises `LogOfflineError` if the log is damaged where it
        must not be, with its files kept as they are.
        """
        request = OpenRequest(
            storage,
            folder,
            config,
            (topic_id, partition),
            generation,
            boot_id,
            published,
            node_clean,
            replicated,
        )
        recovered, report = Recovery(request).run()
        expiry = ProducerExpiry(folder, config.producers_max, attached, believed_us)
        log = cls(request, recovered, expiry)
        if replicated:
            log.syncs.committed = log.log_start
        try:
            if log.needs_roll(now_us):
                log.roll(now_us)
        except StorageError as error:
            if not error.retriable:
                log.close(clean=False)
                raise
            logger.warning("%s: the next append begins the next segment: %s", folder, error)
        return log, report

    def configure(self, config: LogConfig) -> None:
        """Other settings from the next call on. `producer_batches_kept` and the index interval hold
        from the next open and the next segment on."""
        self.config = config

    # ---- what it is

    @property
    def log_start(self) -> int:
        return self.cleanup.log_start

    @property
    def durable(self) -> int:
        return self.syncs.durable

    @property
    def segment_base(self) -> int:
        return self.chain.active.base_offset

    @property
    def segments(self) -> Sequence[int]:
        """Where its segments begin, rising; the last one is active."""
        return tuple(self.chain.bases)

    @property
    def valid_bytes(self) -> int:
        return self.chain.active.valid

    @property
    def last_stable(self) -> int:
        """Below it every transaction is decided, and readers can tell which were aborted: the first
        offset of the oldest open one, or the log's end."""
        transactions, aborted = self.producers.transactions, self.aborted
        if not transactions and not aborted.pending:
            return self.log_end
        end, oldest, held = self.log_end, transactions.oldest, aborted.held
        if oldest is not None:
            end = oldest.first_offset
        if held is not None:
            end = min(end, held)
        return max(end, self.log_start)

    def published(self) -> tuple[int, int, int, int, OpenTransaction | None]:
        """`segment_base`, `valid_bytes`, `log_end`, `last_stable` and `oldest_open`, all that is
        published after an append, in one call."""
        active, end = self.chain.active, self.log_end
        oldest = self.producers.transactions.oldest
        stable = end if oldest is None and not self.aborted.pending else self.last_stable
        return active.base_offset, active.valid, end, stable, oldest

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The transaction that holds `last_stable` back."""
        return self.producers.transactions.oldest

    def point(self) -> RecoveryPoint:
        """The recovery point of all that is appended."""
        active = self.chain.active
        return RecoveryPoint(
            active.base_offset,
            active.valid,
            self.log_end,
            *self.order,
            self.append_timestamp,
            self.boot_id,
        )

    # ---- reading, for tools and tests; consumers map the segments (`reader`)

    def read(self, offset: int, max_bytes: int) -> list[tuple[BatchHeader, bytes]]:
        """Whole batches from the one that holds `offset` on, up to `max_bytes` but at least one;
        none at the log's end."""
        self.check_offset(offset)
        return read_batches(
            self.storage, self.folder, self.chain.bases, self.log_end, offset, max_bytes
        )

    def check_offset(self, offset: int) -> None:
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log in {self.folder}: it holds {self.log_start} "
                f"to {self.log_end}"
            )

    # ---- what an error means to it

    def check_online(self) -> None:
        if self.offline:
            raise LogOfflineError(self.offline)

    def judge(self, error: StorageError) -> NoReturn:
        """Raise a retriable error as it is, its cause with it; any other takes the log offline."""
        if error.retriable:
            raise error
        raise self.go_offline(error) from error

    def go_offline(self, error: Exception) -> LogOfflineError:
        if not self.offline:
            self.offline = f"the log in {self.folder} is offline until it is recovered: {error}"
            logger.error("%s", self.offline, extra={"folder": self.folder, "reason": str(error)})
        return LogOfflineError(self.offline)

    # ---- append

    def append(self, batches: Sequence[memoryview], now_us: int) -> list[AppendResult]:
        """Append the good ones of these batches, in order; one answer for each.

        Raises a retriable `StorageError` with nothing consumed, or `LogOfflineError`.
        """
        if self.offline:
            raise LogOfflineError(self.offline)
        config, chain, producers = self.config, self.chain, self.producers
        valid = chain.active.valid
        if valid and (
            valid + sum(map(len, batches)) > config.segment_bytes
            or (config.segment_age is not None and self.needs_roll(now_us))
        ):
            self.roll(now_us)
            valid = 0
        if now_us < self.append_timestamp:
            now_us = self.append_timestamp  # the clock was set back: the log's time does not move
        topic_id, partition = self.owner
        epoch, generation = order = self.leader_epoch, self.generation
        append_time = config.timestamp_type == "append"
        flags = FLAG_APPEND_TIME if append_time else 0
        results: list[AppendResult] = []
        buffers: list[bytearray | memoryview] = []
        notes: list[tuple[int, int, int]] = []
        offset, position = self.log_end, valid
        for batch in batches:
            verdict = verify(batch, topic_id, partition, config.batch_bytes_max)
            if isinstance(verdict, Refusal):
                results.append(self._refuse(verdict))
                continue
            private, head = verdict
            answer = producers.admit(head, offset, now_us)
            if answer is not None:
                results.append(self._answered(answer, head))
                continue
            stamp(
                private,
                base_offset=offset,
                leader_epoch=epoch,
                generation=generation,
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
                producers.rollback()
                self.judge(error)
            self.grow(offset, order, now_us, notes)
        producers.commit()
        if producers.transactions.aborted or len(producers) > self.expiry.due:
            self.tend_producers()
        return results

    def grow(
        self, end: int, order: tuple[int, int], now_us: int, notes: list[tuple[int, int, int]]
    ) -> None:
        """Batches were written, up to `end`. `notes`: offset, position and time of each."""
        self.log_end = end
        self.order = order
        self.append_timestamp = now_us
        syncs, active = self.syncs, self.chain.active
        syncs.batches_above_point += len(notes)
        syncs.batches_above_snapshot += len(notes)
        if active.first_append is None:
            active.first_append = now_us
        index = active.index
        grown = False
        for note in notes:
            grown = index.note(*note) or grown
        if grown and index.pending >= FLUSH_ENTRIES:
            flush_index(active, self.folder)

    def tend_producers(self) -> None:
        """Notes the transactions that were aborted, and forgets producers where there are too many.

        The note follows the append and precedes any reader. A note that fails holds the last stable
        offset back; the next sync or abort tries again.
        """
        producers = self.producers
        if producers.transactions.aborted:
            self.chain.folder_changed = True
            taken = producers.transactions.take_aborted()
            self.aborted.note(self.chain.active.base_offset, taken)
        if len(producers) > self.expiry.due:
            now, limit = self.append_timestamp, self.config.producers_max
            self.expiry.expire_oldest(producers, now, limit)

    def note_held_aborts(self) -> bool:
        """Try once more what held the last stable offset back; whether that is over now."""
        return self.aborted.held is not None and self.aborted.flush()

    def _refuse(self, refusal: Refusal) -> AppendResult:
        if refusal.head is not None:
            self.producers.poison_behind(refusal.head, refusal.result.error)
        # Without a header to trust nobody can be poisoned; the sequence gap that the batch leaves
        # refuses what follows.
        return refusal.result

    def repeated(self, batch: memoryview) -> AppendResult | None:
        """Where a batch is that was appended before, None if it is not known to be."""
        verdict = verify(batch, *self.owner, self.config.batch_bytes_max)
        if isinstance(verdict, Refusal):
            return None
        _, head = verdict
        answer = self.producers.repeat(head)
        return None if answer is None else self._answered(answer, head)

    def _answered(self, answer: AppendAnswer, head: BatchHeader) -> AppendResult:
        if answer.error is ErrorCode.NONE:
            _, base, following, at, _ = answer
            return AppendResult(base, following, at, 0, True, "")
        self.producers.poison_behind(head, answer.error)
        logger.warning(
            "%s: refused: %s",
            self.folder,
            answer.message,
            extra={"folder": self.folder, "reason": answer.message},
        )
        return refused(answer.error, answer.message)

    # ---- segments

    def needs_roll(self, now_us: int) -> bool:
        """Whether the active segment has reached its age or size."""
        active, config = self.chain.active, self.config
        if not active.valid or self.offline:
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
        self.check_online()
        active = self.chain.active
        if not active.valid:
            return
        try:
            self.chain.roll(self.log_end, self.config.index_interval_bytes)
        except StorageError as error:
            self.judge(error)
        if self.producers.transactions.aborted_from is not None:
            self.aborted.roll(active.base_offset, self.log_end)
        age = (now_us - (active.first_append or now_us)) / 1e6
        logger.info(
            "%s: segment %d closed with %d bytes after %.0f s",
            self.folder,
            active.base_offset,
            active.valid,
            age,
        )
        self.snapshot()

    def snapshot(self) -> None:
        """Write the producer state at the log's end. A failure is logged: it only costs recovery
        time. Fsynced, and older ones removed, by the next sync. Producers that are long silent are
        forgotten."""
        now, limit = self.append_timestamp, self.config.producers_max
        self.expiry.expire(self.producers, now, limit)
        if self.aborted.flush():  # the log below a snapshot is not looked through for aborts again
            self.syncs.snapshot(self.producers, self.log_end)

    # ---- sync

    def sync_due(self, seconds_since_last: float) -> bool:
        """Whether the flush mode, a closed segment or the bound on recovery asks for a sync."""
        return not self.offline and self.syncs.due(self.config, self.log_end, seconds_since_last)

    def sync(self) -> None:
        """Everything appended is on the device when this returns (rule 16 applied if needed)."""
        job = self.begin_sync()
        if job is not None:
            job.run()
            self.finish_sync(job)

    def writeback(self) -> Writeback | None:
        """Returns a range for the kernel to begin to write out, once there are enough bytes.
        Promises nothing. It shortens the next sync, and the syncs of others."""
        found = self.chain.writeback(WRITEBACK_BYTES)
        return found and Writeback(self.storage, *found)

    def begin_sync(self) -> SyncJob | None:
        """Returns the job that forces all present appends to the device; None if nothing is
        pending.

        Run it in any thread, then give it to `finish_sync`; appends may go on meanwhile. One job at
        a time: a second one raises a retriable `StorageError`.
        """
        self.check_online()
        if self.syncs.batches_above_snapshot >= self.config.snapshot_batches:
            self.snapshot()
        return self.syncs.begin(self.point())

    def finish_sync(self, job: SyncJob) -> None:
        """Take over what a job reached: move `durable` and the recovery point. After a failed
        fsync that could be mended, the log goes on in a new segment.

        Raises `LogOfflineError` if the log could not be brought to the device, and a retriable
        `StorageError` if that has to be tried again.
        """
        try:
            self.syncs.finish(job, self._rescue, self.point)
        except StorageError as error:
            self.judge(error)
        self.check_online()

    def _rescue(self, failed: list[OpenSegment]) -> None:
        interval = self.config.index_interval_bytes
        self.chain.rescue(failed, self.log_end, self.boot_id, interval)

    # ---- start

    def trim(self, offset: int, publish: Callable[[int], None] | None = None) -> int:
        """Let the log start at `offset`, at most at its end; the log start from now on.

        Records below are out of reach at once, also within a segment or a batch that stays; whole
        segments below are removed. A trim to the end closes the active segment first, so that all
        room is given back. Syncs first if `offset` is not durable. `publish` is called with the new
        start once it is persisted and before anything is removed.

        Raises a retriable `StorageError` with the log start as it was, or `LogOfflineError`.
        """
        self.check_online()
        cleanup = self.cleanup
        start = max(min(offset, self.log_end), cleanup.log_start)
        try:
            if start > cleanup.log_start or cleanup.has_dead:
                if start > self.durable:
                    self.sync()
                if start == self.log_end:
                    self.roll(self.append_timestamp)
                if not cleanup.keeps_producers(start):
                    self.sync()
                    self.snapshot()
                cleanup.move_start(start)
                if publish is not None:
                    publish(start)
            cleanup.drop_dead(None if self.replicated else self.epochs)
        except StorageError as error:
            self.judge(error)
        return cleanup.log_start

    def swap(self, prepared: Prepared) -> bool:
        """Put a segment that the cleaner has cleaned in the place of those it was made of; False if
        the log has changed there: the cleaner has to begin again. In order, lowest offsets first.

        Raises a retriable `StorageError` (ask again), or `LogOfflineError`.
        """
        job = self.begin_swap(prepared)
        if job is None:
            return False
        job.run()
        self.finish_swap(job)
        return True

    def begin_swap(self, prepared: Prepared) -> SwapJob | None:
        """Begins a `swap` in steps, or returns None where `swap` returns False. Run the job in any
        thread (it waits for the device twice), then give it to `finish_swap`. Appends and syncs may
        go on meanwhile."""
        self.check_online()
        try:
            return self.cleanup.begin_swap(prepared)
        except StorageError as error:
            self.judge(error)

    def finish_swap(self, job: SwapJob) -> None:
        try:
            self.cleanup.finish_swap(job)
        except StorageError as error:
            self.judge(error)

    # ---- indexes

    @property
    def lacks_indexes(self) -> bool:
        """Whether closed segments have lost indexes that `restore_indexes` has not made again."""
        return not self.offline and self.chain.restoring.has_missing

    def restore_indexes(self, batches_max: int) -> bool:
        """Reads about `batches_max` headers for missing indexes, and returns whether there is more
        to do. The next sync, which is due then, puts finished indexes in place.

        Raises a retriable `StorageError`, or `LogOfflineError` where a segment is damaged.
        """
        self.check_online()
        try:
            return self.chain.restoring.step(self.chain.bases, batches_max)
        except StorageError as error:
            self.judge(error)

    # ---- end

    def close(self, *, clean: bool) -> None:
        """`clean`: sync, snapshot and recovery point first, so that the next open reads nothing.
        A job of `begin_sync` or `begin_swap` has to be finished before."""
        if self.syncs.job is not None or self.cleanup.job is not None:
            raise ValueError("close wants the job under way finished first")
        try:
            if not self.offline:
                flush_index(self.chain.active, self.folder)
                if clean:
                    self.sync()
                    if not self.syncs.is_settled(self.point()):
                        self.snapshot()
                        if self.chain.bases[0]:
                            self.syncs.sync_snapshots()
                        self.syncs.save_point(self.point(), durable=True)
        except StorageError as error:
            self.judge(error)
        finally:
            self.chain.close()
            self.offline = self.offline or f"the log in {self.folder} is closed"
