"""The log of one partition: the only thing that appends to its segments.

    append, roll, sync   see `logtail`
    append_verbatim, lead, begin_anew   a replica's, see `verbatim`
    trim     the log start moves up: persisted, published, and only then are segments removed
    swap     a cleaned segment takes the place of those that it was made of
    truncate the log ends earlier: synced, marked, published, cut

Invariants: log_start <= durable <= log_end; the active segment is the last one.

Owns a log's life (open, close), what is taken away from it, and the state between all these steps.
No threads, no sockets, no clock: time is an argument. File access only through `storage`, one open
descriptor a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from itertools import pairwise

from penstock.core.aborted import AbortedWriter
from penstock.core.admission import AppendResult
from penstock.core.chain import Chain
from penstock.core.cleanup import Cleanup
from penstock.core.epochs import save_epochs
from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.flush import SyncJob, Syncs, Writeback, flush_index
from penstock.core.indexrestoring import IndexRestoring
from penstock.core.logconfig import LogConfig
from penstock.core.recovery import Recovered, Recovery, RecoveryReport
from penstock.core.recoverypoint import RecoveryPoint
from penstock.core.replay import rebuild_producers
from penstock.core.snapshots import remove_useless_snapshots
from penstock.core.storage import Storage
from penstock.core.survey import OpenRequest
from penstock.core.swapping import Prepared, SwapJob, forget_cleaned_to
from penstock.core.verbatim import VerbatimLog

__all__ = ["AppendResult", "Log", "LogConfig", "RecoveryReport", "SyncJob", "Writeback"]

logger = logging.getLogger("penstock.core.log")


class Log(VerbatimLog):
    """See the module. Make one by `Log.open`; one thread calls it."""

    def __init__(self, request: OpenRequest, recovered: Recovered) -> None:
        self._storage = storage = request.storage
        self._folder = folder = request.folder
        self._config = request.config
        self._topic_id, self._partition = request.owner
        self._generation = request.generation
        self._boot_id = request.boot_id
        self._replicated = request.replicated
        interval = request.config.index_interval_bytes
        self._chain = Chain(
            storage,
            folder,
            request.owner,
            recovered.bases,
            recovered.unsynced,
            recovered.active,
            IndexRestoring(storage, folder, recovered.unindexed, interval),
        )
        self._log_end = recovered.log_end
        self._order = recovered.order
        self._append_timestamp = recovered.append_timestamp
        self._producers = recovered.producers
        self._epochs = recovered.epochs
        self._leader_epoch = recovered.epochs.latest
        self._aborted = AbortedWriter(storage, folder)
        if recovered.producers.transactions.aborted_from is not None:
            # Who was killed may have noted some that no sync has taken to the device yet.
            ends = pairwise((*recovered.bases, recovered.log_end))
            self._aborted.unsynced = {base for base, end in ends if end > recovered.durable}
        self._syncs = Syncs(
            storage,
            folder,
            self._chain,
            recovered.point_file,
            self._aborted,
            durable=recovered.durable,
            point=recovered.point,
            is_settled=recovered.is_settled,
            batches=recovered.batches_above_point,
        )
        self._cleanup = Cleanup(storage, folder, self._chain, self._syncs, recovered.log_start)
        self._attached: Callable[[], Container[int]] | None = None
        self._believed_us: Callable[[], int] | None = None
        self._producers_due = request.config.producers_max
        self.producers_expired = 0
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
        attached: Callable[[], Container[int]] | None = None,
        believed_us: Callable[[], int] | None = None,
        replicated: bool = False,
    ) -> tuple[Log, RecoveryReport]:
        """Open or create the log in `folder`, recovering it as far as needed.

        `published` is the log end that the state page showed in this same boot, None if that is
        not known; `node_clean` says that the node was shut down cleanly. `attached` gives the
        producers that have a lane: without it none is ever forgotten. `believed_us`: a time that
        append times may be ahead of, and before which none is. `replicated`: it leads in no epoch
        before `lead` says so. Raises `LogOfflineError` if the log is damaged where it must not be,
        with its files kept as they are.
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
        log = cls(request, recovered)
        log._attached, log._believed_us = attached, believed_us
        if replicated:
            log.note_committed(log.log_start)
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
        self._config = config

    # ---- start

    def trim(self, offset: int, publish: Callable[[int], None] | None = None) -> int:
        """Let the log start at `offset`, at most at its end; the log start from now on.

        Records below are out of reach at once, also within a segment or a batch that stays; whole
        segments below are removed. A trim to the end closes the active segment first, so that all
        room is given back. Syncs first if `offset` is not durable. `publish` is called with the new
        start once it is persisted and before anything is removed.

        Raises a retriable `StorageError` with the log start as it was, or `LogOfflineError`.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        cleanup = self._cleanup
        start = max(min(offset, self._log_end), cleanup.log_start)
        try:
            if start > cleanup.log_start or cleanup.has_dead:
                if start > self.durable:
                    self.sync()
                if start == self._log_end:
                    self.roll(self._append_timestamp)
                if not cleanup.keeps_producers(start):
                    self.sync()
                    self.snapshot()
                cleanup.move_start(start)
                if publish is not None:
                    publish(start)
            cleanup.drop_dead(None if self._replicated else self._epochs)
        except StorageError as error:
            self._judge(error)
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
        """`swap` in steps: run the job in any thread (it waits for the device twice), then give it
        to `finish_swap`; appends and syncs may go on meanwhile. None where `swap` says False."""
        if self._offline:
            raise LogOfflineError(self._offline)
        try:
            return self._cleanup.begin_swap(prepared)
        except StorageError as error:
            self._judge(error)

    def finish_swap(self, job: SwapJob) -> None:
        try:
            self._cleanup.finish_swap(job)
        except StorageError as error:
            self._judge(error)

    # ---- indexes

    @property
    def lacks_indexes(self) -> bool:
        """Whether closed segments have lost indexes that `restore_indexes` has not made again."""
        return not self._offline and self._chain.restoring.has_missing

    def restore_indexes(self, batches_max: int) -> bool:
        """Read about so many headers for indexes that are missing; whether there is more to do.
        What is ready comes into place with a sync, which is due then.

        Raises a retriable `StorageError`, or `LogOfflineError` where a segment is damaged.
        """
        if self._offline:
            raise LogOfflineError(self._offline)
        try:
            return self._chain.restoring.step(self._chain.bases, batches_max)
        except StorageError as error:
            self._judge(error)

    # ---- end

    def truncate_to(self, offset: int, publish: Callable[[int], None] | None = None) -> int:
        """End the log at `offset`, or at the start of the batch that holds it; the new end.

        Syncs first. `publish` is called with the new end once the truncation is certain to happen
        and before anything is cut: had the state page shown a higher one after the cut, the next
        open in this boot would take the difference for damage. Raises `LogOfflineError` when it
        fails half-way: the next open finishes it.
        """
        if offset >= self._log_end:
            return self._log_end
        self._check_offset(offset)
        self.sync()
        try:
            self._cleanup.settle()
        except StorageError as error:
            self._judge(error)
        try:
            return self._truncate(offset, publish)
        except StorageError as error:
            raise self._go_offline(error) from error

    def _truncate(self, offset: int, publish: Callable[[int], None] | None) -> int:
        storage, folder, chain = self._storage, self._folder, self._chain
        base, position, end = chain.locate(offset)
        if end < self.log_start:  # it lies within a batch
            self._cleanup.lower_start(end)
        self._order = (self._epochs.epoch_at(end - 1) or 0, 0)
        at = self._append_timestamp
        self._syncs.move(
            RecoveryPoint(base, position, end, *self._order, at, self._boot_id, truncating=True)
        )
        if publish is not None:
            publish(end)
        forget_cleaned_to(storage, folder)
        remove_useless_snapshots(storage, folder, end, end)
        self._syncs.forget_snapshots()
        interval = self._config.index_interval_bytes
        chain.truncate(base, position, end, self._boot_id, interval)
        self._log_end = end
        self._epochs.truncate_end(end)
        if self._replicated:
            self._leader_epoch = self._epochs.latest
        else:
            self._epochs.assign(self._leader_epoch, end)
        save_epochs(storage, folder, self._epochs)
        kept = self._config.producer_batches_kept
        self._producers, _ = rebuild_producers(storage, folder, chain.bases, end, kept)
        self._producers.transactions.take_aborted()
        self._aborted.cut(chain.bases, end)
        if self._replicated:  # a segment begins here, as at each roll: the next trim may need it
            self._syncs.snapshot(self._producers, end, durable=True)
        self._syncs.move(self._point())
        return end

    def close(self, *, clean: bool) -> None:
        """`clean`: sync, snapshot and recovery point first, so that the next open reads nothing.
        A job of `begin_sync` or `begin_swap` has to be finished before."""
        if self._syncs.job is not None or self._cleanup.job is not None:
            raise ValueError("close wants the job under way finished first")
        try:
            if not self._offline:
                flush_index(self._chain.active, self._folder)
                if clean:
                    self.sync()
                    if not self._syncs.is_settled(self._point()):
                        self.snapshot()
                        if self._chain.bases[0]:
                            self._syncs.sync_snapshots()
                        self._syncs.save_point(self._point(), durable=True)
        except StorageError as error:
            self._judge(error)
        finally:
            self._chain.close()
            self._offline = self._offline or f"the log in {self._folder} is closed"
