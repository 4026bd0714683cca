"""The recovery point of a partition: below it the log is on the device, above it is to be checked.

`recovery-point` holds two slots at bytes 0 and 512. They are written in turn and in place, so that
a write torn by a power cut leaves the other one. The good slot with the higher serial counts.

     0 ┌────────────────┬─────────┬─────────┬────────────────┬────────────────┐
       │ magic  PSRP    │ version │ boot len│ crc32c         │ flags          │
    16 ├────────────────┴─────────┴─────────┼────────────────┴────────────────┤
       │ serial                             │ segment base                    │
    32 ├────────────────────────────────────┼─────────────────────────────────┤
       │ position in that segment           │ offset                          │
    48 ├────────────────┬───────────────────┼─────────────────────────────────┤
       │ leader epoch   │ generation        │ append timestamp                │   of the last batch
    64 ├────────────────┴───────────────────┴─────────────────────────────────┤   below the point
       │ boot id, utf-8, up to 56 bytes                                       │
   120 ├──────────────────────────────────────────────────────────────────────┤
       │ identity of this file, 0: not known (versions before it was told)    │
   128 └──────────────────────────────────────────────────────────────────────┘

Flag 1: the log is to end at this point. It is written before a truncation and cleared after it. So
the next recovery finishes a truncation that was killed half-way, and truncated batches never
return. Flag 2: the log is to begin at this point, with nothing in it (`again`), in the same way.

The file is always written in place, so it keeps its inode, and a copy of it has another identity.
This shows a partition that was copied, or brought back from a backup.

A point may be older than the truth (recovery then reads more) and never ahead of it. So it is
written after each fsync of the log, and need not be fsynced itself each time. Owns the file. Never
decides what is durable.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.core.crc import crc32c
from penstock.core.errors import ConfigError
from penstock.core.storage import READ, WRITE_ANY, Storage, write_all

POINT: Final = struct.Struct("<4sHHIIQQQQIIq56sQ")
POINT_MAGIC: Final = b"PSRP"
POINT_VERSION: Final = 1
POINT_FILE: Final = "recovery-point"
SLOT_BYTES: Final = 512
FLAG_TRUNCATING: Final = 1
FLAG_BEGINNING: Final = 2
BOOT_ID_MAX: Final = 56
assert POINT.size == 128


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Says that everything below `offset` is on the device. It is at `position` of segment
    `segment_base`. Epoch, generation and append time are those of the last batch below."""

    segment_base: int
    position: int
    offset: int
    leader_epoch: int
    generation: int
    append_timestamp: int
    boot_id: str
    truncating: bool = False
    beginning: bool = False

    @property
    def is_half_way(self) -> bool:
        """A truncation or a restart of the log was begun at this point, and is not done."""
        return self.truncating or self.beginning

    def encode(self, serial: int, identity: int = 0) -> bytes:
        """A slot, in the file of that identity."""
        boot = self.boot_id.encode()
        flags = FLAG_TRUNCATING * self.truncating | FLAG_BEGINNING * self.beginning
        fields = [
            POINT_MAGIC, POINT_VERSION, len(boot), 0, flags, serial, self.segment_base,
            self.position, self.offset, self.leader_epoch, self.generation, self.append_timestamp,
            boot, identity,
        ]  # fmt: skip
        fields[3] = crc32c(POINT.pack(*fields))
        return POINT.pack(*fields)

    @classmethod
    def decode(cls, data: bytes) -> tuple[RecoveryPoint, int, int] | None:
        """The point, its serial and its file's identity; None if these bytes are not a good
        slot."""
        if len(data) < POINT.size:
            return None
        fields = list(POINT.unpack_from(data))
        crc, fields[3] = fields[3], 0
        if fields[:2] != [POINT_MAGIC, POINT_VERSION] or crc32c(POINT.pack(*fields)) != crc:
            return None
        _, _, boot_length, _, flags, serial, base, position, offset, epoch, generation, at = fields[
            :12
        ]
        boot_id = fields[12][:boot_length].decode()
        half_way = bool(flags & FLAG_TRUNCATING), bool(flags & FLAG_BEGINNING)
        point = cls(base, position, offset, epoch, generation, at, boot_id, *half_way)
        return point, serial, fields[13]


class PointFile:
    """The file of one partition. Opened for each write: partitions are many, descriptors few."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self.path = f"{folder}/{POINT_FILE}"
        self.is_copy = False
        """Whether what `load` found was written into another file than this one."""
        self._serial = 0
        self._is_half_way = False  # a slot may be, on the device

    def load(self) -> RecoveryPoint | None:
        """Returns the newest good point; None if there is none.

        A process may have died after it wrote the end of a truncation, and before the device had
        it. A power cut would bring back the beginning, and take later appends away. So such an end
        is written once more, through to the device, and into both slots.
        """
        data = self._storage.read_file(self.path) or b""
        found: RecoveryPoint | None = None
        for start in (0, SLOT_BYTES):
            slot = RecoveryPoint.decode(data[start : start + SLOT_BYTES])
            if slot is None:
                continue
            self._is_half_way |= slot[0].is_half_way
            if slot[1] > self._serial:
                found, self._serial, identity = slot
                self.is_copy = identity not in (0, self._identity())
        if found is not None and self._is_half_way and not found.is_half_way:
            self.write(found, durable=True)
        return found

    def _identity(self) -> int:
        fd = self._storage.open(self.path, READ)
        try:
            return self._storage.identity(fd)
        finally:
            self._storage.close(fd)

    def write(self, point: RecoveryPoint, *, durable: bool) -> None:
        """Write the older slot. With `durable` the point is on the device when this returns. Both
        slots where one is of something half-way: nothing may bring that back."""
        if self._is_half_way and not point.is_half_way:
            self._write(point, durable=True)
            durable = True
        self._write(point, durable=durable)
        self._is_half_way = point.is_half_way

    def _write(self, point: RecoveryPoint, *, durable: bool) -> None:
        def slots(fd: int, count: int) -> bytes:
            found = point.encode(self._serial + 1, self._storage.identity(fd))
            return found.ljust(count * SLOT_BYTES, b"\0")

        if not self._storage.exists(self.path):
            self._storage.write_file(self.path, lambda fd: slots(fd, 2), durable=True)
            self._serial += 1
            return
        fd = self._storage.open(self.path, WRITE_ANY)
        try:
            # Serial n is in slot (n - 1) % 2, the first one of a new file in slot 0.
            write_all(self._storage, fd, [slots(fd, 1)], self._serial % 2 * SLOT_BYTES)
            if durable:
                self._storage.fdatasync(fd)
        finally:
            self._storage.close(fd)
        self._serial += 1


def check_boot_id(boot_id: str) -> None:
    """The bound of the drawn field."""
    if not 0 < len(boot_id.encode()) <= BOOT_ID_MAX:
        raise ConfigError(f"boot id {boot_id!r} must have 1 to {BOOT_ID_MAX} bytes")
