"""The walk over one partition folder: segments, batches, producers, and the files beside them."""

from __future__ import annotations

import os
from typing import Final

from penstock.core.columns import decode
from penstock.core.epochs import EPOCHS_FILE, EpochCache, load_epochs
from penstock.core.errors import CorruptBatchError, StorageError, UnsupportedVersionError
from penstock.core.header import ATTR_CONTROL, FLAG_COMPACTED, BatchHeader
from penstock.core.logstart import START_FILE, decode_start, first_live, load_start
from penstock.core.producers import ProducerTable
from penstock.core.recoverypoint import POINT_FILE, PointFile, RecoveryPoint
from penstock.core.segment import (
    Scan,
    Stop,
    batch_time,
    list_segments,
    open_for_reading,
    segment_name,
)
from penstock.core.snapshots import list_snapshots, snapshot_path
from penstock.core.storage import Storage
from penstock.core.truncation import examine_tail
from penstock.logcheck.aborts import AbortCheck
from penstock.logcheck.findings import Checked
from penstock.logcheck.folders import CheckedPartition
from penstock.logcheck.indexes import IndexCheck

BATCHES_REMEMBERED: Final = 128


def check_partition(partition: CheckedPartition, storage: Storage | None = None) -> Checked:
    """Reads one partition folder from end to end."""
    return _Check(storage or Storage(), partition).run()


