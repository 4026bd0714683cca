"""Named POSIX shared memory: names, creation with the room really there, mapping, unlinking.

Owns how an object in /dev/shm comes to be and goes. Knows nothing of what lies inside one. Never
uses `multiprocessing.shared_memory`, which on 3.11 unlinks a segment when a process that only
attached to it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import resource
import stat
import sys

import posix_ipc

from penstock.core.errors import AttachRefusedError, ClosedError, ConfigError, ResourceLimitError
from penstock.ipc.liveness import descriptor_limit_error
from penstock.ipc.machine import check_machine

SHM_FOLDER = "/dev/shm"
NAME_MAX = 255  # bytes of a name after its slash, as in any folder

_OWNER = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16})?")
_PART = re.compile(r"[A-Za-z0-9._]+(-[A-Za-z0-9._]+)*")
_RELEASED = memoryview(b"")
_RELEASED.release()


def object_name(owner: str, kind: str, *parts: str | int) -> str:
    """`/penstock-<owner>-<kind>-<part>...`. `owner`: a data folder's uuid, and the random part that
    `ownership` gave it."""
    if not _OWNER.fullmatch(owner):
        raise ConfigError(
            f"{owner!r} is not the uuid of a node, 32 lower-case hexadecimal digits, and 16 more"
        )
    words = [kind, *map(str, parts)]
    for word in words:
        if not _PART.fullmatch(word):
            raise ConfigError(
                f"{word!r} cannot be part of a shared memory name: use [A-Za-z0-9._-]"
            )
    name = "-".join(["/penstock", owner, *words])
    if len(name) - 1 > NAME_MAX:
        raise ConfigError(
            f"shared memory name of {len(name) - 1} bytes is over NAME_MAX {NAME_MAX}: {name}"
        )
    return name


def create(name: str, size: int) -> int:
    """Makes the object `name` of `size` bytes, all of them allocated; returns its descriptor.

    Without the allocation a full /dev/shm would kill the process that touches the page first by
    SIGBUS. On any failure nothing is left behind. FileExistsError when the name is taken.
    """
    if size <= 0:
        raise ConfigError(f"shared memory {name} needs a size above 0, not {size}")
    fd = _open(name, posix_ipc.O_CREX, read_only=False)
    try:
        os.posix_fallocate(fd, 0, size)
    except BaseException as error:
        os.close(fd)
        unlink(name)
        if isinstance(error, OSError):
            raise _no_room(name, size, error) from error
        raise
    return fd


def _no_room(name: str, size: int, error: OSError) -> Exception:
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return ResourceLimitError(
            f"cannot create shared memory {name} of {size} bytes: RLIMIT_FSIZE is {limit}. "
            "Raise it with `ulimit -f`"
        )
    if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
        room = os.statvfs(SHM_FOLDER)
        return ResourceLimitError(
            f"{SHM_FOLDER} has no room for {name}: {size} bytes wanted, "
            f"{room.f_bavail * room.f_frsize} free. Enlarge it (`mount -o remount,size=2G "
            f"{SHM_FOLDER}`, or `--shm-size` for a container), remove what others left in it, "
            "or ask for fewer or smaller lanes"
        )
    return error


def open_existing(name: str, writable: bool) -> int:
    """The descriptor of an object made before. FileNotFoundError when there is none.

    An object of another user is refused: on this trust boundary (the uid) it can only be a trap.
    """
    try:
        found = os.lstat(SHM_FOLDER + name)  # in this folder nobody else can replace what is ours
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such shared memory", name) from error
    if not _is_own(found):
        raise _trap(name, found)
    return _open(name, 0, read_only=not writable)


def _trap(name: str, found: os.stat_result) -> AttachRefusedError:
    """Returns the error for an object under a name of ours that this user's nodes did not make."""
    kind = "no shared memory object"
    if stat.S_ISLNK(found.st_mode):
        kind = "a symbolic link"
    elif stat.S_ISREG(found.st_mode):
        kind = "another user's"
    path = f"{SHM_FOLDER}{name}"
    return AttachRefusedError(
        f"{path} is {kind}: made by uid {found.st_uid}, and this is uid {os.geteuid()}. No node of "
        f"this user made it, and it is not used: remove it (`rm {path}`, as root where it is "
        "another user's), and look who put it there"
    )


