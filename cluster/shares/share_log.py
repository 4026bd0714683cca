"""The state of one partition of a share group in a log that keeps the newest value of each key.

| key | value |
|---|---|
| `("share", group)` | `SharePolicy`, as an array |
| `("share pause", group)` | `SharePause`, while it is paused |
| `("share snapshot", group, topic id, partition, side, part)` | `SnapshotPart` |
| `("share run", group, topic id, partition, number, part)` | `SnapshotPart` of a `WaitingRun` |
| `("share delta", group, topic id, partition, side, slot)` | `NumberedDeltas` |

Deltas are numbered. A snapshot holds all up to its number; the deltas behind it take the slots of
its side, from 0 on. The next snapshot is written on the other side: what it replaces is overwritten
only once it is whole, so that a log that ends in the middle of it, compacted or not, still has the
one before. A delta whose number does not follow the last one is an old one, and passed over.

A snapshot names runs of waiting records, which are written before it, each once, and deleted after
the first snapshot that names them no more. So it stays small, however many records wait.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import msgspec

from penstock.cluster.decisions import Record
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.limits import ShareLimits
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.state import NOT_ARRANGED, Arrangement, ShareSnapshot
from penstock.cluster.shares.waiting import WaitingRun, runs_in
from penstock.core.errors import CorruptBatchError

SNAPSHOT: Final = "share snapshot"
RUN: Final = "share run"
DELTA: Final = "share delta"
PART_BYTES: Final = 64 << 10
"""Of a snapshot, in one record."""
DELTA_BYTES_MIN: Final = 64 << 10
"""Deltas take at least so many bytes before a snapshot follows, and four times its own."""
SLOTS_MAX: Final = 4096
"""Deltas behind a snapshot at most."""

Uniform = Callable[[float, float], float]
Place = tuple[bytes, int]
"""A partition: its topic's id and its number."""

_encode: Final = msgspec.msgpack.Encoder().encode


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """One of `parts` pieces of a compressed `ShareSnapshot`, or a run of it: then `number` is the
    run's, else that of the last delta in it."""

    number: int
    parts: int
    data: bytes


class NumberedDeltas(msgspec.Struct, frozen=True, array_like=True):
    number: int
    deltas: list[rec.Delta]


_decode_part: Final = msgspec.msgpack.Decoder(SnapshotPart).decode
_decode_deltas: Final = msgspec.msgpack.Decoder(NumberedDeltas).decode
_decode_snapshot: Final = msgspec.msgpack.Decoder(ShareSnapshot).decode


