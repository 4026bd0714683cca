"""The files `producers-<offset>.snapshot` of a partition: written, found, and kept few.

A snapshot has a checksum and is replaced as one step, so readers may rely on it before an fsync.
They pass over a damaged one for an older one or for the log. Old ones go only when two newer ones
at or below the recovery point are on the device.

An open log lists its folder once and remembers which snapshots there are (`Snapshots`): the folder
has three names for each segment.
Owns names and files. The bytes are `producers`' business.
"""

from __future__ import annotations

import re
from bisect import insort
from typing import Final

from penstock.core.errors import CorruptBatchError
from penstock.core.producers import ProducerTable
from penstock.core.storage import Storage

SNAPSHOTS_KEPT: Final = 2
PREFIX: Final = "producers-"
_NAME: Final = re.compile(r"producers-(\d{20})\.snapshot")


def snapshot_path(folder: str, offset: int) -> str:
    return f"{folder}/{PREFIX}{offset:020d}.snapshot"


def list_snapshots(storage: Storage, folder: str) -> list[int]:
    """Offsets of a folder's snapshots, rising."""
    found = [name for name in storage.listdir(folder) if name.startswith(PREFIX)]
    matches = map(_NAME.fullmatch, found)
    return sorted(int(match[1]) for match in matches if match)


def load_snapshot(
    storage: Storage, folder: str, limit: int, batches_kept: int
) -> tuple[ProducerTable, int] | None:
    """The newest good snapshot at or below offset `limit`."""
    return _newest(storage, folder, list_snapshots(storage, folder), limit, batches_kept)


def _newest(
    storage: Storage, folder: str, offsets: list[int], limit: int, batches_kept: int
) -> tuple[ProducerTable, int] | None:
    for offset in reversed(offsets):
        if offset > limit:
            continue
        table = _read(storage, folder, offset, batches_kept)
        if table is not None:
            return table, offset
    return None


def _read(storage: Storage, folder: str, offset: int, batches_kept: int) -> ProducerTable | None:
    """None where it is damaged."""
    data = storage.read_file(snapshot_path(folder, offset)) or b""
    try:
        table, held = ProducerTable.decode(data, batches_kept)
    except CorruptBatchError:
        return None
    return table if held == offset else None


def remove_useless_snapshots(storage: Storage, folder: str, synced: int, log_end: int) -> bool:
    """Removes snapshots with batches that are not in the log any more, and those from offset
    `synced` on that a power cut has torn. They would count among the kept ones. Returns whether
    there were any."""
    useless = [
        offset
        for offset in list_snapshots(storage, folder)
        if offset > log_end or (offset >= synced and _read(storage, folder, offset, 1) is None)
    ]
    for offset in useless:
        storage.unlink(snapshot_path(folder, offset))
    return bool(useless)


class Snapshots:
    """Those of an open log, which alone makes and removes them. `offsets` rise."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self.list_again()

    def list_again(self) -> None:
        """Others have removed some: a truncation, or a log that begins elsewhere."""
        self.offsets = list_snapshots(self._storage, self._folder)

    def newest(self, limit: int) -> int | None:
        """The newest good one at or below offset `limit`."""
        found = _newest(self._storage, self._folder, self.offsets, limit, 1)
        return None if found is None else found[1]

    def has(self, offset: int) -> bool:
        """Whether there is a good one at that very offset."""
        return offset in self.offsets and _read(self._storage, self._folder, offset, 1) is not None

    def write(self, table: ProducerTable, offset: int, *, durable: bool) -> None:
        path = snapshot_path(self._folder, offset)
        self._storage.write_file(path, table.encode(offset), durable=durable)
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def prune(self, durable: int) -> None:
        """Keep the newest ones at or below the recovery point, and all above it."""
        below = [offset for offset in self.offsets if offset <= durable]
        for offset in below[:-SNAPSHOTS_KEPT]:
            self._storage.unlink(snapshot_path(self._folder, offset))
            self.offsets.remove(offset)
