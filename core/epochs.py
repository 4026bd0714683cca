"""The start offset of each leader epoch; rule 15 and every truncation check build on it.

    ┌──────────────┬─────────┬─────────┬─────────────┬────────────┐
    │ magic PSEP   │ version │ 0   u16 │ crc32c  u32 │ count  u32 │
    ├──────────────┴─────────┼─────────┴─────────────┴────────────┤
    │ epoch u32, 0 u32       │ start offset u64                   │   x count, both strictly
    └────────────────────────┴────────────────────────────────────┘   rising

Owns the cache and its file `epochs`, written as a whole and fsynced before the first append of a
new epoch. Never decides when an epoch begins.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.crc import crc32c
from penstock.core.storage import Storage

EPOCHS_HEAD: Final = struct.Struct("<4sHHII")
EPOCHS_ENTRY: Final = struct.Struct("<IIQ")
EPOCHS_MAGIC: Final = b"PSEP"
EPOCHS_VERSION: Final = 1
EPOCHS_FILE: Final = "epochs"
EPOCHS_MAX: Final = 10_000
"""Bound of the known epochs; the oldest go. Replicas keep epochs from before their log start.
Another replica with an older log so learns where it parted from theirs, not just where theirs
begin."""


class EpochCache:
    """Epochs with their start offsets, both rising. An epoch that is there is never overwritten."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries = entries if entries is not None else []

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch; 0 before the first."""
        return self._entries[-1][0] if self._entries else 0

    def assign(self, epoch: int, start_offset: int) -> bool:
        """An epoch begins; whether that changed anything.

        An epoch at or below the newest is left alone. Epochs that began at or behind
        `start_offset` hold nothing any more and go.
        """
        if self._entries and epoch <= self.latest:
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        del self._entries[:-EPOCHS_MAX]
        return True

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the newest epoch at or below the wanted one: where a log that
        continued from it must agree with this one. None for an epoch above the newest."""
        if not self._entries or epoch > self.latest:
            return None
        if epoch == self.latest:
            return epoch, log_end
        found: tuple[int, int] | None = None
        for i, (known, _) in enumerate(self._entries):
            if known > epoch:
                break
            found = known, self._entries[i + 1][1] if i + 1 < len(self._entries) else log_end
        if found is None:
            # Nothing of that epoch is here: a log that has it diverges where ours begins.
            return epoch, self._entries[0][1]
        return found

    def epoch_at(self, offset: int) -> int | None:
        """The epoch in which `offset` was or will be written; None below the oldest known one."""
        found = None
        for epoch, start in self._entries:
            if start > offset:
                break
            found = epoch
        return found

    def truncate_end(self, log_end: int) -> bool:
        """The log now ends at `log_end`: forget epochs that began there or behind."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= log_end:
            self._entries.pop()
        return len(self._entries) != before

    def truncate_start(self, log_start: int) -> bool:
        """The log now starts at `log_start`: the epoch that reaches over it starts there too."""
        below = [entry for entry in self._entries if entry[1] <= log_start]
        if not below or (len(below) == 1 and below[0][1] == log_start):
            return False
        self._entries = [(below[-1][0], log_start), *self._entries[len(below) :]]
        return True

    def encode(self) -> bytes:
        body = b"".join(EPOCHS_ENTRY.pack(epoch, 0, start) for epoch, start in self._entries)
        head = EPOCHS_HEAD.pack(EPOCHS_MAGIC, EPOCHS_VERSION, 0, 0, len(self._entries))
        crc = crc32c(body, crc32c(head))
        head = EPOCHS_HEAD.pack(EPOCHS_MAGIC, EPOCHS_VERSION, 0, crc, len(self._entries))
        return head + body

    @classmethod
    def decode(cls, data: bytes) -> EpochCache | None:
        """None if these bytes are not a whole, good epochs file."""
        if len(data) < EPOCHS_HEAD.size:
            return None
        magic, version, reserved, crc, count = EPOCHS_HEAD.unpack_from(data)
        body = data[EPOCHS_HEAD.size :]
        if (magic, version) != (EPOCHS_MAGIC, EPOCHS_VERSION):
            return None
        if len(body) != count * EPOCHS_ENTRY.size:
            return None
        if crc32c(body, crc32c(EPOCHS_HEAD.pack(magic, version, reserved, 0, count))) != crc:
            return None
        return cls([(epoch, start) for epoch, _, start in EPOCHS_ENTRY.iter_unpack(body)])


def load_epochs(storage: Storage, folder: str) -> EpochCache | None:
    """The cache of a partition folder; None if there is none or it is damaged."""
    data = storage.read_file(f"{folder}/{EPOCHS_FILE}")
    return None if data is None else EpochCache.decode(data)


def save_epochs(storage: Storage, folder: str, cache: EpochCache) -> None:
    """On the device when this returns."""
    storage.write_file_atomic(f"{folder}/{EPOCHS_FILE}", cache.encode())
