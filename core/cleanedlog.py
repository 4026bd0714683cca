"""Writing a cleaned segment beside the log, to be swapped in by the writer (`swapping`).

Owns three files of its own until they are given away: log and indexes, all on the device when
`finish` returned. Never touches a segment of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.header import Buffer, parse
from penstock.core.index import IndexWriter
from penstock.core.segment import batch_time
from penstock.core.storage import WRITE_NEW, Storage, write_all
from penstock.core.swapping import cleaned_paths, drop_prepared

CHUNK_BYTES: Final = 1 << 20


class CleanedWriter:
    """Takes batches in order; then `finish`, or `drop`."""

    def __init__(self, storage: Storage, folder: str, base: int, interval: int) -> None:
        self._storage = storage
        self._folder = folder
        self._base = base
        self._index = IndexWriter(storage, folder, base, interval)
        self._pieces: list[Buffer] = []
        self._held = 0
        self.length = 0
        # Another file of that name may be one that the writer is about to use, or maps to.
        drop_prepared(storage, folder, base)
        self._fd = storage.open(cleaned_paths(folder, base)[0], WRITE_NEW)

    def add(self, pieces: Sequence[Buffer], base_offset: int) -> None:
        """A batch, stamped, in pieces that begin with its header."""
        self._index.note(base_offset, self.length, batch_time(parse(pieces[0])))
        self._pieces += pieces
        size = sum(map(len, pieces))
        self._held += size
        self.length += size
        if self._held >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        at = self.length - self._held
        write_all(self._storage, self._fd, self._pieces, at)
        self._pieces, self._held = [], 0

    def finish(self) -> None:
        """All of it is on the device when this returns, names included."""
        self._flush()
        self._storage.fsync(self._fd)
        self._close()
        _, *paths = cleaned_paths(self._folder, self._base)
        for path, data in zip(paths, self._index.contents(), strict=True):
            self._storage.write_file(path, data, durable=True)

    def drop(self) -> None:
        """Nothing of it is left."""
        self._close()
        drop_prepared(self._storage, self._folder, self._base)

    def _close(self) -> None:
        if self._fd >= 0:
            self._storage.close(self._fd)
            self._fd = -1
