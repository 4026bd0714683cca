"""The stable storage of a raft node: a file of records, and the snapshot that precedes them.

    <data>/raft/<number>.log        the newest number counts; a record for each thing stored
    <data>/raft/<index>-<term>.snapshot

    record   ┌──────────────┬──────────────┬──────────────┬──────────────┐
             │ magic PSQR   │ crc32c   u32 │ length   u32 │ kind u8, 0   │  crc: from length to
             ├──────────────┴──────────────┼──────────────┴──────────────┤
             │ synced                  u64 │ body, then zeros to 8 bytes │  the last zero
             └─────────────────────────────┴─────────────────────────────┘
    snapshot ┌──────────────┬──────────────┬─────────────────────────────┐
             │ magic PSQS   │ crc32c   u32 │ length                  u64 │  crc: from length on
             ├──────────────┴──────────────┴─────────────────────────────┤
             │ body                                                      │
             └───────────────────────────────────────────────────────────┘

Bodies are msgpack arrays. A log begins with `Head` (kind 1). It names the snapshot, and the number
of records behind it that were synced before the file got its name. Then come `Stored`s (kind 2).

`synced` says how much of the file was on the device when the record was written. So a tear differs
from damage: bytes that a power cut tore were not synced, and no record behind them can say that
they were. A tear ends the log. Any other unreadable record is a `DataFolderError`, for a node that
forgot a vote or an entry may break its promise.

Each start, each snapshot and each failed write begin a new file: written under another name,
synced, renamed, and the folder synced. A failed sync is thus never asked for again. Data that was
read from the page cache alone is written once more before anybody builds on it.

Owns files and bytes; blocks, and so runs in a thread (`storage_thread`). Knows no raft but its
structs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.cluster.raft import LogEntry, Members, Saved, Snapshot, Write, fresh
from penstock.core.crc import crc32c
from penstock.core.errors import DataFolderError
from penstock.core.storage import READ, READ_WRITE, WRITE_EMPTY, Storage, write_all

RAFT_FOLDER: Final = "raft"
RAFT_VERSION: Final = 1
HEAD: Final = 1
STORED: Final = 2
ALIGNMENT: Final = 8
RECORD: Final = struct.Struct("<4sIIB3xQ")
RECORD_MAGIC: Final = b"PSQR"
SNAPSHOT: Final = struct.Struct("<4sIQ")
SNAPSHOT_MAGIC: Final = b"PSQS"
CRC_FROM: Final = 8
RECORD_ENTRIES_MAX: Final = 1_000
"""Entries in one record of a file that is begun; later ones have those of one `Write`."""
FILE_BYTES_MAX: Final = 1 << 30
"""The size up to which a log or a snapshot is read at all."""

_LOG: Final = re.compile(r"(\d{20})\.log")
_SNAPSHOT: Final = re.compile(r"\d{20}-\d{20}\.snapshot")
REMEDY: Final = (
    "This broker cannot know any more what it promised the others. Take it out of the quorum "
    "(`penstock cluster remove`, at another one), move its folder raft away and start it again: it "
    "learns everything from the others"
)


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first record. `index`, `snapshot_term`: of the snapshot, 0 where there is none, and then
    `members` are those that the node began with."""

    version: int
    node: int
    index: int
    snapshot_term: int
    members: Members
    records: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The log ends before `first_index`, then the entries follow; the vote is that one now."""

    term: int
    vote: int | None
    first_index: int
    entries: tuple[LogEntry, ...]


_encode: Final = msgspec.msgpack.Encoder().encode
_head: Final = msgspec.msgpack.Decoder(Head)
_stored: Final = msgspec.msgpack.Decoder(Stored)
_snapshot: Final = msgspec.msgpack.Decoder(Snapshot)


class RaftDisk:
    """The files of one node, and what they say. One thread at a time."""

    def __init__(self, storage: Storage, folder: str, node: int) -> None:
        self.path = f"{folder}/{RAFT_FOLDER}"
        self.torn_bytes = 0
        """The bytes that the open cut off the log's end."""
        self._storage = storage
        self._parent = folder
        self._node = node
        self._number = 0
        self._fd = -1
        self._end = 0
        self._synced = 0
        self._kept = fresh()
        self._entries: list[LogEntry] = []

    # --- opening ---
    @property
    def is_there(self) -> bool:
        """Whether this folder was a raft node's before."""
        return self._storage.exists(self.path) and bool(self._logs())

    def open(self, voters: tuple[int, ...]) -> Saved:
        """Returns the stored state, on the device for certain; a new node begins with those voters.
        Raises `DataFolderError`, `StorageError`."""
        storage = self._storage
        if not storage.exists(self.path):
            storage.makedirs(self.path)
            storage.fsync_folder(self._parent)
        logs = self._logs()
        if logs:
            self._number = logs[-1]
            self._read(self._name(self._number))
        else:
            self._kept = fresh(*voters)
        self._begin()
        return self.saved

    @property
    def saved(self) -> Saved:
        return msgspec.structs.replace(self._kept, entries=tuple(self._entries))

    def _logs(self) -> list[int]:
        matches = map(_LOG.fullmatch, self._storage.listdir(self.path))
        return sorted(int(match[1]) for match in matches if match)

    def _read(self, path: str) -> None:
        data = _whole(self._storage, path)
        place = 0
        found = _record(data, 0)
        if found is None:
            raise DataFolderError(f"{path} does not begin with a whole record. {REMEDY}")
        kind, body, place, _ = found
        try:
            head = _head.decode(body)
        except msgspec.MsgspecError as error:
            raise DataFolderError(f"{path} begins with no head: {error}. {REMEDY}") from error
        if head.version > RAFT_VERSION:
            raise DataFolderError(
                f"{path} has version {head.version}, this build reads up to {RAFT_VERSION}: use "
                "the Penstock version that wrote it, or a newer one"
            )
        if kind != HEAD or head.node != self._node:
            raise DataFolderError(
                f"{path} is of node_id {head.node}, and this is {self._node}: give the broker the "
                "node_id that its data folder has"
            )
        if head.index:
            snapshot = self._read_snapshot(head.index, head.snapshot_term)
        else:
            snapshot = Snapshot(0, 0, head.members, b"")
        self._kept = Saved(snapshot)
        count = 0
        while (found := _record(data, place)) is not None:
            kind, body, after, _ = found
            self._take(path, place, kind, body)
            place, count = after, count + 1
        if count < head.records:
            raise DataFolderError(f"{path} is damaged at byte {place}. {REMEDY}")
        self._check_tear(path, data, place)
        self.torn_bytes = len(data) - place

    def _take(self, path: str, place: int, kind: int, body: memoryview) -> None:
        try:
            if kind != STORED:
                raise ValueError(f"a record of kind {kind}")
            stored = _stored.decode(body)
            self._store(stored.term, stored.vote, stored.first_index, stored.entries)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DataFolderError(f"{path}: byte {place}: {error}. {REMEDY}") from error

    def _check_tear(self, path: str, data: bytes, end: int) -> None:
        """Whether what follows may be what a crash left of the last write."""
        at = end
        while (at := data.find(RECORD_MAGIC, at)) >= 0:
            found = _record(data, at) if at % ALIGNMENT == 0 else None
            if found is not None and found[3] > end:
                raise DataFolderError(
                    f"{path} is damaged at byte {end}: records behind that are whole, and were "
                    f"written later. {REMEDY}"
                )
            at += 1

    def _read_snapshot(self, index: int, term: int) -> Snapshot:
        path = self._snapshot_name(index, term)
        if not self._storage.exists(path):
            raise DataFolderError(f"{path} is not there. {REMEDY}")
        data = _whole(self._storage, path)
        try:
            magic, crc, length = SNAPSHOT.unpack_from(data)
            is_good = magic == SNAPSHOT_MAGIC and SNAPSHOT.size + length == len(data)
            if not is_good or crc32c(memoryview(data)[CRC_FROM:]) != crc:
                raise ValueError("its checksum or its length is another")
            snapshot = _snapshot.decode(memoryview(data)[SNAPSHOT.size :])
            if (snapshot.index, snapshot.term) != (index, term):
                raise ValueError(f"it is of index {snapshot.index} in term {snapshot.term}")
        except (struct.error, ValueError, msgspec.MsgspecError) as error:
            raise DataFolderError(f"{path} is damaged: {error}. {REMEDY}") from error
        return snapshot

    # --- storing ---
    def write(self, writes: Sequence[Write]) -> None:
        """All of them, in their order, on the device when this returns. Where it raises, `again`
        is to be called until it does not, before anything else is written. Raises `StorageError`,
        and `ValueError` for writes that do not follow the ones before."""
        has_snapshot = False
        for write in writes:
            if write.snapshot is not None:
                has_snapshot = True
                self._keep(write.snapshot)
            self._store(write.term, write.vote, write.first_index, write.entries)
        if has_snapshot:
            self._begin()
            return
        records = [
            self._encoded(STORED, Stored(w.term, w.vote, w.first_index, w.entries)) for w in writes
        ]
        end = self._end + write_all(self._storage, self._fd, records, self._end)
        self._storage.fdatasync(self._fd)
        self._end = self._synced = end

    def again(self) -> None:
        """Stores in a new file after a failed write. Raises `StorageError`."""
        self._begin()

    def close(self) -> None:
        if self._fd >= 0:
            self._storage.close(self._fd)
            self._fd = -1

    def _keep(self, snapshot: Snapshot) -> None:
        """That takes the place of all entries up to its own, and of all where that is not here."""
        kept = [entry for entry in self._entries if entry.index >= snapshot.index]
        is_known = bool(kept) and (kept[0].index, kept[0].term) == (snapshot.index, snapshot.term)
        self._entries = kept[1:] if is_known else []
        self._kept = msgspec.structs.replace(self._kept, snapshot=snapshot)

    def _store(
        self, term: int, vote: int | None, first_index: int, entries: tuple[LogEntry, ...]
    ) -> None:
        base = self._kept.snapshot.index + 1
        if not base <= first_index <= base + len(self._entries):
            raise ValueError(f"from {first_index} on, where {base + len(self._entries)} is next")
        if any(entry.index != at for at, entry in enumerate(entries, first_index)):
            raise ValueError(f"entries from {first_index} on that do not follow each other")
        del self._entries[first_index - base :]
        self._entries.extend(entries)
        if (term, vote) != (self._kept.term, self._kept.vote):
            self._kept = msgspec.structs.replace(self._kept, term=term, vote=vote)

    def _begin(self) -> None:
        """A new file with all there is; the ones before go."""
        storage, kept, snapshot = self._storage, self._kept, self._kept.snapshot
        if snapshot.index:
            self._write_snapshot(snapshot)
        first = snapshot.index + 1
        steps = range(0, max(1, len(self._entries)), RECORD_ENTRIES_MAX)
        head = Head(
            RAFT_VERSION, self._node, snapshot.index, snapshot.term, snapshot.members, len(steps)
        )
        self._synced = 0
        records = [self._encoded(HEAD, head)]
        for step in steps:
            entries = tuple(self._entries[step : step + RECORD_ENTRIES_MAX])
            stored = Stored(kept.term, kept.vote, first + step, entries)
            records.append(self._encoded(STORED, stored))
        self.close()
        self._number += 1
        path = self._name(self._number)
        temporary = f"{path}.tmp"
        fd = storage.open(temporary, WRITE_EMPTY)
        try:
            end = write_all(storage, fd, records, 0)
            storage.fsync(fd)
        finally:
            storage.close(fd)
        storage.rename(temporary, path)
        storage.fsync_folder(self.path)
        self._fd = storage.open(path, READ_WRITE)
        self._end = self._synced = end
        self._clear_up()

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        path = self._snapshot_name(snapshot.index, snapshot.term)
        if self._storage.exists(path):
            return  # only what was synced has this name
        body = _encode(snapshot)
        rest = struct.pack("<Q", len(body))
        crc = crc32c(body, crc32c(rest))
        data = SNAPSHOT.pack(SNAPSHOT_MAGIC, crc, len(body)) + body
        self._storage.write_file_atomic(path, data)

    def _clear_up(self) -> None:
        """Removes files that the newest log does not need. The next time removes the rest."""
        snapshot = self._kept.snapshot
        needed = {
            self._name(self._number),
            self._snapshot_name(snapshot.index, snapshot.term),
        }
        for name in self._storage.listdir(self.path):
            path = f"{self.path}/{name}"
            is_ours = _LOG.fullmatch(name) or _SNAPSHOT.fullmatch(name) or name.endswith(".tmp")
            if is_ours and path not in needed:
                self._storage.unlink(path)

    def _name(self, number: int) -> str:
        return f"{self.path}/{number:020d}.log"

    def _snapshot_name(self, index: int, term: int) -> str:
        return f"{self.path}/{index:020d}-{term:020d}.snapshot"

    def _encoded(self, kind: int, value: msgspec.Struct) -> bytes:
        return encode_record(kind, _encode(value), self._synced)


