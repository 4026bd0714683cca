"""Keeps the newest record of each key: the cleaner's process compacts closed segments.

    plan       which closed segments may be cleaned, and how much of them is new since the last time
    map        key -> last offset, of what is new only; bounded in keys: a pass goes so far, and the
               next one from there
    prepare    group by group of neighbouring segments: read, thin out, write beside them

    a record                                        stays
    whose key has a newer one in the map            no
    that is the newest of its key                   yes
    a tombstone (null value), newest of its key     until the delete horizon of its batch
    without a key                                   yes, and is counted: nothing replaces it
    below the log start                             no
    of an aborted transaction                       no, before its marker goes

Every transaction that reaches into it is decided, and its marker is durable. Committed batches are
written without the transactional flag, so they need neither BEGIN nor COMMIT. Aborted batches go,
with or before their markers: markers lie behind their data, and groups are swapped in order. The
files that note aborts stay: readers may still read the old segments.

A pass stamps the delete horizon when it first sees the tombstone. By then nothing older of its key
is left below, since groups are swapped in order. A batch without records goes, and so does a
control batch, with two exceptions. The last batch of each producer stays, because a rebuild needs
its sequence. The last batch of a group stays, so that every segment ends where the next begins.

Owns the choice. Writes only files of its own (`swapping`); the writer puts them in place. Imports
numpy: for the cleaner's process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Final

import numpy as np

from penstock.core import header as hd
from penstock.core.cleanedlog import CleanedWriter
from penstock.core.columns import BinaryColumn, Columns, decode
from penstock.core.committed import AbortedTransactions
from penstock.core.errors import CorruptBatchError
from penstock.core.segment import Scan, Stop, last_batch, open_for_reading, segment_path
from penstock.core.storage import Storage
from penstock.core.swapping import (
    SOURCES_MAX,
    CleanedSource,
    Prepared,
    load_cleaned_to,
    save_cleaned_to,
)
from penstock.core.thinning import Mask, check_sections, emptied, settled, stamped, thinned

KEYS_MAX: Final = 500_000
"""Keys in the map of one pass: some 100 MB with keys of 50 bytes."""
_NOT_THERE: Final = -1


@dataclass(frozen=True, slots=True)
class Cleanable:
    """A closed segment that may be cleaned."""

    base: int
    end: int
    nbytes: int
    source: CleanedSource


@dataclass(frozen=True, slots=True)
class Plan:
    """The segments that may be cleaned. Offsets from `dirty_from` on are new since the last
    time."""

    folder: str
    log_start: int
    dirty_from: int
    segments: tuple[Cleanable, ...]

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else self.dirty_from

    @property
    def dirty_bytes(self) -> int:
        return sum(each.nbytes for each in self.segments if each.end > self.dirty_from)

    @property
    def dirty_ratio(self) -> float:
        """The share of these segments' bytes that is new; 0 where nothing is."""
        total = sum(each.nbytes for each in self.segments)
        return self.dirty_bytes / total if total else 0.0


