"""The one place of core that touches files, so that faults can be injected here and nowhere else.

Owns the system calls and the meaning of their errors. A `StorageError` names the file and says what
to do. It is `retriable` if room may come back, and not if the device or the file is ill. A failed
fsync is never retried by this module or by anybody else. Knows nothing of batches.

`read_file`, `write_file` and `write_all` consist of the primitives below them. So a test storage
that replaces the primitives sees every step of these three too.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.core.errors import StorageError

Buffer = bytes | bytearray | memoryview

# How files are opened, so that nobody else in core needs the os module.
READ: Final = os.O_RDONLY
READ_WRITE: Final = os.O_RDWR
WRITE_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL
WRITE_ANY: Final = os.O_RDWR | os.O_CREAT
WRITE_EMPTY: Final = os.O_RDWR | os.O_CREAT | os.O_TRUNC

TEMPORARY_SUFFIX: Final = ".tmp"

IOV_MAX: Final = 1024
"""Most buffers that Linux takes in one pwritev."""

_ADVICE: Final = {
    errno.ENOSPC: "Free space on this file system; writing goes on by itself when there is room.",
    errno.EDQUOT: "Raise the quota of this user; writing goes on by itself when there is room.",
    errno.EFBIG: "Raise the file size limit (ulimit -f), or lower segment_bytes.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Raise the system's limit of open files (fs.file-max).",
    errno.ENOMEM: "Free memory on this host.",
    errno.EIO: "The device failed: look into the kernel log, and replace or remount it.",
    errno.EROFS: "The file system is mounted read-only: remount it after checking the device.",
    errno.EACCES: "Give the node's user read and write permission.",
    errno.ENOENT: "The file is gone: was the data folder changed by hand?",
}
MADV_POPULATE_READ: Final = 22
"""Linux 5.14; not in the mmap module. An older kernel answers EINVAL."""
PROBE_BYTES: Final = 64 << 10
_SYNC_FILE_RANGE_WRITE: Final = 2
_sync_file_range: Final = ctypes.CDLL(None).sync_file_range  # which os does not have
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_FS_IOC_GETVERSION: Final = 0x80087601
_GENERATION: Final = struct.Struct("l")

_RETRIABLE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
_NO_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def inode_identity(fd: int) -> int:
    """Returns a number of 64 bits for a file that no copy of it has. It is made of the inode and,
    where the file system has one, the inode's generation. Never 0."""
    try:
        (generation,) = _GENERATION.unpack(fcntl.ioctl(fd, _FS_IOC_GETVERSION, bytes(8)))
    except OSError:
        generation = 0
    inode = os.fstat(fd).st_ino
    return ((generation & 0xFFFFFFFF) << 32 ^ inode) & 0xFFFFFFFFFFFFFFFF or 1


def advice(code: int) -> str:
    """Returns the meaning of an errno and a remedy, for messages; empty for 0."""
    if not code:
        return ""
    remedy = _ADVICE.get(code, "Check the data folder and its device.")
    return f": {os.strerror(code)} ({errno.errorcode.get(code, code)}). {remedy}"


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """Makes an error that the caller can act on from the kernel's error."""
    code = error.errno or 0
    return StorageError(f"cannot {action} {path}{advice(code)}", retriable=code in _RETRIABLE)


class Window(mmap.mmap):
    """A part of a file, mapped to be read: `position` is where in the file `path` it begins."""

    path = ""
    position = 0


def cut_off(path: str, size: int, wanted: int) -> StorageError:
    """The error of a file that lost bytes that were in it."""
    return StorageError(
        f"cannot read {path}: it ends at byte {size}, before byte {wanted} of the log. Something "
        "outside cut the file: restore the partition from a replica or a backup"
    )


