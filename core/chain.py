"""The segments of an open log, one behind the other: all are read, the last one is written.

A closed segment keeps its descriptor until a sync has brought it to the device; after that the
active segment's is the only one. Bytes that a failed append left behind the end are zeroed before
the next write there.

Owns the descriptors and the changes to the row of segments. Knows nothing of producers, epochs or
what an error means to the log; every method may raise `StorageError`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from penstock.core.index import IndexWriter
from penstock.core.indexrestoring import IndexRestoring
from penstock.core.logstart import first_live
from penstock.core.replay import restore_index
from penstock.core.rescue import remove_mark, rescue_segment, sync_or_mark, write_mark
from penstock.core.segment import (
    OpenSegment,
    find_batch,
    last_batch,
    open_for_reading,
    remove_segment,
    segment_path,
)
from penstock.core.storage import READ_WRITE, Buffer, Storage, write_all, write_zeros
from penstock.core.truncation import create_segment, examine_tail, remove_segments

logger = logging.getLogger("penstock.core.log")


class Chain:
    """`bases[-1] == active.base_offset`; `closed` are those behind which a sync still has to go."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        owner: tuple[bytes, int],
        bases: list[int],
        closed: list[OpenSegment],
        active: OpenSegment,
        restoring: IndexRestoring,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._owner = owner
        self._junk_end = 0  # a failed write may have left bytes between `active.valid` and here
        self.bases = bases
        self.closed = closed
        self.active = active
        self.restoring = restoring
        # A killed process may have made segments in this boot that no folder fsync has covered.
        self.folder_changed = True

    def write(self, buffers: Sequence[Buffer], end: int, step_max: int) -> None:
        """One write at the end of the active segment, up to byte `end`. When it raises, nothing of
        it counts and the segment is as before."""
        active = self.active
        try:
            if self._junk_end:
                self._clear_junk()
            if end > active.allocated and step_max:
                active.reserve(self._storage, end, step_max)
            write_all(self._storage, active.fd, buffers, active.valid)
        except Exception as error:
            self._junk_end = max(self._junk_end, end)
            try:
                self._clear_junk()
            except Exception as second:
                error.add_note(f"and its bytes stay behind the log's end for now: {second}")
            raise
        active.valid = end

    def writeback(self, step: int) -> tuple[int, int, int] | None:
        """Returns the (descriptor, position, length) of bytes in the active segment that are
        neither synced nor returned before. Returns None below `step` bytes."""
        active = self.active
        begun = max(active.begun, active.synced)
        if active.valid - begun < step:
            return None
        active.begun = active.valid
        return active.fd, begun, active.valid - begun

    def _clear_junk(self) -> None:
        """Zeroes the bytes of a failed write, so that a recovery does not take them for a batch."""
        active = self.active
        end = min(self._junk_end, self._storage.size(active.fd))
        if end > active.valid:
            write_zeros(self._storage, active.fd, active.valid, end)
        self._junk_end = 0

    def roll(self, log_end: int, index_interval: int) -> None:
        """Close the active segment and begin the next. When it raises, nothing has changed."""
        self._clear_junk()
        self.active.index.flush()
        self.folder_changed = True  # also if it fails: see `create_segment`
        self._append(create_segment(self._storage, self._folder, log_end, index_interval))

    def _append(self, fresh: OpenSegment) -> None:
        self.closed.append(self.active)
        self.active = fresh
        self.bases.append(fresh.base_offset)

    def unsynced(self) -> list[tuple[OpenSegment, int]]:
        """(segment, valid bytes) of what a sync has to bring to the device."""
        segments = (*self.closed, self.active)
        return [(each, each.valid) for each in segments if each.synced < each.valid]

    def retire(self) -> None:
        """Let go of closed segments that are on the device as a whole."""
        for segment in self.closed:
            if segment.synced == segment.valid:
                self._storage.close(segment.fd)
        self.closed = [each for each in self.closed if each.synced < each.valid]

    def rescue(
        self, failed: list[OpenSegment], log_end: int, boot_id: str, index_interval: int
    ) -> None:
        """Carries out the steps after a failed fsync (rule 16, see module `rescue`). An error in
        here leaves the mark, and the log has to go offline."""
        storage, folder = self._storage, self._folder
        write_mark(storage, folder, boot_id, [segment.base_offset for segment in failed])
        for segment in failed:
            rescue_segment(
                storage, folder, segment.base_offset, segment.fd, segment.valid, self._owner
            )
            segment.synced = segment.valid
        if self.active in failed:
            self._junk_end = 0  # it stayed in the old file
            self.active.index.flush()
            self._append(create_segment(storage, folder, log_end, index_interval))
        storage.fsync_folder(folder)
        remove_mark(storage, folder)

    def locate(self, offset: int) -> tuple[int, int, int]:
        """(segment base, position, offset) of the place where the log would end without the batch
        that holds `offset` and all behind it."""
        base = self.bases[bisect_right(self.bases, offset) - 1]
        fd = open_for_reading(self._storage, self._folder, base)
        try:
            position, end = find_batch(self._storage, self._folder, base, fd, offset)
            # Compaction may have taken what was before it: the log ends where the one before does.
            before = last_batch(self._storage, self._folder, base, fd, end, position)
            return base, position, base if before is None else before[1].next_offset
        finally:
            self._storage.close(fd)

    def truncate(
        self, base: int, position: int, offset: int, boot_id: str, index_interval: int
    ) -> None:
        """Ends the log at `offset`, which is at `position` of segment `base`. The cut is on the
        device when this returns. After an exception the log has to be recovered."""
        storage, folder = self._storage, self._folder
        self.restoring.forget(base, self.active.base_offset)
        kept = None
        for segment in (*self.closed, self.active):
            if segment.base_offset == base:
                kept = segment
            elif segment.base_offset > base:
                storage.close(segment.fd)
        self.closed = [each for each in self.closed if each.base_offset < base]
        remove_segments(storage, folder, [each for each in self.bases if each > base])
        self.bases = [each for each in self.bases if each <= base]
        if kept is None:
            fd = storage.open(segment_path(folder, base), READ_WRITE)
            kept = OpenSegment(base, fd, IndexWriter(storage, folder, base, index_interval))
        self.active = kept
        kept.allocated = storage.size(kept.fd)
        tail = examine_tail(storage, kept.fd, position, self._owner)
        write_zeros(storage, kept.fd, position, tail.end)
        sync_or_mark(storage, folder, boot_id, base, kept.fd)
        kept.valid = kept.synced = kept.begun = position
        self._junk_end = 0
        kept.index = restore_index(
            storage, folder, base, kept.fd, index_interval, position=position, until=offset
        )
        kept.index.settle(durable=True)
        if position:
            # Readers may map the old bytes of this file: never write other ones over them.
            self._append(create_segment(storage, folder, offset, index_interval))
            storage.fsync_folder(folder)
            self.retire()
        else:
            kept.first_append = None

    def restart(self, fresh: OpenSegment) -> None:
        """Every segment is gone, and this one is there instead."""
        self.restoring.forget(0, self.active.base_offset)
        self.close()
        self.bases, self.closed, self.active = [fresh.base_offset], [], fresh
        self._junk_end = 0

    def drop_below(self, start: int) -> int:
        """Remove the segments that lie below `start` as a whole, the first one first; how many."""
        dead = self.bases[: first_live(self.bases, start)]
        for base in dead:
            remove_segment(self._storage, self._folder, base)
            del self.bases[0]
        for segment in self.closed:
            if segment.base_offset < self.bases[0]:
                self._storage.close(segment.fd)
        self.closed = [each for each in self.closed if each.base_offset >= self.bases[0]]
        return len(dead)

    def follower(self, bases: Sequence[int]) -> int | None:
        """Where the segment behind these begins; None if they are not closed segments in a row, and
        each of them on the device."""
        at = bisect_left(self.bases, bases[0])
        if self.bases[at : at + len(bases)] != list(bases) or at + len(bases) == len(self.bases):
            return None
        if not {each.base_offset for each in self.closed}.isdisjoint(bases):
            return None
        return self.bases[at + len(bases)]

    def refresh(self, base: int, end: int) -> None:
        """Segments between these went that the one at `base` holds now: at every moment those that
        are there are the log."""
        first, behind = bisect_right(self.bases, base), bisect_left(self.bases, end)
        storage, folder, between = self._storage, self._folder, self.bases[first:behind]
        self.bases[first:behind] = [
            each for each in between if storage.exists(segment_path(folder, each))
        ]
        self.restoring.add(base)

    def close(self) -> None:
        self.restoring.close()
        for segment in (*self.closed, self.active):
            self._storage.close(segment.fd)