def _open(name: str, flags: int, *, read_only: bool) -> int:
    check_machine()
    try:
        # Size 0: posix_ipc shall not ftruncate, which would promise pages that are not there.
        shared = posix_ipc.SharedMemory(name, flags, mode=0o600, size=0, read_only=read_only)
    except posix_ipc.ExistentialError as error:
        if flags & posix_ipc.O_CREAT:
            raise FileExistsError(errno.EEXIST, "shared memory exists already", name) from error
        raise FileNotFoundError(errno.ENOENT, "no such shared memory", name) from error
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory of another user", name) from error
    except OSError as error:
        # posix_ipc gives no errno for the two descriptor limits, and one for everything else.
        if error.errno in (None, errno.EMFILE, errno.ENFILE):
            raise descriptor_limit_error(f"opening shared memory {name}") from error
        raise
    return int(shared.fd)


def unlink(name: str) -> bool:
    """Takes the name away; mappings stay valid. False when it was gone already."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        return False
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory of another user", name) from error
    return True


def listing(prefix: str) -> list[str]:
    """Returns this user's objects whose names begin with `prefix`, sorted. Each has its slash, as
    `unlink` takes it. Objects of other users under such a name are not among them."""
    bare = prefix.removeprefix("/")
    try:
        with os.scandir(SHM_FOLDER) as entries:
            return sorted(
                "/" + entry.name
                for entry in entries
                if entry.name.startswith(bare) and _is_own_entry(entry)
            )
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise descriptor_limit_error(f"listing {SHM_FOLDER}") from error
        raise


def _is_own_entry(entry: os.DirEntry[str]) -> bool:
    try:
        return _is_own(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_own(found: os.stat_result) -> bool:
    """Whether a node of this user can have made it."""
    return found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)


def rename(name: str, to: str) -> None:
    """Gives an object another name; mappings stay valid."""
    os.rename(SHM_FOLDER + name, SHM_FOLDER + to)


def unlink_all(owner: str) -> None:
    """Takes away the names of everything that a node had."""
    for name in listing(object_name(owner, "x").removesuffix("x")):
        unlink(name)


def map_fd(fd: int, *, writable: bool = True) -> mmap.mmap:
    """Maps all bytes of `fd`, shared. The caller may close `fd` afterwards."""
    wanted = os.fstat(fd).st_size
    if wanted <= 0:
        raise ValueError(f"cannot map {wanted} bytes")
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    try:
        if sys.version_info >= (3, 13):
            return mmap.mmap(fd, wanted, access=access, trackfd=False)
        return mmap.mmap(
            fd, wanted, access=access
        )  # before 3.13 it holds a duplicate of the descriptor
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise descriptor_limit_error("mapping shared memory") from error
        if error.errno == errno.ENOMEM:
            raise ResourceLimitError(
                f"cannot map {wanted} bytes: the process has too many mappings "
                "(`sysctl vm.max_map_count`) or too little address space (`ulimit -v`)"
            ) from error
        raise


class Region:
    """Owner of one mapping and of its two views: `q` (aligned u64 elements) and `bytes`.

    Shared cursors are written through `q` only, because one aligned element is one store.
    `struct.pack_into` zeroes the bytes first, and another process can see that. After `close` both
    views refuse every use.
    """

    __slots__ = ("_map", "bytes", "q", "size")

    bytes: memoryview
    q: memoryview

    def __init__(self, mapping: mmap.mmap) -> None:
        self.size = len(mapping)
        if self.size % 8:
            raise ValueError(f"a region of {self.size} bytes is not a multiple of 8")
        self._map: mmap.mmap | None = mapping
        self.bytes = memoryview(mapping)
        self.q = self.bytes.cast("Q")

    @classmethod
    def of_fd(cls, fd: int, *, writable: bool = True) -> Region:
        """Map `fd` and close it, also on failure: the region is all that is needed from here on."""
        try:
            return cls(map_fd(fd, writable=writable))
        finally:
            os.close(fd)

    @property
    def mapping(self) -> mmap.mmap:
        if self._map is None:
            raise ClosedError("this shared memory region is closed")
        return self._map

    @property
    def closed(self) -> bool:
        return self._map is None

    def close(self) -> bool:
        """Unmap. False while slices or arrays of it are held: it goes with the last of them."""
        mapping, self._map = self._map, None
        if mapping is None:
            return True
        views = (self.q, self.bytes)
        self.q = self.bytes = _RELEASED
        try:
            for view in views:
                view.release()
            mapping.close()
        except BufferError:  # exported: dropping our references is all that is safe
            return False
        return True

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
