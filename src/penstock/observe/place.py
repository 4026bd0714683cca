"""Finds the data folder that a URL means, and the process that serves it, without asking
the node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.core.errors import AttachRefusedError, ConfigError, NotConnectedError
from penstock.ipc.liveness import boot_id
from penstock.ipc.paths import default_data_folder, folder_of, parse_url

_START_ONE = "start one with `penstock serve`, or name a running one by shm://NAME or shm:///FOLDER"


class _Record(msgspec.Struct):
    """The fields of node.json that are read."""

    uuid: str
    boot_id: str
    writers: int
    shm: str = ""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A data folder on which a node runs."""

    folder: Path
    owner: str
    """The prefix of its objects' names in /dev/shm."""
    pid: int
    writers: int
    """Page p of the state table belongs to writer p % writers."""


def folder_for(url: str) -> Path:
    """Returns the data folder that a `shm://` URL means. Raises `ConfigError` for other URLs."""
    target = parse_url(url)
    if target.scheme != "shm":
        raise ConfigError(
            f"{url!r} is no node of this host, and only its own host sees the shared memory of a "
            "node: use shm://, shm://NAME or shm:///DATA/FOLDER there"
        )
    if target.folder is not None:
        return target.folder
    name = target.name or "default"
    return folder_of(name) or default_data_folder(name)


def find_node(url: str) -> NodePlace:
    """Finds the node that runs there.

    Raises `NotConnectedError` when none does, `AttachRefusedError` when it is another user's.
    """
    folder = folder_for(url)
    record = _record(url, folder)
    if record.boot_id != boot_id():
        raise NotConnectedError(
            f"no node has served {folder} ({url}) since this host booted: {_START_ONE}"
        )
    pid = lock_holder(folder)
    if pid is None:
        raise NotConnectedError(
            f"no node runs on {folder} ({url}), or none whose process is seen from here (a "
            f"container of its own): {_START_ONE}"
        )
    return NodePlace(folder, record.shm or record.uuid, pid, record.writers)


def _record(url: str, folder: Path) -> _Record:
    try:
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise AttachRefusedError(
                f"the node on {folder} ({url}) belongs to uid {owner}, not to uid {os.geteuid()}: "
                "only its own user sees its shared memory; run this as that user"
            )
        return msgspec.json.decode((folder / "node.json").read_bytes(), type=_Record)
    except FileNotFoundError:
        raise NotConnectedError(f"no node runs on {folder} ({url}): {_START_ONE}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotConnectedError(f"{folder}/node.json ({url}) cannot be read: {error}") from error


def lock_holder(folder: Path) -> int | None:
    """Returns the pid of the node that holds the folder's lock; None when that process is gone.

    The number alone could be another process's by now, so the process must have the file open.
    """
    path = folder.resolve() / "lock"
    try:
        pid = int(path.read_text("ascii"))
        wanted = path.stat()
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found = os.stat(entry.path)
            except OSError:  # closed in the meantime
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return pid
    except (OSError, ValueError):
        pass
    return None