def encode_record(kind: int, body: bytes, synced: int) -> bytes:
    head = RECORD.pack(RECORD_MAGIC, 0, len(body), kind, synced)
    padding = bytes(-(RECORD.size + len(body)) % ALIGNMENT)
    rest = head[CRC_FROM:] + body + padding
    return RECORD_MAGIC + struct.pack("<I", crc32c(rest)) + rest


def _record(data: bytes, place: int) -> tuple[int, memoryview, int, int] | None:
    """Kind, body, where the next one begins, and how much was synced before; None: no whole one."""
    if place + RECORD.size > len(data):
        return None
    magic, crc, length, kind, synced = RECORD.unpack_from(data, place)
    start = place + RECORD.size
    after = start + length + -(RECORD.size + length) % ALIGNMENT
    if magic != RECORD_MAGIC or after > len(data):
        return None
    if crc32c(memoryview(data)[place + CRC_FROM : after]) != crc:
        return None
    return kind, memoryview(data)[start : start + length], after, synced


def _whole(storage: Storage, path: str) -> bytes:
    fd = storage.open(path, READ)
    try:
        size = storage.size(fd)
        if size > FILE_BYTES_MAX:
            raise DataFolderError(f"{path} has {size} bytes, which no raft file has. {REMEDY}")
        return storage.pread(fd, size, 0)
    finally:
        storage.close(fd)
