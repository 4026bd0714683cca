"""Checking partition folders without a node: every byte that a reader would trust, read once.

What is held against each log, from its own files alone:

    batches     header and body checksums, columns, offsets without a hole, epochs and append times
                that never fall, the partition they belong to
    segments    each ends where the next begins; nothing but zeros stands behind the last batch
    indexes     each entry names a batch, where it stands and the newest time up to it
    producers   each (producer, epoch, sequence) is there once, and in order
    the rest    epochs, recovery point and producer snapshots agree with the batches

Owns the verdict. Never changes a file, and never asks a node; while one runs, the tail may be in
motion and is no finding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.core.columns import decode
from penstock.core.epochs import EPOCHS_FILE, EpochCache, load_epochs
from penstock.core.errors import ConfigError, CorruptBatchError, UnsupportedVersionError
from penstock.core.header import ATTR_CONTROL, FLAG_COMPACTED, BatchHeader
from penstock.core.index import ENTRY_BYTES, OFFSET_ENTRY, TIME_ENTRY, index_paths
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
from penstock.server.datafolder import LOCK_FILE, TOPICS_FILE, is_partition_folder

BATCHES_REMEMBERED: Final = 128
FINDINGS_MAX: Final = 1000
"""A log that is garbage from somewhere on gives no more findings than this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be; with `is_note` something that is only worth knowing."""

    kind: str
    file: str
    position: int | None
    message: str
    is_note: bool = False


@dataclass(slots=True)
class Checked:
    """One partition folder and what was found in it."""

    folder: str
    name: str
    log_start: int = 0
    log_end: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    producers: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_note]


@dataclass(frozen=True, slots=True)
class Partition:
    """A folder to check: where it is, and what people call it."""

    folder: str
    name: str
    owner: tuple[bytes, int] | None
    is_live: bool = False


def find_partitions(path: str) -> list[Partition]:
    """The partitions of a data folder, or the one that `path` itself is. Raises `ConfigError`."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise ConfigError(f"{path} is no folder: name a data folder or a partition folder in it")
    names = sorted(os.listdir(path))
    folders = [name for name in names if is_partition_folder(name)]
    parent = os.path.dirname(path)
    if not folders and (is_partition_folder(os.path.basename(path)) or _has_segments(names)):
        return [_partition(path, _topic_names(parent), is_held(parent))]
    if not folders and LOCK_FILE not in names:
        raise ConfigError(
            f"{path} is neither a data folder nor a partition folder: there are no segments in it"
        )
    topics, live = _topic_names(path), is_held(path)
    found = [_partition(os.path.join(path, name), topics, live) for name in folders]
    return sorted(found, key=lambda part: (part.name.rpartition("-")[0], part.owner or (b"", 0)))


def _has_segments(names: list[str]) -> bool:
    return any(name.endswith(".log") for name in names)


def _partition(folder: str, topics: dict[str, str], live: bool) -> Partition:
    name = os.path.basename(folder)
    if not is_partition_folder(name):
        return Partition(folder, name, None, live)
    topic_id, _, number = name.partition("-")
    title = f"{topics.get(topic_id, topic_id)}-{number}"
    return Partition(folder, title, (bytes.fromhex(topic_id), int(number)), live)


