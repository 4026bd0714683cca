"""Saves whole segments after a failed fsync (rule 16), so that readers' positions stay true.

A failed fsync is never retried: the kernel may have dropped the pages and marked them clean, so a
second fsync would succeed for nothing.

    mark       `fsync-failed` names the segments, at once. Written without fsync: it only has to
               outlive the process, since a reboot ends the page cache, and the doubt with it.
    rescue     copy the segment as the page cache has it, every batch verified, to a new file, and
               fsync that. The old file stays as `.failed`; one rename puts the copy in its place.
    roll       readers may have the old file mapped at this very segment base, so nothing is ever
               appended to the copy: the log goes on in a new segment.
    unmark     after the folder is fsynced. A process that dies before finds the mark and does it
               all again; one that cannot do it stays offline.

Owns the mark and the copy. The order of the steps is `chain`'s, and `recovery`'s after a death.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.crc import crc32c
from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.segment import Scan, segment_path
from penstock.core.storage import WRITE_EMPTY, Storage, write_all

MARK_FILE: Final = "fsync-failed"
MARK_HEAD: Final = struct.Struct("<4sHHII64s")
"""Magic, version, boot id length, crc32c of all with itself 0, count, boot id; then u64 bases."""
MARK_MAGIC: Final = b"PSFF"
MARK_VERSION: Final = 1
FAILED_SUFFIX: Final = ".failed"
RESCUE_SUFFIX: Final = ".rescue"
COPY_BYTES: Final = 1 << 20


def write_mark(storage: Storage, folder: str, boot_id: str, bases: list[int]) -> None:
    """From now on, in this boot, these segments too must be rescued before the log is used."""
    bases = sorted({*bases, *read_mark(storage, folder, boot_id, same_boot=True)})
    boot = boot_id.encode()
    body = struct.pack(f"<{len(bases)}Q", *bases)
    head = MARK_HEAD.pack(MARK_MAGIC, MARK_VERSION, len(boot), 0, len(bases), boot)
    crc = crc32c(body, crc32c(head))
    head = MARK_HEAD.pack(MARK_MAGIC, MARK_VERSION, len(boot), crc, len(bases), boot)
    storage.write_file(f"{folder}/{MARK_FILE}", head + body, durable=False)


def sync_or_mark(storage: Storage, folder: str, boot_id: str, base_offset: int, fd: int) -> None:
    """fdatasync of a segment where no rescue follows: if it fails, the next open does that."""
    try:
        storage.fdatasync(fd)
    except StorageError as error:
        write_mark(storage, folder, boot_id, [base_offset])
        raise LogOfflineError(f"{error} The log is offline until it is recovered.") from error


def read_mark(storage: Storage, folder: str, boot_id: str, *, same_boot: bool) -> list[int]:
    """The marked segments, none if the mark is of another boot.

    A mark that cannot be read is what a power cut left of one; within one boot nothing but damage
    explains it, which raises `LogOfflineError`.
    """
    path = f"{folder}/{MARK_FILE}"
    data = storage.read_file(path)
    if data is None:
        return []
    if len(data) >= MARK_HEAD.size:
        magic, version, length, crc, count, boot = MARK_HEAD.unpack_from(data)
        blank = MARK_HEAD.pack(magic, version, length, 0, count, boot)
        body = data[MARK_HEAD.size :]
        if magic == MARK_MAGIC and crc32c(body, crc32c(blank)) == crc:
            if boot[:length].decode() != boot_id:
                return []
            return list(struct.unpack(f"<{count}Q", body))
    if not same_boot:
        return []
    raise LogOfflineError(
        f"{path} says that an fsync failed here, but is damaged itself. Reboot the host (the page "
        "cache is then gone, and with it the doubt), remove that file, and start again."
    )


def dirty_again(storage: Storage, fd: int, start: int, end: int) -> None:
    """Writes bytes over themselves, so that the next fsync truly writes them. A process may have
    died between a failed fsync and its mark. Readers see no change."""
    while start < end:
        data = storage.pread(fd, min(COPY_BYTES, end - start), start)
        start += write_all(storage, fd, [data], start)


def remove_mark(storage: Storage, folder: str) -> None:
    storage.unlink(f"{folder}/{MARK_FILE}")


def rescue_segment(
    storage: Storage, folder: str, base_offset: int, fd: int, valid: int, owner: tuple[bytes, int]
) -> None:
    """Put a verified, fsynced copy of a segment's first `valid` bytes in its place, and keep the
    old file as `.failed`. The folder still has to be fsynced. Raises `StorageError`."""
    path = segment_path(folder, base_offset)
    copy = path + RESCUE_SUFFIX
    out = storage.open(copy, WRITE_EMPTY)
    try:
        scan = Scan(
            storage, fd, position=0, offset=base_offset, owner=owner, end=valid, bodies=True
        )
        pieces: list[bytes] = []
        held = written = 0
        for at, head in scan:
            pieces.append(bytes(scan.body(at, head)))
            held += head.length
            if held >= COPY_BYTES:
                written += write_all(storage, out, pieces, written)
                pieces, held = [], 0
        if pieces:
            write_all(storage, out, pieces, written)
        if scan.position != valid:
            raise LogOfflineError(
                f"{path} cannot be rescued after a failed fsync: at byte {scan.position} of "
                f"{valid} is {scan.stop.value}. Restore the partition from a replica or backup."
            )
        storage.fsync(out)
    finally:
        storage.close(out)
    failed = path.removesuffix(".log") + FAILED_SUFFIX
    storage.unlink(failed)
    storage.link(path, failed)
    storage.rename(copy, path)
