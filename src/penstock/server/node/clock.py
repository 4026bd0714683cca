"""The clock by which a node's records, offsets and ids expire, kept over restarts.

Noted in the data folder, so that a start with a wrong wall clock is one (decision 0061). Without a
note the wall clock is believed. Writers and the cleaner begin with what the node believes when it
starts them. Owns the note, and what is said and counted of jumps.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Final

import msgspec

from penstock.core.errors import StorageError
from penstock.core.expiry import ExpiryClock
from penstock.core.storage import Storage
from penstock.server.node.process_clock import up_us

logger = logging.getLogger("penstock.node")

CLOCK_FILE: Final = "clock.json"
LOOK_EVERY: Final = 10.0
NOTE_EVERY_US: Final = 600 * 1_000_000
JUMP_US: Final = 60 * 1_000_000
"""A difference that is told: smaller ones are gone within a minute."""


class ClockNote(msgspec.Struct, frozen=True):
    """clock.json: what was believed, at which time of which boot, and how many jumps were seen."""

    believed_us: int
    up_us: int
    boot_id: str
    jumps: int


class NodeClock:
    """The node's own. `jumps`: how often the wall clock was found elsewhere, ever."""

    def __init__(self, folder: str, storage: Storage, boot_id: str) -> None:
        self._path = os.path.join(folder, CLOCK_FILE)
        self._storage = storage
        self._boot_id = boot_id
        self._ahead_us = 0  # at the last look
        wall, up = time.time_ns() // 1000, up_us()
        note = self._read()
        self.jumps = note.jumps if note is not None else 0
        if note is None:
            self._clock = ExpiryClock(wall, up)
        elif note.boot_id == boot_id:
            self._clock = ExpiryClock(note.believed_us, note.up_us)
        else:
            self._clock = ExpiryClock.after_boot(note.believed_us, wall, up)
        self._looked_at = up
        self._noted_at: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _read(self) -> ClockNote | None:
        data = self._storage.read_file(self._path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=ClockNote)
        except msgspec.MsgspecError as error:
            logger.warning("%s is damaged, the wall clock is believed: %s", self._path, error)
            return None

    def now_us(self) -> int:
        return self._clock.look(time.time_ns() // 1000, up_us())

    @property
    def ahead_us(self) -> int:
        """How far the wall clock is ahead of what is believed; below 0: behind."""
        wall = time.time_ns() // 1000
        return wall - self._clock.look(wall, up_us())

    def look(self) -> None:
        """Say and count a jump that is new, and note what is believed now and then."""
        ahead = self.ahead_us
        up = up_us()
        moved, passed = abs(ahead - self._ahead_us), up - self._looked_at
        self._ahead_us, self._looked_at = ahead, up
        is_new = moved >= JUMP_US + passed and abs(ahead) >= JUMP_US
        if is_new:
            self.jumps += 1
            self._tell(ahead)
        if is_new or self._noted_at is None or up - self._noted_at >= NOTE_EVERY_US:
            self.note()

    def _tell(self, ahead: int) -> None:
        logger.warning(
            "the wall clock is %.0f s %s what passed since it was seen last: nothing expires for "
            "that. Retention, offsets and ids go by a clock that %s. Set the clock of this host; "
            "if it is right, stop the node and remove %s",
            abs(ahead) / 1e6,
            "ahead of" if ahead > 0 else "behind",
            "follows it at twice the pace of time" if ahead > 0 else "waits for it",
            self._path,
            extra={"path": self._path, "reason": "clock"},
        )

    def note(self) -> None:
        """Keep it for the next start. A full disk is none that keeps the node from going on."""
        note = ClockNote(self.now_us(), up_us(), self._boot_id, self.jumps)
        self._noted_at = note.up_us
        try:
            self._storage.write_file_atomic(self._path, msgspec.json.encode(note) + b"\n")
        except StorageError as error:
            logger.warning("what the clock says is not noted: %s", error)

    def begin(self) -> None:
        """Look now, and again in a while."""
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self.begin)

    def end(self) -> None:
        """Note what is believed, for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self.note()

    def counts(self) -> dict[str, int]:
        return {"jumps": self.jumps, "ahead": round(self.ahead_us / 1e6)}
