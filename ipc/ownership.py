"""Records the data folder that owns a node's objects in /dev/shm.

All names of a run begin with the folder's uuid and a random part. node.json has that part as `shm`
before any object is made. A copy of the folder has the same node.json, so the name proves nothing.
No copy has the folder's place on its device:

    /penstock-<uuid>-<random>-owner     JSON, one for each random part, made first, unlinked last
        folder, place                   where the folder was, and its `place_of`
        pid                             of the node; it holds a flock on the object while it lives

Objects are a folder's own where node.json names them and `place` is where that node.json lies. A
start on the folder takes these over. It never maps and never unlinks those of another one.

Owns the owner objects and that judgement. Knows nothing of the contents of other objects.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.core.errors import DataFolderError
from penstock.core.storage import inode_identity
from penstock.ipc import shm

OWNER_KIND: Final = "owner"
OWNER_BYTES: Final = 8192
LOCK_FILE: Final = "lock"


class OwnerRecord(msgspec.Struct, frozen=True):
    """The contents of an owner object."""

    folder: str
    place: str
    pid: int


@dataclass(frozen=True, slots=True)
class OwnerObject:
    """An owner object in /dev/shm. `is_held`: its node lives."""

    owner: str
    claim: OwnerRecord
    is_held: bool

    def is_of(self, owner: str, place: str) -> bool:
        """Whether it is the one of a folder that lies there, whose node.json names `owner`. Where
        its maker died before it said anything, nothing else was made."""
        is_empty = not self.claim.place and not self.is_held
        return self.owner == owner and (is_empty or self.claim.place == place)

    def is_still_there(self) -> bool:
        """Whether the folder that made it lies where it lay."""
        return place_of(self.claim.folder) == self.claim.place

    def objects(self) -> list[str]:
        """The names of all that it has."""
        return shm.listing(shm.object_name(self.owner, "x").removesuffix("x"))


def place_of(folder: str) -> str:
    """Where a data folder is, which no copy of it can share: device and inode of the folder, inode
    and generation of its lock file. Empty where there is none.

    Inodes alone are given again: a folder that is removed and copied back often has the one that it
    had. The generation tells these apart where the file system has one (ext4, XFS, Btrfs).
    """
    try:
        found = os.stat(folder)
        fd = os.open(os.path.join(folder, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return f"{found.st_dev:x}:{found.st_ino:x}:{inode_identity(fd):x}"
    finally:
        os.close(fd)


def is_same_place(place: str, other: str, *, same_boot: bool) -> bool:
    """Whether both name one folder. Numbers of devices may change with a boot."""
    return place == other or (not same_boot and place.split(":")[1:] == other.split(":")[1:])


def new_owner(uuid_hex: str) -> str:
    """A name for what a run makes that nobody can foretell."""
    return f"{uuid_hex}-{os.urandom(8).hex()}"


def find_owners(uuid_hex: str = "") -> list[OwnerObject]:
    """All owner objects of folders with that uuid, or of all folders, of this user."""
    found = []
    prefix = shm.object_name(uuid_hex, "x").removesuffix("x") if uuid_hex else "/penstock-"
    for name in shm.listing(prefix):
        owner, _, kind = name.removeprefix("/penstock-").rpartition("-")
        if kind == OWNER_KIND and (one := _look(name, owner)) is not None:
            found.append(one)
    return found


def old_objects(uuid_hex: str) -> list[str]:
    """Returns the objects of a version before this one, whose names had no random part."""
    return [
        name
        for kind in ("clients", "lane-", "state")
        for name in shm.listing(f"/penstock-{uuid_hex}-{kind}")
    ]


def unlink_own(folder: str) -> None:
    """Unlinks the objects that a folder's last run has left, after its node has ended. It leaves
    those of a copy of the folder, and of the folder that it is a copy of."""
    try:
        with open(os.path.join(folder, "node.json"), "rb") as file:
            record = msgspec.json.decode(file.read(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return
    for found in find_owners(record.uuid):
        if found.is_of(record.shm, place_of(folder)):
            shm.unlink_all(found.owner)


class _Record(msgspec.Struct):
    """The wanted fields of node.json."""

    uuid: str
    shm: str = ""


def _look(name: str, owner: str) -> OwnerObject | None:
    try:
        fd = shm.open_existing(name, writable=False)
    except FileNotFoundError:
        return None
    try:
        claim = msgspec.json.decode(os.pread(fd, OWNER_BYTES, 0).rstrip(b"\0"), type=OwnerRecord)
    except msgspec.MsgspecError:
        claim = OwnerRecord("", "", 0)  # its maker died, or is about to write it
    try:
        return OwnerObject(owner, claim, not _lock(fd, fcntl.LOCK_SH))
    finally:
        os.close(fd)


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Ownership:
    """A run's hold on its objects: as long as this process lives, others see it held."""

    def __init__(self, owner: str, folder: str) -> None:
        self.owner = owner
        self._name = shm.object_name(owner, OWNER_KIND)
        try:
            self._fd = shm.open_existing(self._name, writable=True)
        except FileNotFoundError:
            self._fd = shm.create(self._name, OWNER_BYTES)
        try:
            if not _lock(self._fd, fcntl.LOCK_EX):
                raise DataFolderError(f"{self._name} in {shm.SHM_FOLDER} is held by another node")
            claim = msgspec.json.encode(
                OwnerRecord(os.path.realpath(folder), place_of(folder), os.getpid())
            )
            os.pwrite(self._fd, claim.ljust(OWNER_BYTES, b"\0"), 0)
        except BaseException:
            os.close(self._fd)
            raise

    def give_up(self) -> None:
        """Takes its name away, where nothing else is left that it could own."""
        if shm.listing(shm.object_name(self.owner, "x").removesuffix("x")) == [self._name]:
            shm.unlink(self._name)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