class Storage:
    """Files of this host. One object serves a whole writer process; threads may share it."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def path_of(self, fd: int) -> str:
        """The path that an open descriptor was opened by, for messages."""
        return self._paths.get(fd, f"descriptor {fd}")

    # ---- primitives: what a test storage replaces

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        try:
            fd = os.open(path, flags, mode)
        except OSError as error:
            raise storage_error(error, "open", path) from error
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Closes a descriptor and ignores errors: a caller that needs the data on the device has
        synced it."""
        self._paths.pop(fd, None)
        with suppress(OSError):
            os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Bytes written, which may be fewer than asked (see `write_all`)."""
        try:
            return os.pwritev(fd, buffers, position)
        except OSError as error:
            raise storage_error(error, "write", self.path_of(fd)) from error

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        try:
            return os.pread(fd, length, position)
        except OSError as error:
            raise storage_error(error, "read", self.path_of(fd)) from error

    def fsync(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError as error:
            raise storage_error(error, "fsync", self.path_of(fd)) from error

    def fdatasync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise storage_error(error, "fdatasync", self.path_of(fd)) from error

    def begin_writeback(self, fd: int, position: int, length: int) -> None:
        """Have the kernel begin to write these bytes to the device, without waiting for it. Says
        nothing of how that went, and takes no error away from the fdatasync that does."""
        _sync_file_range(fd, position, length, _SYNC_FILE_RANGE_WRITE)

    def fsync_folder(self, path: str) -> None:
        """Make creations, renames and removals in a folder survive a power cut. Only where nothing
        was asked of the device yet (no free descriptor) is the error retriable."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise storage_error(error, "open the folder", path) from error
        try:
            os.fsync(fd)
        except OSError as error:
            failed = storage_error(error, "fsync the folder", path)
            failed.retriable = False
            raise failed from error
        finally:
            os.close(fd)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Grow a file by zeros that have room on the device. Does nothing where unsupported."""
        try:
            os.posix_fallocate(fd, offset, length)
        except OSError as error:
            if error.errno not in _NO_ALLOCATE:
                raise storage_error(error, "grow", self.path_of(fd)) from error

    def truncate(self, fd: int, length: int) -> None:
        """Set a file's size. Never call it on a file that a reader may have mapped (SIGBUS)."""
        try:
            os.ftruncate(fd, length)
        except OSError as error:
            raise storage_error(error, "truncate", self.path_of(fd)) from error

    def rename(self, source: str, target: str) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            raise storage_error(error, f"rename {source} to", target) from error

    def link(self, source: str, target: str) -> None:
        """A second name for a file."""
        try:
            os.link(source, target)
        except OSError as error:
            raise storage_error(error, f"link {source} as", target) from error

    def unlink(self, path: str) -> None:
        """Remove a name. A name that is not there is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(error, "remove", path) from error

    def listdir(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as error:
            raise storage_error(error, "list", path) from error

    def makedirs(self, path: str) -> None:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "create the folder", path) from error

    def size(self, fd: int) -> int:
        try:
            return os.lseek(fd, 0, os.SEEK_END)  # half of what fstat costs; nobody uses positions
        except OSError as error:
            raise storage_error(error, "stat", self.path_of(fd)) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def identity(self, fd: int) -> int:
        """A number that no copy of the file has."""
        return inode_identity(fd)

    def map_readonly(self, fd: int, length: int, position: int = 0) -> Window:
        """`length` bytes from `position` on (a multiple of the page size), mapped; they must lie
        within the file."""
        try:
            window = Window(fd, length, prot=mmap.PROT_READ, offset=position)
        except OSError as error:
            raise storage_error(error, "map", self.path_of(fd)) from error
        window.path, window.position = self.path_of(fd), position
        return window

    def populate(self, fd: int, window: Window, start: int, end: int) -> None:
        """Have bytes `start` to `end` of a window of `fd` in memory, before anybody touches them.
        Raises `StorageError` where touching them would be SIGBUS (decision 0060)."""
        page = start & -mmap.PAGESIZE
        try:
            window.madvise(MADV_POPULATE_READ, page, end - page)
        except OSError:
            self._probe(fd, window.position + page, window.position + end)

    def _probe(self, fd: int, position: int, end: int) -> None:
        """Read these bytes into memory: what the kernel says of it is the error."""
        while position < end:
            found = len(self.pread(fd, min(PROBE_BYTES, end - position), position))
            if not found:
                raise cut_off(self.path_of(fd), self.size(fd), end)
            position += found

    # ---- composed of the primitives

    def read_file(self, path: str) -> bytes | None:
        """A small file as a whole; None if there is none."""
        if not self.exists(path):
            return None
        fd = self.open(path, READ)
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def write_file(
        self, path: str, data: Buffer | Callable[[int], Buffer], *, durable: bool
    ) -> None:
        """Replace a file as one step: other processes see the old bytes or the new ones. `data`:
        they, or what makes them of the new file's descriptor.

        With `durable` the same holds across a power cut once this returned. Without it the file
        must carry a checksum, since a power cut may leave a hole in it.
        """
        temporary = path + TEMPORARY_SUFFIX
        fd = self.open(temporary, WRITE_EMPTY)
        try:
            write_all(self, fd, [data(fd) if callable(data) else data], 0)
            if durable:
                self.fsync(fd)
        except StorageError:
            self.close(fd)
            self.unlink(temporary)
            raise
        self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.fsync_folder(os.path.dirname(path))

    def write_file_atomic(self, path: str, data: Buffer) -> None:
        """`write_file` that survives a power cut."""
        self.write_file(path, data, durable=True)

    def sync_file(self, path: str) -> None:
        """fdatasync of a file that nobody holds open. A file that is gone is no error."""
        if not self.exists(path):
            return
        fd = self.open(path, READ)
        try:
            self.fdatasync(fd)
        finally:
            self.close(fd)


def write_all(storage: Storage, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write all buffers one behind the other, finishing short writes without copying; the bytes
    written. When it raises, any prefix of the bytes may be in the file."""
    start = position
    first = buffers if len(buffers) <= IOV_MAX else buffers[:IOV_MAX]
    wanted = 0
    for buffer in buffers:
        wanted += len(buffer)
    position += storage.pwritev(fd, first, position)
    if position - start < wanted:
        _finish_write(storage, fd, buffers, start, position)
    return wanted


def _finish_write(
    storage: Storage, fd: int, buffers: Sequence[Buffer], start: int, position: int
) -> None:
    """The cold rest of `write_all`: drop what is written, go on with what is left."""
    rest = [memoryview(buffer) for buffer in buffers]
    done = position - start
    while True:
        skip = 0
        while skip < len(rest) and done >= len(rest[skip]):
            done -= len(rest[skip])
            skip += 1
        del rest[:skip]
        if not rest:
            return
        if done:
            rest[0] = rest[0][done:]
        done = storage.pwritev(fd, rest[:IOV_MAX], position)
        position += done
        if not done:
            # POSIX lets a regular file answer 0 only for an empty request: do not spin on it.
            raise StorageError(
                f"cannot write {storage.path_of(fd)}: the file system takes no bytes and says no "
                "error. Check the data folder and its device."
            )


def write_zeros(storage: Storage, fd: int, start: int, end: int) -> None:
    """Overwrite a range by zeros, front to back: a batch torn by a crash in here stays torn."""
    zeros = memoryview(bytes(min(1 << 20, max(0, end - start))))
    while start < end:
        start += write_all(storage, fd, [zeros[: end - start]], start)
