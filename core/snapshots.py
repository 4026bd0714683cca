"""The files `producers-<offset>.snapshot` of a partition: written, found, and kept few.

A snapshot carries a checksum and is replaced as one step, so it needs no fsync before it may be
relied on: a damaged one is passed over for an older one or for the log. Old ones go only when two
newer ones at or below the recovery point are on the device.
Owns names and files. The bytes are `producers`' business.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.errors import CorruptBatchError
from penstock.core.producers import ProducerTable
from penstock.core.storage import Storage

SNAPSHOTS_KEPT: Final = 2
_NAME: Final = re.compile(r"producers-(\d{20})\.snapshot")


def snapshot_path(folder: str, offset: int) -> str:
    return f"{folder}/producers-{offset:020d}.snapshot"


def list_snapshots(storage: Storage, folder: str) -> list[int]:
    """Offsets of a folder's snapshots, rising."""
    matches = (_NAME.fullmatch(name) for name in storage.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)


def write_snapshot(
    storage: Storage, folder: str, table: ProducerTable, offset: int, *, durable: bool = False
) -> None:
    storage.write_file(snapshot_path(folder, offset), table.encode(offset), durable=durable)


def load_snapshot(
    storage: Storage, folder: str, limit: int, batches_kept: int
) -> tuple[ProducerTable, int] | None:
    """The newest good snapshot at or below offset `limit`."""
    for offset in reversed(list_snapshots(storage, folder)):
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
    """Snapshots that hold batches which are not in the log any more, and those above offset
    `synced` that a power cut has torn: they would be counted among those that are kept. Whether
    there were any."""
    useless = [
        offset
        for offset in list_snapshots(storage, folder)
        if offset > log_end or (offset > synced and _read(storage, folder, offset, 1) is None)
    ]
    for offset in useless:
        storage.unlink(snapshot_path(folder, offset))
    return bool(useless)


def prune_snapshots(storage: Storage, folder: str, durable: int) -> None:
    """Keep the newest ones at or below the recovery point, and all above it."""
    below = [offset for offset in list_snapshots(storage, folder) if offset <= durable]
    for offset in below[:-SNAPSHOTS_KEPT]:
        storage.unlink(snapshot_path(folder, offset))
