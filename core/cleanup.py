"""What is taken away from the front of an open log, and put in other places there.

    trim     producers kept, recovery point moved away -> `log-start` persisted -> published by the
             caller -> dead segments removed, the first one first

Whatever a process dies in between: below a persisted start nothing is read, and the next open
removes it. An error after that point takes nothing back; the next trim goes on with the removing.

Owns the log start and these orders. Never syncs batches; every method may raise `StorageError`.
"""

from __future__ import annotations

import logging

from penstock.core.chain import Chain
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import StorageError
from penstock.core.flush import Syncs
from penstock.core.logstart import first_live, save_start
from penstock.core.storage import Storage

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
        self.log_start = log_start

    def keeps_producers(self, start: int) -> bool:
        """Whether no producer is forgotten if the segments below `start` go. If not, a sync and a
        snapshot at its end are what is missing."""
        first = self._first(start)
        return first == self._chain.bases[0] or self._syncs.keep_producers(first)

    def move_start(self, start: int) -> None:
        """Persist the log start, which must be durable in the log. Nothing is removed yet."""
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

    def drop_dead(self, epochs: EpochCache) -> None:
        """Remove the segments below the log start. What cannot be removed for want of room or
        descriptors stays for the next time."""
        if not first_live(self._chain.bases, self.log_start):
            return
        try:
            count = self._chain.drop_below(self.log_start)
            if epochs.truncate_start(self._chain.bases[0]):
                save_epochs(self._storage, self._folder, epochs)
        except StorageError as error:
            if not error.retriable:
                raise
            logger.warning("%s: below the log start some is left: %s", self._folder, error)
            return
        logger.info(
            "%s: the log starts at %d, segments removed: %d", self._folder, self.log_start, count
        )

    def _first(self, start: int) -> int:
        bases = self._chain.bases
        return bases[first_live(bases, start)]
