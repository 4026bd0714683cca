"""Begins a log again: all its batches are void, and it starts elsewhere, empty.

    point      a recovery point that says so, on the device: from then on it happens
    published  by the caller, since a higher end on the state page would look like damage
    wiped      segments, indexes, snapshots, epochs; an empty segment where the log starts
    point      the same without saying so

A process that dies in between leaves the first point, and the next open wipes once more.

Owns what has to go. Never decides that it has to.
"""

from __future__ import annotations

from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.logstart import START_FILE
from penstock.core.rescue import remove_mark
from penstock.core.segment import OpenSegment, list_segments, remove_orphans, remove_segment
from penstock.core.snapshots import list_snapshots, snapshot_path
from penstock.core.storage import Storage
from penstock.core.swapping import drop_prepared, forget_cleaned_to
from penstock.core.truncation import create_segment


def wipe(storage: Storage, folder: str, start: int, index_interval: int) -> OpenSegment:
    """Leave one empty segment that begins at `start`, with all names on the device. No swap may be
    half done."""
    forget_cleaned_to(storage, folder)
    storage.unlink(f"{folder}/{START_FILE}")
    for offset in list_snapshots(storage, folder):
        storage.unlink(snapshot_path(folder, offset))
    for base in reversed(list_segments(storage, folder)):
        drop_prepared(storage, folder, base)
        remove_segment(storage, folder, base)
    remove_orphans(storage, folder)
    remove_mark(storage, folder)
    save_epochs(storage, folder, EpochCache())
    fresh = create_segment(storage, folder, start, index_interval)
    storage.fsync_folder(folder)
    return fresh
