"""Leaves the batches of aborted transactions out, for readers of committed records.

The `.txn` files (`aborted`) list these transactions by segment: each is in the file of its marker,
which may lie behind the batch. Below the last stable offset every transaction is decided and noted.
So the files are read only when a reader meets a transactional batch above the known offset, and
only their new entries. Batches without a transaction never come here.

Owns the entries read from these files. Runs in the consumer's process and the cleaner's; never
writes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from penstock.core.aborted import TXN_ENTRY_BYTES, decode_aborted, txn_path
from penstock.core.errors import StorageError
from penstock.core.header import BatchHeader
from penstock.core.segment import list_segments
from penstock.core.storage import READ, Storage

PRUNE_FROM: Final = 4096
"""Aborted transactions remembered before those behind the reader are let go."""
LISTINGS_MAX: Final = 100
_END: Final = 1 << 63


class AbortedTransactions:
    """The aborted transactions of one partition folder, as far as a reader has to know them.

    `_low` and `_known_to`: all that have data between these offsets are among `_last_of`, which has
    the offset of the marker of each (producer id, epoch).
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._last_of: dict[tuple[int, int], int] = {}
        self._read: dict[int, int] = {}  # segment -> bytes of its file that are known
        self._low = 0
        self._known_to = 0

    def __len__(self) -> int:
        return len(self._last_of)

    def has(self, head: BatchHeader, last_stable: int) -> bool:
        """Whether this transactional batch, which lies below the last stable offset `last_stable`
        of the log, was aborted. Raises `StorageError`."""
        if not self._low <= head.base_offset < self._known_to:
            self._look(head.base_offset, last_stable)
        return (head.producer_id, head.producer_epoch) in self._last_of

    def forget(self) -> None:
        """The log is another one from some offset on."""
        self._last_of.clear()
        self._read.clear()
        self._low = self._known_to = 0

    def _look(self, offset: int, last_stable: int) -> None:
        if offset < self._low:
            self.forget()
        if offset > self._known_to:  # nobody looked at what lies between
            self._low = offset
        bases = list_segments(self._storage, self._folder)
        for _ in range(LISTINGS_MAX):
            missing = [
                base
                for base, end in pairwise((*bases, _END))
                if end > offset and not self._add(base, last_stable)
            ]
            # One that is missing was never made, or went with its segment while this was reading:
            # its entries are in the file of the segment before it then.
            before, bases = bases, missing and list_segments(self._storage, self._folder)
            if not missing or bases == before:
                break
        else:
            raise StorageError(
                f"the segments of {self._folder} changed at every look at them", retriable=True
            )
        self._known_to = last_stable
        if len(self._last_of) > PRUNE_FROM:
            self._low = offset
            self._last_of = {who: last for who, last in self._last_of.items() if last >= offset}

    def _add(self, base: int, last_stable: int) -> bool:
        """Reads the new entries in the file of a segment, and returns whether the file exists.
        Reads entries of markers from `last_stable` on again: a replica may cut them off and write
        others."""
        storage, path = self._storage, txn_path(self._folder, base)
        try:
            fd = storage.open(path, READ)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        try:
            size, known = storage.size(fd), self._read.get(base, 0)
            if size < known:
                known = 0  # made again
            if size == known:
                return True
            for _ in range(2):  # it may have been written to just now
                entries = decode_aborted(storage.pread(fd, size - known, known))
                if len(entries) == (size - known) // TXN_ENTRY_BYTES:
                    break
            else:
                raise StorageError(
                    f"{path} is damaged at byte {known + len(entries) * TXN_ENTRY_BYTES}: what was "
                    "aborted in that segment is not known, so none of it is shown. Start the node "
                    "again: it makes the file again from the log"
                )
        finally:
            storage.close(fd)
        self._last_of.update(((each.producer_id, each.epoch), each.last_offset) for each in entries)
        stable = sum(each.last_offset < last_stable for each in entries)
        self._read[base] = known + stable * TXN_ENTRY_BYTES
        return True
