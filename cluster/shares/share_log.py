"""The state of one partition of a share group in a log that keeps the newest value of each key.

| key | value |
|---|---|
| `("share", group)` | `SharePolicy`, as an array |
| `("share pause", group)` | `SharePause`, while it is paused |
| `("share snapshot", group, topic id, partition, side, part)` | `SnapshotPart` |
| `("share delta", group, topic id, partition, side, slot)` | `NumberedDeltas` |

Deltas are numbered. A snapshot holds all up to its number; the deltas behind it take the slots of
its side, from 0 on. The next snapshot is written on the other side: what it replaces is overwritten
only once it is whole, so that a log that ends in the middle of it, compacted or not, still has the
one before. A delta whose number does not follow the last one is an old one, and passed over.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cluster.decisions import Record
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.limits import ShareLimits
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.state import NOT_ARRANGED, Arrangement, ShareSnapshot
from penstock.core.errors import CorruptBatchError

SNAPSHOT: Final = "share snapshot"
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
    """One of `parts` pieces of a compressed `ShareSnapshot`."""

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
        self._gathering = -1
        self._used: dict[tuple[str, int], int] = {}
        """How many slots or parts of each kind and side the log has: what a deletion takes."""

    def limit(self, limits: ShareLimits) -> None:
        """Other bounds from now on."""
        self.limits = limits
        if self.machine is not None:
            self.machine.limits = limits

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
        data = zlib.compress(_encode(machine.snapshot()), 1)
        pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        return [
            Record(
                self._key(SNAPSHOT, 1 - self._side, at),
                _encode(SnapshotPart(number, len(pieces), piece)),
            )
            for at, piece in enumerate(pieces)
        ]

    @property
    def is_void(self) -> bool:
        """Whether the log has nothing of it any more."""
        return not any(self._used.values())

    def tombstones(self, count_max: int) -> list[Record]:
        """Returns the records that delete it, at most so many: deltas before snapshots, the last
        first. So the rest is still a valid state between two batches."""
        found: list[Record] = []
        for kind in (DELTA, SNAPSHOT):
            for side in (self._side, 1 - self._side):
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
        if value is None:
            if at == self._used.get((kind, side), 0) - 1:
                self._used[kind, side] = at
            if kind == SNAPSHOT and self.is_void:
                self.machine = None
            return
        self._used[kind, side] = max(self._used.get((kind, side), 0), at + 1)
        if kind == SNAPSHOT:
            self._gather(side, at, _decode_part(value))
            return
        found = _decode_deltas(value)
        if self.machine is None or found.number != self._number + 1:
            return  # of a round before the snapshot that comes; a log that misses one waits for it
        for delta in found.deltas:
            self.machine.replay(delta)
        self._number, self._side, self._slot = found.number, side, at + 1
        self._delta_bytes += len(value)

    def _gather(self, side: int, at: int, part: SnapshotPart) -> None:
        if part.number != self._gathering or at == 0:
            self._gathered.clear()
            self._gathering = part.number
        self._gathered[at] = part.data
        if len(self._gathered) < part.parts:
            return
        data = b"".join(self._gathered[at] for at in range(part.parts))
        try:
            snapshot = _decode_snapshot(zlib.decompress(data))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise CorruptBatchError(
                f"a snapshot of share group {self.group!r} cannot be read: {error}"
            ) from error
        self.machine = SharePartition(snapshot, self._uniform, self.limits)
        self._gathered.clear()
        self._number, self._side, self._slot = part.number, side, 0
        self._delta_bytes, self._snapshot_bytes = 0, len(data)