class LoggedShare:
    """One group in one partition, as its records make it. `machine`: None before a first snapshot
    is whole."""

    def __init__(
        self,
        group: str,
        place: Place,
        uniform: Uniform,
        limits: ShareLimits,
        arrangement: Arrangement = NOT_ARRANGED,
    ) -> None:
        self.group = group
        self.place = place
        self.machine: SharePartition | None = None
        self.limits = limits
        self._arrangement = arrangement
        self._uniform = uniform
        self._number = 0
        self._side = 1
        self._slot = 0
        self._delta_bytes = 0
        self._snapshot_bytes = 0
        self._gathered: dict[int, bytes] = {}
        self._gathering = ("", -1)
        self._runs: dict[int, WaitingRun] = {}
        self._last_run = 0
        self._missing: list[int] = []
        """Runs that the last snapshot names and the log has no more. A later snapshot follows, or
        the log lost something."""
        self._used: dict[tuple[str, int], int] = {}
        """How many slots or parts of each kind and side (of a run: its number) the log has: what a
        deletion takes."""

    def limit(self, limits: ShareLimits) -> None:
        """Other bounds from now on."""
        self.limits = limits
        if self.machine is not None:
            self.machine.limits = limits

    def whole(self) -> SharePartition | None:
        """The machine, to deliver by. Raises `CorruptBatchError` where the log lacks a part."""
        if self._missing:
            raise CorruptBatchError(
                f"share group {self.group!r} cannot go on with partition {self.place[1]} of topic "
                f"{self.place[0].hex()}: the coordinator's log lacks {len(self._missing)} runs of "
                f"records that wait, as run {self._missing[0]}; delete the group, or restore "
                "the coordinator's log"
            )
        return self.machine

    # --- out ---
    def record_of(self, deltas: tuple[rec.Delta, ...]) -> Record:
        """The record of these deltas, which are to be replayed before any other."""
        value = _encode(NumberedDeltas(self._number + 1, list(deltas)))
        return Record(self._key(DELTA, self._side, self._slot), value)

    def begin(self, start: int) -> tuple[SharePartition, list[Record]]:
        """The state that begins with this offset, and the records that make it so: a snapshot."""
        machine = SharePartition(start, self._uniform, self.limits, self._arrangement)
        return machine, self._snapshot(machine, self._number)

    def first_record_of(self, deltas: tuple[rec.Delta, ...]) -> Record:
        """`record_of`, right behind what `begin` told."""
        value = _encode(NumberedDeltas(self._number + 1, list(deltas)))
        return Record(self._key(DELTA, 1 - self._side, 0), value)

    @property
    def is_snapshot_due(self) -> bool:
        return self._slot >= SLOTS_MAX or self._delta_bytes > max(
            DELTA_BYTES_MIN, 4 * self._snapshot_bytes
        )

    def snapshot_records(self) -> list[Record]:
        """A snapshot of all up to the last delta. Append each of its records as a batch."""
        return [] if self.machine is None else self._snapshot(self.machine, self._number)

    def _snapshot(self, machine: SharePartition, number: int) -> list[Record]:
        snapshot, fresh = machine.snapshot_beside(count(self._last_run + 1))
        records = [
            record for run, data in fresh.items() for record in self._parts(RUN, run, run, data)
        ]
        records += self._parts(SNAPSHOT, 1 - self._side, number, _encode(snapshot))
        named = {run for run, _ in snapshot.runs}
        unnamed = [it for it in self._used.items() if it[0][0] == RUN and it[0][1] not in named]
        for (_, run), parts in unnamed:
            records += [Record(self._key(RUN, run, at), None) for at in reversed(range(parts))]
        return records

    def _parts(self, kind: str, side: int, number: int, data: bytes) -> Iterator[Record]:
        data = zlib.compress(data, 1)
        pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        for at, piece in enumerate(pieces):
            part = SnapshotPart(number, len(pieces), piece)
            yield Record(self._key(kind, side, at), _encode(part))

    @property
    def is_void(self) -> bool:
        """Whether the log has nothing of it any more."""
        return not any(self._used.values())

    def tombstones(self, count_max: int) -> list[Record]:
        """Returns the records that delete it, at most so many: deltas before snapshots before runs,
        the last first. So the rest is still a valid state between two batches."""
        found: list[Record] = []
        runs = [at for kind, at in self._used if kind == RUN]
        sides = (self._side, 1 - self._side)
        for kind, numbers in ((DELTA, sides), (SNAPSHOT, sides), (RUN, runs)):
            for side in numbers:
                for at in reversed(range(self._used.get((kind, side), 0))):
                    if len(found) == count_max:
                        return found
                    found.append(Record(self._key(kind, side, at), None))
        return found

    def _key(self, kind: str, side: int, at: int) -> bytes:
        return _encode((kind, self.group, *self.place, side, at))

    # --- in ---
    def replay(self, kind: str, side: int, at: int, value: bytes | None) -> None:
        """A record of this partition, in the log's order."""
        if kind == RUN:
            self._last_run = max(self._last_run, side)
        if value is None:
            if at == self._used.get((kind, side), 0) - 1:
                self._used[kind, side] = at
            if kind == RUN:
                self._runs.pop(side, None)
                if not self._used.get((kind, side)):
                    self._used.pop((kind, side), None)
            if self.is_void:
                self.machine = None
            return
        self._used[kind, side] = max(self._used.get((kind, side), 0), at + 1)
        if kind != DELTA:
            self._gather(kind, side, at, _decode_part(value))
            return
        found = _decode_deltas(value)
        if self.machine is None or found.number != self._number + 1:
            return  # of a round before the snapshot that comes; a log that misses one waits for it
        for delta in found.deltas:
            self.machine.replay(delta)
        self._number, self._side, self._slot = found.number, side, at + 1
        self._delta_bytes += len(value)

    def _gather(self, kind: str, side: int, at: int, part: SnapshotPart) -> None:
        if (kind, part.number) != self._gathering or at == 0:
            self._gathered.clear()
            self._gathering = (kind, part.number)
        self._gathered[at] = part.data
        if len(self._gathered) < part.parts:
            return
        pieces = b"".join(self._gathered[at] for at in range(part.parts))
        self._gathered.clear()
        try:
            data = zlib.decompress(pieces)
            if kind == RUN:
                [self._runs[part.number]] = runs_in(data)
                self._runs[part.number].number = part.number
            else:
                self._adopt(_decode_snapshot(data), part.number, side, len(pieces))
        except (zlib.error, msgspec.MsgspecError, ValueError) as error:
            raise CorruptBatchError(
                f"a snapshot of share group {self.group!r} cannot be read: {error}"
            ) from error

    def _adopt(self, snapshot: ShareSnapshot, number: int, side: int, size: int) -> None:
        self._missing = sorted({run for run, _ in snapshot.runs} - self._runs.keys())
        if self._missing:
            return  # an old one: the runs it names are deleted once the next one is whole
        self.machine = SharePartition(snapshot, self._uniform, self.limits, runs=self._runs)
        self._number, self._side, self._slot = number, side, 0
        self._delta_bytes, self._snapshot_bytes = 0, size
