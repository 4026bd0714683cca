"""Removes segments from the front of an open log, and swaps cleaned segments into it.

    trim     producers kept, recovery point moved away -> `log-start` persisted -> published by the
             caller -> dead segments removed, the first one first

    swap     still what the cleaner read? -> recovery point moved away -> marked, done (`swapping`)

A process may die between any two steps. Nothing below a persisted start is read, and the next open
removes it; a marked swap is finished. An error after those points undoes nothing: the next trim or
swap continues from there.

Owns the log start and these orders. Never syncs batches; every method may raise `StorageError`.
"""

from __future__ import annotations

import logging

from penstock.core.chain import Chain
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import CorruptBatchError, StorageError
from penstock.core.flush import Syncs
from penstock.core.header import HEADER_BYTES, parse
from penstock.core.logstart import first_live, save_start
from penstock.core.segment import open_for_reading
from penstock.core.storage import READ, Storage
from penstock.core.swapping import (
    CleanedSource,
    Prepared,
    SwapJob,
    cleaned_paths,
    drop_prepared,
)

logger = logging.getLogger("penstock.core.log")


class Cleanup:
    """Works on the parts of a `Log`, for it alone."""

    def __init__(
        self, storage: Storage, folder: str, chain: Chain, syncs: Syncs, log_start: int
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._chain = chain
        self._syncs = syncs
        self._half: Prepared | None = None  # marked, and not done
        self.job: SwapJob | None = None
        self.log_start = log_start

    def keeps_producers(self, start: int) -> bool:
        """Whether no producer is forgotten if the segments below `start` go. If not, a sync and a
        snapshot at its end are what is missing."""
        first = self._first(start)
        return first == self._chain.bases[0] or self._syncs.keep_producers(first)

    def move_start(self, start: int) -> None:
        """Persist the log start, which must be durable in the log. Nothing is removed yet."""
        self.settle()
        first = self._first(start)
        if first > self._chain.bases[0]:
            if not self._syncs.keep_producers(first):
                raise StorageError(
                    f"cannot trim {self._folder} to {start}: no snapshot keeps its producers",
                    retriable=True,
                )
            self._syncs.leave(first)
        self.lower_start(start)

    def lower_start(self, start: int) -> None:
        """Persist the log start where no segment goes."""
        save_start(self._storage, self._folder, start)
        self.log_start = start

    @property
    def has_dead(self) -> bool:
        """Whether segments are there that lie below the log start."""
        return bool(first_live(self._chain.bases, self.log_start))

    def drop_dead(self, epochs: EpochCache | None) -> None:
        """Removes the segments below the log start, and the epochs that ended there, if given.
        Segments that cannot be removed for lack of room or descriptors wait for the next call."""
        if not self.has_dead:
            return
        try:
            count = self._chain.drop_below(self.log_start)
            if epochs is not None and epochs.truncate_start(self._chain.bases[0]):
                save_epochs(self._storage, self._folder, epochs)
        except StorageError as error:
            if not error.retriable:
                raise
            logger.warning(
                "%s: below the log start some is left: %s",
                self._folder,
                error,
                extra={"folder": self._folder},
            )
            return
        logger.info(
            "%s: the log starts at %d, segments removed: %d", self._folder, self.log_start, count
        )

    def begin_swap(self, prepared: Prepared) -> SwapJob | None:
        """Returns the job that puts a cleaned segment in its place. Returns None and drops the
        prepared files if the log has changed since the cleaner read it."""
        storage, folder = self._storage, self._folder
        self._check_idle()
        again = self._half == prepared
        if not again:
            self.settle()
            self._chain.retire()
            why = self._objection(prepared)
            if why:
                logger.warning(
                    "%s: segment %d as cleaned is dropped: %s", folder, prepared.base, why
                )
                drop_prepared(storage, folder, prepared.base)
                return None
            self._syncs.leave(prepared.end)
        self._chain.restoring.forget(prepared.base, prepared.end)
        self.job = SwapJob(storage, folder, prepared, is_marked=again)
        return self.job

    def finish_swap(self, job: SwapJob) -> None:
        """Take over what a job did. Raises what it failed with: it can be asked for again."""
        if job is not self.job or not job.ran:
            raise ValueError("finish_swap wants the job that begin_swap gave, after it ran")
        self.job = None
        prepared = job.prepared
        self._chain.refresh(prepared.base, prepared.end)
        if job.error is not None:
            self._half = prepared if job.is_marked else None
            raise job.error
        self._half = None
        logger.info(
            "%s: segment %d now holds all below %d in %d bytes, made of %d segments",
            self._folder,
            prepared.base,
            prepared.end,
            prepared.length,
            len(prepared.sources),
        )

    def settle(self) -> None:
        """Finish the swap that an error has stopped half-way. Raises a retriable `StorageError`
        while one is under way."""
        self._check_idle()
        if self._half is not None:
            self._chain.restoring.forget(self._half.base, self._half.end)
            job = self.job = SwapJob(self._storage, self._folder, self._half, is_marked=True)
            job.run()
            self.finish_swap(job)

    def _check_idle(self) -> None:
        if self.job is not None:
            raise StorageError(
                f"a swap in {self._folder} is under way: finish it first", retriable=True
            )

    def _objection(self, prepared: Prepared) -> str:
        """Why this must not be swapped; empty if nothing speaks against it."""
        sources = prepared.sources
        if not sources or sources[0].base != prepared.base:
            return "it names no segment that it begins with"
        if self._chain.follower([source.base for source in sources]) != prepared.end:
            return f"segments {prepared.base} to {prepared.end} are not those it was made of"
        if prepared.end > self._syncs.durable:
            return f"offsets below {prepared.end} are not on the device"
        if not all(self._is_same(source) for source in sources):
            return "its segments have changed"
        path = cleaned_paths(self._folder, prepared.base)[0]
        if not self._storage.exists(path) or self._size(path) != prepared.length:
            return f"{path} is not there, or not whole"
        return ""

    def _is_same(self, source: CleanedSource) -> bool:
        fd = open_for_reading(self._storage, self._folder, source.base)
        try:
            head = parse(self._storage.pread(fd, HEADER_BYTES, source.position))
        except CorruptBatchError:
            return False
        finally:
            self._storage.close(fd)
        return head.header_crc == source.header_crc

    def _size(self, path: str) -> int:
        fd = self._storage.open(path, READ)
        try:
            return self._storage.size(fd)
        finally:
            self._storage.close(fd)

    def _first(self, start: int) -> int:
        bases = self._chain.bases
        return bases[first_live(bases, start)]