class _Check:
    """One run over one folder."""

    def __init__(self, storage: Storage, partition: CheckedPartition) -> None:
        self._storage = storage
        self._folder = partition.folder
        self._owner = partition.owner
        self._is_live = partition.is_live
        self.result = Checked(partition.folder, partition.name)
        self._sequences: dict[int, tuple[int, int]] = {}
        self._exact: set[int] | None = None  # producers since the last compacted batch, if any
        self._order = (0, 0)
        self._append_time = -1
        self._epochs: EpochCache | None = None
        self._point: RecoveryPoint | None = None

    def run(self) -> Checked:
        storage, folder, result = self._storage, self._folder, self.result
        bases = self._live(list_segments(storage, folder))
        result.segments = len(bases)
        if not bases:
            self.result.find("segment", folder, None, "there is no segment")
            return result
        result.log_start = max(bases[0], load_start(storage, folder))
        result.log_end = bases[0]
        self._epochs = load_epochs(storage, folder)
        if self._epochs is None:
            missing = not storage.exists(f"{folder}/{EPOCHS_FILE}")
            self.result.find(
                "epochs",
                EPOCHS_FILE,
                None,
                "is missing: the next start makes it from the batches"
                if missing
                else "is damaged: the next start makes it again",
                note=missing,
            )
        self._point = PointFile(storage, folder).load()
        for i, base in enumerate(bases):
            self._segment(base, bases[i + 1] if i + 1 < len(bases) else None)
        self._check_point(bases)
        self._check_snapshots()
        self._leftovers()
        result.producers = len(self._sequences)
        self._check_start()
        return result

    def _live(self, bases: list[int]) -> list[int]:
        """Returns the segments that the log still has: a crash may have left some below its
        start."""
        path = f"{self._folder}/{START_FILE}"
        data = self._storage.read_file(path)
        if data is None:
            return bases
        start = decode_start(data)
        if start is None:
            self.result.find("start", START_FILE, None, "is damaged: what was trimmed shows again")
            return bases
        live = first_live(bases, start)
        for base in bases[:live]:
            self.result.find(
                "leftover",
                segment_name(base),
                None,
                f"lies below the log start {start}: the next start removes it",
                note=True,
            )
        return bases[live:]

    # --- segments and batches
    def _segment(self, base: int, following: int | None) -> None:
        fd = open_for_reading(self._storage, self._folder, base)
        try:
            scan = Scan(
                self._storage,
                fd,
                position=0,
                offset=base,
                order=self._order,
                owner=self._owner,
                until=following,
                bodies=True,
            )
            index = IndexCheck(
                self._storage, self._folder, base, self.result, is_live=self._is_live
            )
            aborts = AbortCheck(
                self._storage, self._folder, base, self.result, is_live=self._is_live
            )
            for at, head in scan:
                if self._owner is None:
                    self._owner = (head.topic_id, head.partition)
                self._batch(base, at, head, scan.body(at, head))
                index.saw(at, head)
                if head.attributes & ATTR_CONTROL:
                    aborts.saw(at, head, scan.body(at, head))
                self._check_point_position(base, at, head.base_offset)
            self._order = scan.order
            self.result.log_end = scan.offset
            self._check_point_position(base, scan.position, scan.offset)
            if following is not None:
                self._sealed_end(base, scan, following)
            else:
                self._active_end(base, scan, fd)
            index.end(scan.position)
            aborts.end(scan.offset)
        finally:
            self._storage.close(fd)

    def _batch(self, base: int, at: int, head: BatchHeader, whole: memoryview) -> None:
        result, file = self.result, segment_name(base)
        result.batches += 1
        result.bytes += head.length
        if head.append_timestamp < self._append_time:
            self.result.find(
                "time",
                file,
                at,
                f"append time {head.append_timestamp} falls back behind {self._append_time}",
            )
        self._append_time = max(self._append_time, head.append_timestamp)
        self._sequence(file, at, head)
        if self._epochs is not None:
            known = self._epochs.epoch_at(head.base_offset)
            if known != head.leader_epoch:
                self.result.find(
                    "epochs",
                    file,
                    at,
                    f"offset {head.base_offset} was written in leader epoch {head.leader_epoch}, "
                    f"{EPOCHS_FILE} says {known}",
                )
        if head.attributes & ATTR_CONTROL or not head.record_count:
            return
        result.records += head.record_count
        try:
            columns = decode(whole, 0, head, verify=False)
            columns.headers()
            stamps = columns.timestamps
        except (CorruptBatchError, UnsupportedVersionError) as error:
            self.result.find("columns", file, at, str(error))
            return
        result.records -= columns.first_at(result.log_start)  # a trim took those before it
        newest = int(stamps.max())
        if newest != batch_time(head):
            self.result.find(
                "columns",
                file,
                at,
                f"the newest time of the batch is {newest}, its header says {batch_time(head)}",
            )

    def _sequence(self, file: str, at: int, head: BatchHeader) -> None:
        """Checks invariant 3: (producer, epoch, sequence) once and in order."""
        epoch, sequence = head.producer_epoch, head.base_sequence
        known = self._sequences.get(head.producer_id)
        who = f"producer {head.producer_id} epoch {epoch}"
        # Compaction takes batches of a producer that has later ones, as far as it goes.
        if head.flags & FLAG_COMPACTED:
            self._exact = set()
        has_gaps = self._exact is not None and head.producer_id not in self._exact
        if self._exact is not None and not head.flags & FLAG_COMPACTED:
            self._exact.add(head.producer_id)
        if known is None:
            # Retention may have taken what came before.
            expected = sequence if self.result.log_start or has_gaps else 0
        elif epoch < known[0]:
            self.result.find("producer", file, at, f"{who} comes after its epoch {known[0]}")
            return
        else:
            expected = known[1] if epoch == known[0] else 0
        if head.attributes & ATTR_CONTROL:  # takes no sequence, but may begin an epoch
            same = known is not None and epoch == known[0]
            self._sequences[head.producer_id] = (epoch, known[1] if known and same else 0)
            return
        if sequence < expected:
            self.result.find(
                "producer",
                file,
                at,
                f"{who}: sequence {sequence} is there a second time, {expected} is next",
            )
        elif sequence > expected and not has_gaps:
            self.result.find(
                "producer", file, at, f"{who}: sequence {sequence} comes where {expected} is next"
            )
        after = max(sequence + head.last_offset_delta + 1, expected)
        self._sequences[head.producer_id] = (epoch, after)

    def _sealed_end(self, base: int, scan: Scan, following: int) -> None:
        if scan.stop is Stop.LIMIT and scan.offset == following:
            return
        detail = f" ({scan.detail})" if scan.detail else ""
        self.result.find(
            "segment",
            segment_name(base),
            scan.position,
            f"the log goes on at offset {following}, but at offset {scan.offset} the file has "
            f"{scan.stop.value}{detail}",
        )

    def _active_end(self, base: int, scan: Scan, fd: int) -> None:
        """Checks the bytes behind the last batch of the log: zeros, or what a crash left there."""
        behind = examine_tail(self._storage, fd, scan.position, self._owner or (b"", 0))
        if scan.stop in (Stop.END, Stop.ZERO) and behind.end == scan.position:
            return
        detail = f" ({scan.detail})" if scan.detail else ""
        lost = f", reaching to offset {behind.next_offset}" if behind.next_offset else ""
        known = self._point is not None and scan.offset < self._point.offset
        advice = (
            "it lies below the recovery point: the log is damaged"
            if known
            else (
                "a node is running: it may be writing there"
                if self._is_live
                else "the next start after a crash cuts it"
            )
        )
        self.result.find(
            "tail",
            segment_name(base),
            scan.position,
            f"behind offset {scan.offset} the file has {scan.stop.value}{detail}, with "
            f"{behind.end - scan.position} bytes{lost}: {advice}",
            note=self._is_live and not known,
        )

    # --- the files beside the segments
    def _check_point_position(self, base: int, position: int, offset: int) -> None:
        point = self._point
        if point is None or (base, offset) != (point.segment_base, point.offset):
            return
        if position != point.position:
            self.result.find(
                "point",
                POINT_FILE,
                None,
                f"offset {offset} is at byte {position}, the point says {point.position}",
            )

    def _check_start(self) -> None:
        if self.result.log_start > self.result.log_end and not self._is_live:
            self.result.find(
                "start",
                START_FILE,
                None,
                f"says {self.result.log_start}, but the log ends at {self.result.log_end}",
            )

    def _check_point(self, bases: list[int]) -> None:
        point = self._point
        if point is None:
            self.result.find("point", POINT_FILE, None, "there is none yet", note=True)
        elif point.segment_base not in bases:
            self.result.find(
                "point", POINT_FILE, None, f"names segment {point.segment_base}, which is not there"
            )
        elif point.offset > self.result.log_end and not self._is_live:
            self.result.find(
                "point",
                POINT_FILE,
                None,
                f"says that offsets below {point.offset} "
                f"are on the device; the log ends at {self.result.log_end}",
            )

    def _check_snapshots(self) -> None:
        for offset in list_snapshots(self._storage, self._folder):
            path = snapshot_path(self._folder, offset)
            try:
                data = self._storage.read_file(path)
                if data is None:
                    continue  # a running node has newer ones
                _, held = ProducerTable.decode(data, BATCHES_REMEMBERED)
            except StorageError:
                if not self._is_live:
                    raise
                continue
            except CorruptBatchError as error:
                self.result.find("snapshot", os.path.basename(path), None, str(error))
                continue
            if held != offset:
                self.result.find("snapshot", os.path.basename(path), None, f"holds offset {held}")

    def _leftovers(self) -> None:
        for name in sorted(self._storage.listdir(self._folder)):
            if name.endswith((".failed", ".tmp")):
                self.result.find(
                    "leftover", name, None, "left by a failed fsync or a crash", note=True
                )
