"""Takes over a folder's own objects in /dev/shm at a start, and never those of a copy.

    objects of this uuid           their node lives    its folder is there    elsewhere or gone
    of this folder                 (it has the lock)   taken over
    of another folder              refused             refused                left alone, warned of
    of a version without owners    refused             taken over, and renamed, once

Owns that judgement. `penstock.ipc.ownership` knows the folder of each object.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.core.errors import DataFolderError
from penstock.ipc import layout as lo
from penstock.ipc import shm
from penstock.ipc.ownership import (
    OwnerObject,
    Ownership,
    find_owners,
    new_owner,
    old_objects,
    place_of,
)
from penstock.ipc.state import WriterSlot
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.lanes import LaneBook
from penstock.server.node.tables import STATE_KIND, map_existing

logger = logging.getLogger("penstock.node")

_ADVICE = (
    "One of the two is a copy of the other, or both are. Give this one an identity of its own: "
    "`penstock node adopt {0}`"
)


def take_objects(folder: DataFolder, config: NodeConfig) -> Ownership:
    """Hold what is this folder's, found or new. Raises `DataFolderError` where another folder of
    the same uuid is served here, or is to be."""
    own = own_objects(folder)
    _check_others(folder, own)
    old = _check_old(folder, config) if not folder.record.shm else []
    owner = own.owner if own is not None else new_owner(folder.record.uuid)
    folder.owns_objects_of(owner)
    ownership = Ownership(owner, folder.path)
    try:
        for found in find_owners(folder.record.uuid):  # started at the same time
            if found.owner != owner and found.is_held:
                raise _served(folder, found)
        for name in old:
            shm.rename(name, name.replace(folder.record.uuid, owner, 1))
    except BaseException:
        ownership.give_up()
        ownership.close()
        raise
    return ownership


def own_objects(folder: DataFolder) -> OwnerObject | None:
    """Returns the objects that this folder's last run has left."""
    place = place_of(folder.path)
    for found in find_owners(folder.record.uuid):
        if found.is_of(folder.record.shm, place):
            return found
    return None


def _check_others(folder: DataFolder, own: OwnerObject | None) -> None:
    for found in find_owners(folder.record.uuid):
        if own is not None and found.owner == own.owner:
            continue
        if found.is_held:
            raise _served(folder, found)
        names = found.objects()
        if found.is_still_there() and place_of(folder.path) != found.claim.place:
            raise DataFolderError(
                f"{folder.path} has the uuid of {found.claim.folder}, whose last run has left "
                f"{len(names)} objects in {shm.SHM_FOLDER}, with records that no log may have yet. "
                f"{_ADVICE.format(folder.path)}; or start and stop the node of the other first"
            )
        logger.warning(
            "%d objects in %s are of a folder with the uuid of %s that was at %s and is not there "
            "any more, or not the same one: not used. Where it is not to be served again, "
            "`rm %s/penstock-%s-*`",
            len(names), shm.SHM_FOLDER, folder.path, found.claim.folder or "an unknown place",
            shm.SHM_FOLDER, found.owner,
            extra={"folder": found.claim.folder},
        )  # fmt: skip


def _served(folder: DataFolder, found: OwnerObject) -> DataFolderError:
    return DataFolderError(
        f"{folder.path} has the uuid of {found.claim.folder}, which the node of pid "
        f"{found.claim.pid} serves on this host. {_ADVICE.format(folder.path)}"
    )


def _check_old(folder: DataFolder, config: NodeConfig) -> list[str]:
    """Returns the objects of a version without owners. Nothing names their folder, so none of its
    processes may live: this folder's have ended, as it is locked."""
    uuid = folder.record.uuid
    old = old_objects(uuid)
    if not old:
        return []
    if (served := _old_folder_served(uuid)) is not None:
        pid, other = served
        raise DataFolderError(
            f"{folder.path} has the uuid of {other}, which pid {pid} of an older version serves on "
            f"this host. {_ADVICE.format(folder.path)}"
        )
    leftovers = LaneBook(uuid, folder.record.boot_id, config).find_leftovers()  # may refuse them
    for leftover in leftovers:
        leftover.region.close()
    logger.info(
        "%d objects of an older version in %s are taken over under new names",
        len(old), shm.SHM_FOLDER,
    )  # fmt: skip
    return old_objects(uuid)


def _old_folder_served(uuid: str) -> tuple[int, str] | None:
    """A living writer that has the old state table, and the folder that it writes."""
    state = map_existing(shm.object_name(uuid, STATE_KIND), writable=False)
    if state is None or state.size < lo.PAGES_AT:
        return None
    with state:
        pids = [WriterSlot(state, writer).pid for writer in range(lo.WRITERS_MAX)]
    for pid in filter(None, pids):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if uuid.encode() in words and b"--data" in words[:-1]:
            return pid, os.fsdecode(words[words.index(b"--data") + 1])
    return None
