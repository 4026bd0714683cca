"""The aborted transactions of each segment: the files `<base>.txn`.

    ┌──────────────────────┬───────────┬───────────┬──────────────┬─────────────┬─────────────┐
    │ producer id      u64 │ epoch u32 │ crc   u32 │ first    u64 │ last    u64 │ stable  u64 │
    └──────────────────────┴───────────┴───────────┴──────────────┴─────────────┴─────────────┘

One entry of 40 bytes for each ABORT marker of the segment, in its order. `last` is the marker's
offset, and `epoch` is the epoch of the transaction that it closed. `first` is the offset of its
BEGIN, and `stable` is the last stable offset behind the marker. The checksum covers the rest of the
entry. Each transaction of a producer has its own epoch: (producer id, epoch) alone tells a reader
which batches to leave out.

Every segment that ends behind the log's first ABORT marker has the file, even an empty one. A
missing one was deleted, and the next open makes it again. A log without aborts has none. An entry
is in its file before readers may pass the transaction. An entry that cannot be written now holds
the last stable offset back (`held`) until it can.

Owns the bytes and these files. Never reads the log (`replay` does, to make them again).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.core.crc import crc32c
from penstock.core.errors import StorageError
from penstock.core.index import stem_path
from penstock.core.storage import WRITE_ANY, Storage, write_all

logger = logging.getLogger("penstock.core.log")

TXN_SUFFIX: Final = ".txn"
TXN_ENTRY: Final = struct.Struct("<QIIQQQ")
_CRC_FREE: Final = struct.Struct("<QIQQQ")
TXN_ENTRY_BYTES: Final = 40
assert TXN_ENTRY.size == TXN_ENTRY_BYTES


class Aborted(NamedTuple):
    """An aborted transaction. `first_offset` is the marker's own where the log does not hold the
    beginning any more."""

    producer_id: int
    epoch: int
    first_offset: int
    last_offset: int
    last_stable: int


def txn_path(folder: str, base_offset: int) -> str:
    return stem_path(folder, base_offset) + TXN_SUFFIX


def encode_aborted(entries: Iterable[Aborted]) -> bytes:
    return b"".join(
        TXN_ENTRY.pack(
            producer_id, epoch, _crc(producer_id, epoch, first, last, stable), first, last, stable
        )
        for producer_id, epoch, first, last, stable in entries
    )


def _crc(producer_id: int, epoch: int, first: int, last: int, stable: int) -> int:
    return int(crc32c(_CRC_FREE.pack(producer_id, epoch, first, last, stable)))


def decode_aborted(data: bytes) -> list[Aborted]:
    """The entries up to the first that is not whole and good."""
    entries = []
    for at in range(0, len(data) - TXN_ENTRY_BYTES + 1, TXN_ENTRY_BYTES):
        producer_id, epoch, crc, first, last, stable = TXN_ENTRY.unpack_from(data, at)
        if crc != _crc(producer_id, epoch, first, last, stable):
            break
        entries.append(Aborted(producer_id, epoch, first, last, stable))
    return entries


def is_whole(data: bytes) -> bool:
    """Whether a file holds good entries and nothing else."""
    return len(decode_aborted(data)) * TXN_ENTRY_BYTES == len(data)


class AbortedWriter:
    """The files of an open log. Holds no descriptor, as `IndexWriter`."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self.pending: list[tuple[int, Aborted]] = []  # (segment, entry), oldest first
        self._counts: dict[int, int] = {}  # entries in the file of a segment, once it is known
        self.unsynced: set[int] = set()

    @property
    def held(self) -> int | None:
        """The first offset of what is not in its file yet: readers must not get so far."""
        return min(entry.first_offset for _, entry in self.pending) if self.pending else None

    def note(self, base: int, entries: Iterable[Aborted]) -> None:
        """ABORT markers that are in segment `base` of the log now. Written at once, or with the
        next `flush`."""
        self.pending += [(base, entry) for entry in entries]
        self.flush()

    def flush(self) -> bool:
        """Write what is pending; whether all of it is written."""
        while self.pending:
            base = self.pending[0][0]
            entries = [entry for at, entry in self.pending if at == base]
            try:
                self._append(base, entries)
            except StorageError as error:
                logger.warning(
                    "%s: %d aborted transactions not noted yet, read_committed readers wait: %s",
                    self._folder,
                    len(self.pending),
                    error,
                    extra={"folder": self._folder, "reason": str(error)},
                )
                return False
            self.pending = [each for each in self.pending if each[0] != base]
        return True

    def _append(self, base: int, entries: list[Aborted]) -> None:
        storage, path = self._storage, txn_path(self._folder, base)
        count = self._counts.get(base)
        if count is None:
            count = len(storage.read_file(path) or b"") // TXN_ENTRY_BYTES
        fd = storage.open(path, WRITE_ANY)
        try:
            write_all(storage, fd, [encode_aborted(entries)], count * TXN_ENTRY_BYTES)
        finally:
            storage.close(fd)
        self._counts[base] = count + len(entries)
        self.unsynced.add(base)

    def take_unsynced(self) -> set[int]:
        """Segments whose file changed since the last time."""
        taken, self.unsynced = self.unsynced, set()
        return taken

    def roll(self, closed: int, active: int) -> None:
        """Segment `active` follows `closed`: have both their files, empty where nothing was aborted
        there. Where that fails the next open makes them."""
        self.flush()
        self._counts.pop(closed, None)
        for base in (closed, active):
            if not self._storage.exists(txn_path(self._folder, base)):
                try:
                    self._append(base, [])
                except StorageError as error:
                    logger.warning("%s: %s", self._folder, error, extra={"folder": self._folder})

    def forget(self) -> None:
        """The log begins again; its files are gone."""
        self.pending.clear()
        self._counts.clear()
        self.unsynced.clear()

    def cut(self, bases: Sequence[int], log_end: int) -> None:
        """The log was truncated to `log_end`; files of segments that are gone went with them."""
        self.pending = [each for each in self.pending if each[1].last_offset < log_end]
        self._counts.clear()
        self.unsynced.intersection_update(bases)
        for base in bases[-2:]:  # what was cut, and the fresh segment behind it
            path = txn_path(self._folder, base)
            data = self._storage.read_file(path)
            kept = [each for each in decode_aborted(data or b"") if each.last_offset < log_end]
            if data is not None and data != encode_aborted(kept):
                self._storage.write_file(path, encode_aborted(kept), durable=True)
        self.flush()