@dataclass(slots=True)
class Stats:
    """Counts of what a pass read, kept and dropped."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_aborted: int = 0
    tombstones_dropped: int = 0
    keyless: int = 0
    groups: int = 0

    @property
    def records_dropped(self) -> int:
        return self.records_read - self.records_kept


def plan_compaction(
    storage: Storage,
    folder: str,
    bases: Sequence[int],
    *,
    log_start: int,
    bound: int,
    now_us: int,
    min_lag_us: int = 0,
) -> Plan:
    """Chooses the closed segments of `bases` (the last one is active) that a pass may clean. They
    lie wholly below `bound`: the least of high watermark, last stable and durable offset (rule 21).
    Their newest append is at least `min_lag_us` old. Raises `StorageError` where a segment has gone
    meanwhile."""
    found = []
    for base, end in pairwise(bases):
        if end > bound:
            break
        fd = open_for_reading(storage, folder, base)
        try:
            last = last_batch(storage, folder, base, fd, end)
        finally:
            storage.close(fd)
        if last is None:
            break
        position, head = last
        if min_lag_us and now_us - head.append_timestamp < min_lag_us:
            break
        source = CleanedSource(base, position, head.header_crc)
        found.append(Cleanable(base, end, position + head.length, source))
    dirty_from = max(log_start, load_cleaned_to(storage, folder))
    return Plan(folder, log_start, dirty_from, tuple(found))


@dataclass(slots=True)
class Compaction:
    """One pass over a plan. Take the prepared segments one by one: the next only after the writer
    has swapped the last. At the end, `reached` says how far the log is clean."""

    storage: Storage
    plan: Plan
    now_us: int
    delete_retention_us: int
    segment_bytes: int
    index_interval_bytes: int = 16384
    keys_max: int = KEYS_MAX
    pace: Callable[[int], None] = lambda nbytes: None
    """Called with the bytes of each batch read or written: it may wait, or raise to give up."""
    stats: Stats = field(default_factory=Stats)
    reached: int = 0
    _latest: dict[bytes | None, int] = field(default_factory=dict)
    _last_of: dict[int, int] = field(default_factory=dict)
    _aborted: AbortedTransactions = field(init=False)

    def __post_init__(self) -> None:
        self._aborted = AbortedTransactions(self.storage, self.plan.folder)

    def prepare(self) -> Iterator[Prepared]:
        """The cleaned segments, lowest first, each of them on the device when it is given.

        A segment in which nothing changes is left as it is. Raises `CorruptBatchError` where one is
        damaged and `StorageError` where one is gone; what was swapped by then stays good.
        """
        self.plan = self._decided()
        self._read()
        for group in self._groups():
            prepared = self._clean(group)
            self.stats.groups += 1
            if prepared is not None:
                yield prepared
        if self.reached > self.plan.dirty_from:
            save_cleaned_to(self.storage, self.plan.folder, self.reached)

    def _decided(self) -> Plan:
        """Returns the plan without segments that an undecided transaction reaches into: its marker
        is not within the plan. A power cut may take that marker back, and another outcome may
        follow."""
        undecided: dict[int, int] = {}
        for segment in self.plan.segments:
            if segment.end <= self.plan.dirty_from:
                continue
            for _, _, head in self._batches(segment, bodies=False):
                if head.attributes & hd.ATTR_CONTROL:
                    undecided.pop(head.producer_id, None)
                elif head.attributes & hd.ATTR_TRANSACTIONAL:
                    undecided.setdefault(head.producer_id, head.base_offset)
        if not undecided:
            return self.plan
        bound = min(undecided.values())
        return replace(
            self.plan, segments=tuple(each for each in self.plan.segments if each.end <= bound)
        )

    # ---- map

    def _read(self) -> None:
        """Reads the newest offset of each key, from the start of the dirty part as far as the bound
        of keys allows. Reads at least one batch. Also reads the last batch of each producer in the
        whole plan."""
        latest, dirty_from, full = self._latest, self.plan.dirty_from, False
        self.reached = self.plan.end
        for segment in self.plan.segments:
            for scan, at, head in self._batches(
                segment, bodies=segment.end > dirty_from and not full
            ):
                self._last_of[head.producer_id] = head.base_offset
                if full or head.next_offset <= dirty_from:
                    continue
                if len(latest) >= self.keys_max:
                    full, self.reached = True, head.base_offset
                    continue
                self.pace(head.length)
                if (
                    head.record_count
                    and not head.attributes & hd.ATTR_CONTROL
                    and not self._is_aborted(head)
                ):
                    columns = decode(scan.body(at, head), 0, head, verify=False)
                    if isinstance(columns.keys, BinaryColumn):
                        latest.update(
                            zip(columns.keys.to_list(), columns.offsets.tolist(), strict=True)
                        )
        latest.pop(None, None)

    def _is_aborted(self, head: hd.BatchHeader) -> bool:
        is_transactional = bool(head.attributes & hd.ATTR_TRANSACTIONAL)
        return is_transactional and self._aborted.has(head, self.plan.end)

    def _batches(
        self, segment: Cleanable, *, bodies: bool
    ) -> Iterator[tuple[Scan, int, hd.BatchHeader]]:
        """Yields the batches of a segment with their positions; raises if they do not reach its
        end."""
        folder = self.plan.folder
        fd = open_for_reading(self.storage, folder, segment.base)
        try:
            scan = Scan(
                self.storage, fd, position=0, offset=segment.base, until=segment.end, bodies=bodies
            )
            for at, head in scan:
                yield scan, at, head
        finally:
            self.storage.close(fd)
        if scan.stop is not Stop.LIMIT:
            raise CorruptBatchError(
                f"{segment_path(folder, segment.base)} cannot be compacted: offset "
                f"{scan.offset} should begin at byte {scan.position}, but there is "
                f"{scan.stop.value} {scan.detail}".rstrip()
            )

    # ---- clean

    def _groups(self) -> Iterator[list[Cleanable]]:
        """Neighbours that fit into one segment together, of those that the map speaks of."""
        group: list[Cleanable] = []
        size = 0
        for segment in self.plan.segments:
            if segment.base >= self.reached:
                break
            full = size + segment.nbytes > self.segment_bytes or len(group) == SOURCES_MAX
            if group and full:
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.nbytes
        if group:
            yield group

    def _clean(self, group: list[Cleanable]) -> Prepared | None:
        """Write what stays of these segments; None if that is all of one segment."""
        end, stats = group[-1].end, self.stats
        changed = len(group) > 1
        out = CleanedWriter(
            self.storage, self.plan.folder, group[0].base, self.index_interval_bytes
        )
        try:
            for segment in group:
                for scan, at, head in self._batches(segment, bodies=True):
                    self.pace(head.length)
                    stats.bytes_read += head.length
                    pieces, same = self._thin(scan.body(at, head), head, head.next_offset == end)
                    changed |= not same
                    if pieces is not None:
                        self.pace(len(pieces[0]) + len(pieces[1]))
                        out.add(pieces, head.base_offset)
            if not changed:
                out.drop()
                return None
            out.finish()
        except BaseException:
            out.drop()
            raise
        stats.bytes_written += out.length
        return Prepared(group[0].base, end, out.length, tuple(each.source for each in group))

    def _thin(
        self, batch: memoryview, head: hd.BatchHeader, is_last: bool
    ) -> tuple[list[hd.Buffer] | None, bool]:
        """Returns the rest of a batch, None if nothing is left, and whether the rest is the whole
        batch."""
        needed = is_last or self._last_of[head.producer_id] == head.base_offset
        header, body = bytearray(batch[: hd.HEADER_BYTES]), batch[hd.HEADER_BYTES :]
        if head.attributes & hd.ATTR_CONTROL or not head.record_count:
            return (stamped(header, body, head, None), True) if needed else (None, False)
        is_aborted = self._is_aborted(head)
        was_transactional = bool(head.attributes & hd.ATTR_TRANSACTIONAL)
        if was_transactional:
            head = head._replace(attributes=head.attributes & ~hd.ATTR_TRANSACTIONAL)
            header = settled(header, body, head)
        if is_aborted:
            self.stats.records_read += head.record_count
            self.stats.records_aborted += head.record_count
            if not needed:
                return None, False
            left = emptied(head)
            return stamped(left.header, left.body, head, None), False
        columns = decode(batch, 0, head._replace(flags=0), verify=False)
        keep, horizon = self._judge(columns, head)
        kept = int(np.count_nonzero(keep))
        self.stats.records_read += head.record_count
        self.stats.records_kept += kept
        if kept == head.record_count:
            known = head.delete_horizon if head.flags & hd.FLAG_DELETE_HORIZON else None
            same = horizon == known and not was_transactional
            return stamped(header, body, head, horizon), same
        if kept:
            check_sections(body, head)
            batch_left = thinned(columns, keep)
        elif needed:
            batch_left = emptied(head)
        else:
            return None, False
        return stamped(batch_left.header, batch_left.body, head, horizon), False

    def _judge(self, columns: Columns, head: hd.BatchHeader) -> tuple[Mask, int | None]:
        """Which records stay, and from when on (seconds) the tombstones among them may go."""
        offsets = columns.offsets
        keep: Mask = offsets >= self.plan.log_start
        keys, values = columns.keys, columns.values
        if not isinstance(keys, BinaryColumn):
            self.stats.keyless += columns.count
            return keep, None
        wanted = map(self._latest.get, keys.to_list(), repeat(_NOT_THERE))
        keep &= offsets >= np.fromiter(wanted, np.int64, columns.count)
        has_key = keys.valid if keys.valid is not None else np.ones(columns.count, np.bool_)
        self.stats.keyless += columns.count - int(np.count_nonzero(has_key))
        if values.valid is None:
            return keep, None
        tombstones = ~values.valid & has_key & keep
        if not tombstones.any():
            return keep, None
        if head.flags & hd.FLAG_DELETE_HORIZON:
            if head.delete_horizon * 1_000_000 > self.now_us:
                return keep, head.delete_horizon
            self.stats.tombstones_dropped += int(np.count_nonzero(tombstones))
            return keep & ~tombstones, None
        if not self.plan.dirty_from <= head.base_offset < self.reached:
            return keep, None
        return keep, -(-(self.now_us + self.delete_retention_us) // 1_000_000)
