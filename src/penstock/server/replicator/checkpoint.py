"""High watermarks, written down every few seconds: what a broker knows of them after a power cut.

    <data>/high-watermarks   msgpack: [version, crc32c, packed [(topic id, partition, offset), ...]]

Within a boot the state pages know better. A file that is gone or damaged only means that followers
and leaders begin with lower ones, which fetches raise again. Written as a whole by a thread of its
own: the loop never waits for a disk.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import msgspec

from penstock.core.crc import crc32c
from penstock.core.errors import PenstockError
from penstock.core.storage import Storage

logger = logging.getLogger("penstock.replicator")

FILE: Final = "high-watermarks"
VERSION: Final = 1
Place = tuple[bytes, int]


def load(storage: Storage, folder: str) -> dict[Place, int]:
    """Returns the high watermarks of the file, empty if it cannot be read."""
    data = storage.read_file(f"{folder}/{FILE}")
    if data is None:
        return {}
    try:
        version, crc, body = msgspec.msgpack.decode(data, type=tuple[int, int, bytes])
        if version != VERSION or crc32c(body) != crc:
            raise ValueError(f"version {version}, or another checksum than {crc}")
        entries = msgspec.msgpack.decode(body, type=list[tuple[bytes, int, int]])
    except (msgspec.MsgspecError, ValueError) as error:
        logger.warning("%s/%s is damaged, and not needed: %s", folder, FILE, error)
        return {}
    return {(topic_id, partition): offset for topic_id, partition, offset in entries}


def encoded(known: dict[Place, int]) -> bytes:
    body = msgspec.msgpack.encode([(*place, offset) for place, offset in known.items()])
    return msgspec.msgpack.encode((VERSION, crc32c(body), body))


class Checkpoint:
    """Writes what is known, one time after the other."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._known: dict[Place, int] = load(storage, folder)
        self._written = encoded(self._known)
        self._thread: threading.Thread | None = None

    def of(self, place: Place) -> int:
        """Returns the high watermark of a partition; 0 if none is known."""
        return self._known.get(place, 0)

    def note(self, place: Place, offset: int) -> None:
        self._known[place] = offset

    def forget(self, place: Place) -> None:
        self._known.pop(place, None)

    def write(self) -> None:
        """Begin to write, unless nothing has changed or the last one is not done yet."""
        if self._thread is not None and self._thread.is_alive():
            return
        data = encoded(self._known)
        if data != self._written:
            self._written = data
            self._thread = threading.Thread(target=self._write, args=(data,), daemon=True)
            self._thread.start()

    def _write(self, data: bytes) -> None:
        try:
            self._storage.write_file_atomic(f"{self._folder}/{FILE}", data)
        except PenstockError as error:
            logger.warning("high watermarks are not written down: %s", error)

    def finish(self, seconds: float) -> None:
        """Write what is known, and wait for that."""
        until = time.monotonic() + seconds
        for _ in range(2):  # the one under way, and the last one
            if self._thread is not None:
                self._thread.join(max(0.0, until - time.monotonic()))
            self.write()
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