def _topic_names(data_folder: str) -> dict[str, str]:
    """Topic id to name, as far as the catalogue can be read."""
    try:
        with open(os.path.join(data_folder, TOPICS_FILE), "rb") as file:
            document = json.load(file)
        return {topic["topic_id"]: topic["name"] for topic in document["topics"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_held(data_folder: str) -> bool:
    """Whether a node, or a writer of one that is gone, holds the folder's lock.

    Looked up in the kernel's list of locks: trying to take the lock could keep a starting node out.
    """
    try:
        status = os.stat(os.path.join(data_folder, LOCK_FILE))
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(wanted in line.split() for line in lines)


def check_partition(partition: Partition, storage: Storage | None = None) -> Checked:
    """Read one partition folder from end to end."""
    return _Check(storage or Storage(), partition).run()


class _Check:
    """One run over one folder."""

    def __init__(self, storage: Storage, partition: Partition) -> None:
        self._storage = storage
        self._folder = partition.folder
        self._owner = partition.owner
        self._is_live = partition.is_live
        self.result = Checked(partition.folder, partition.name)
        self._sequences: dict[int, tuple[int, int]] = {}
        self._order = (0, 0)
        self._append_time = -1
        self._epochs: EpochCache | None = None
        self._point: RecoveryPoint | None = None

    def run(self) -> Checked:
        storage, folder, result = self._storage, self._folder, self.result
        bases = list_segments(storage, folder)
        result.segments = len(bases)
        if not bases:
            self._find("segment", folder, None, "there is no segment")
            return result
        result.log_start = result.log_end = bases[0]
        self._epochs = load_epochs(storage, folder)
        if self._epochs is None:
            missing = not storage.exists(f"{folder}/{EPOCHS_FILE}")
            self._find(
                "epochs",
                EPOCHS_FILE,
                None,
                "is missing: the next start makes it from the batches"
                if missing
                else "is damaged: the next start makes it anew",
                note=missing,
            )
        self._point = PointFile(storage, folder).load()
        for i, base in enumerate(bases):
            self._segment(base, bases[i + 1] if i + 1 < len(bases) else None)
        self._check_point(bases)
        self._check_snapshots()
        self._leftovers()
        result.producers = len(self._sequences)
        return result

    def _find(
        self, kind: str, file: str, position: int | None, message: str, *, note: bool = False
    ) -> None:
        if len(self.result.findings) < FINDINGS_MAX:
            self.result.findings.append(Finding(kind, file, position, message, note))

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
            index = _IndexCheck(self, base)
            for at, head in scan:
                if self._owner is None:
                    self._owner = (head.topic_id, head.partition)
                self._batch(base, at, head, scan.body(at, head))
                index.saw(at, head)
                self._check_point_position(base, at, head.base_offset)
            self._order = scan.order
            self.result.log_end = scan.offset
            self._check_point_position(base, scan.position, scan.offset)
            if following is not None:
                self._sealed_end(base, scan, following)
            else:
                self._active_end(base, scan, fd)
            index.end(scan.position)
        finally:
            self._storage.close(fd)

    def _batch(self, base: int, at: int, head: BatchHeader, whole: memoryview) -> None:
        result, file = self.result, segment_name(base)
        result.batches += 1
        result.bytes += head.length
        if head.append_timestamp < self._append_time:
            self._find(
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
                self._find(
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
            self._find("columns", file, at, str(error))
            return
        newest = int(stamps.max())
        if newest != batch_time(head):
            self._find(
                "columns",
                file,
                at,
                f"the newest time of the batch is {newest}, its header says {batch_time(head)}",
            )

    def _sequence(self, file: str, at: int, head: BatchHeader) -> None:
        """Invariant 3: (producer, epoch, sequence) once and in order."""
        epoch, sequence = head.producer_epoch, head.base_sequence
        known = self._sequences.get(head.producer_id)
        who = f"producer {head.producer_id} epoch {epoch}"
        compacted = bool(head.flags & FLAG_COMPACTED)
        if known is None:
            # Retention may have taken what came before.
            expected = sequence if self.result.log_start or compacted else 0
        elif epoch < known[0]:
            self._find("producer", file, at, f"{who} comes after its epoch {known[0]}")
            return
        else:
            expected = known[1] if epoch == known[0] else 0
        if sequence < expected:
            self._find(
                "producer",
                file,
                at,
                f"{who}: sequence {sequence} is there a second time, {expected} is next",
            )
        elif sequence > expected and not compacted:
            self._find(
                "producer", file, at, f"{who}: sequence {sequence} comes where {expected} is next"
            )
        after = max(sequence + head.last_offset_delta + 1, expected)
        self._sequences[head.producer_id] = (epoch, after)

    def _sealed_end(self, base: int, scan: Scan, following: int) -> None:
        if scan.stop is Stop.LIMIT and scan.offset == following:
            return
        detail = f" ({scan.detail})" if scan.detail else ""
        self._find(
            "segment",
            segment_name(base),
            scan.position,
            f"the log goes on at offset {following}, but at offset {scan.offset} stands "
            f"{scan.stop.value}{detail}",
        )

    def _active_end(self, base: int, scan: Scan, fd: int) -> None:
        """Behind the last batch of the log: zeros, or what a crash left there."""
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
        self._find(
            "tail",
            segment_name(base),
            scan.position,
            f"behind offset {scan.offset} stands {scan.stop.value}{detail}, with "
            f"{behind.end - scan.position} bytes{lost}: {advice}",
            note=self._is_live and not known,
        )

    # --- what stands beside the segments
    def _check_point_position(self, base: int, position: int, offset: int) -> None:
        point = self._point
        if point is None or (base, offset) != (point.segment_base, point.offset):
            return
        if position != point.position:
            self._find(
                "point",
                POINT_FILE,
                None,
                f"offset {offset} stands at byte {position}, the point says {point.position}",
            )

    def _check_point(self, bases: list[int]) -> None:
        point = self._point
        if point is None:
            self._find("point", POINT_FILE, None, "there is none yet", note=True)
        elif point.segment_base not in bases:
            self._find(
                "point", POINT_FILE, None, f"names segment {point.segment_base}, which is not there"
            )
        elif point.offset > self.result.log_end and not self._is_live:
            self._find(
                "point",
                POINT_FILE,
                None,
                f"says that offsets below {point.offset} "
                f"are on the device; the log ends at {self.result.log_end}",
            )

    def _check_snapshots(self) -> None:
        for offset in list_snapshots(self._storage, self._folder):
            path = snapshot_path(self._folder, offset)
            data = self._storage.read_file(path) or b""
            try:
                _, held = ProducerTable.decode(data, BATCHES_REMEMBERED)
            except CorruptBatchError as error:
                self._find("snapshot", os.path.basename(path), None, str(error))
                continue
            if held != offset:
                self._find("snapshot", os.path.basename(path), None, f"holds offset {held}")

    def _leftovers(self) -> None:
        for name in sorted(self._storage.listdir(self._folder)):
            if name.endswith((".failed", ".tmp")):
                self._find("leftover", name, None, "left by a failed fsync or a crash", note=True)


class _IndexCheck:
    """The two indexes of a segment, compared entry by entry while its batches pass."""

    def __init__(self, check: _Check, base: int) -> None:
        self._check = check
        self._paths = index_paths(check._folder, base)
        self._newest: int | None = None
        self._entries = self._load()
        self._wanted = next(self._entries, None)

    def _load(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(number, offset, position, time, offset) of each pair of entries."""
        check = self._check
        files = []
        for path in self._paths:
            data = check._storage.read_file(path)
            if data is None:
                check._find(
                    "index",
                    os.path.basename(path),
                    None,
                    "is missing: the next start makes it anew",
                    note=True,
                )
                return
            files.append(data)
        index, times = files
        if len(index) % ENTRY_BYTES or len(index) != len(times):
            # Entries are appended to one file and then to the other.
            check._find(
                "index",
                os.path.basename(self._paths[0]),
                None,
                f"has {len(index)} bytes, and the index by time {len(times)}",
                note=check._is_live,
            )
        for number in range(min(len(index), len(times)) // ENTRY_BYTES):
            offset, position = OFFSET_ENTRY.unpack_from(index, number * ENTRY_BYTES)
            yield number, offset, position, *TIME_ENTRY.unpack_from(times, number * ENTRY_BYTES)

    def saw(self, position: int, head: BatchHeader) -> None:
        """A batch: entries up to here must name it, its place and the newest time so far."""
        newest = batch_time(head)
        self._newest = newest if self._newest is None else max(self._newest, newest)
        while self._wanted is not None and self._wanted[2] <= position:
            number, offset, at, time, again = self._wanted
            base = head.base_offset
            if (offset, at, time, again) != (base, position, self._newest, base):
                self._check._find(
                    "index",
                    os.path.basename(self._paths[0]),
                    number * ENTRY_BYTES,
                    f"entry {number} says offset {offset} at byte {at} and time {time} for offset "
                    f"{again}; at byte {position} stands offset {base}, the newest time is "
                    f"{self._newest}",
                )
            self._wanted = next(self._entries, None)

    def end(self, position: int) -> None:
        """All batches passed: no entry may be left."""
        if self._wanted is not None and not self._check._is_live:
            number, offset, at, *_ = self._wanted
            self._check._find(
                "index",
                os.path.basename(self._paths[0]),
                number * ENTRY_BYTES,
                f"entry {number} says offset {offset} at byte {at}; the segment ends at {position}",
            )
