"""The start of a log that is not the start of its first segment any more.

    ┌────────────┬─────────┬─────────┬─────────────┬─────────────────────────┐
    │ magic PSLS │ version │ 0   u16 │ crc32c  u32 │ log start, offset   u64 │
    └────────────┴─────────┴─────────┴─────────────┴─────────────────────────┘

The file is replaced as a whole, and fsynced before anything below the offset is removed. A log
without this file starts with its first segment. Whole segments below the start may still be there
after a crash: they are dead, and the next open removes them.

Owns the file `log-start` and the line between dead and live segments. Never removes anything.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from typing import Final

from penstock.core.crc import crc32c
from penstock.core.storage import Storage

START: Final = struct.Struct("<4sHHIQ")
START_MAGIC: Final = b"PSLS"
START_VERSION: Final = 1
START_FILE: Final = "log-start"

logger = logging.getLogger("penstock.core.log")


def encode_start(offset: int, magic: bytes = START_MAGIC) -> bytes:
    blank = START.pack(magic, START_VERSION, 0, 0, offset)
    return START.pack(magic, START_VERSION, 0, crc32c(blank), offset)


def decode_start(data: bytes, magic: bytes = START_MAGIC) -> int | None:
    """The offset; None if these bytes are no such file."""
    if len(data) != START.size:
        return None
    offset: int = START.unpack(data)[-1]
    return offset if data == encode_start(offset, magic) else None


def load_start(storage: Storage, folder: str) -> int:
    """Returns the persisted log start; 0 where there is none, or none that can be read.

    The file is written as one step, so only damage explains one that cannot be read. The log then
    starts with its first segment again, which shows trimmed records and loses none.
    """
    path = f"{folder}/{START_FILE}"
    data = storage.read_file(path)
    if data is None:
        return 0
    start = decode_start(data)
    if start is None:
        logger.error(
            "%s is damaged: the log starts with its first segment until trimmed",
            path,
            extra={"path": path},
        )
        return 0
    return start


def save_start(storage: Storage, folder: str, offset: int) -> None:
    """On the device when this returns, with all names in the folder."""
    storage.write_file_atomic(f"{folder}/{START_FILE}", encode_start(offset))


def first_live(bases: list[int], start: int) -> int:
    """The index of the first segment that holds something at or above `start`; the last segment
    always counts."""
    return max(0, bisect_right(bases, start) - 1)
