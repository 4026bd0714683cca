"""A copy of a data folder becomes a node of its own: what changes in it, and what refuses that.

    uuid                  new; its first 24 bits, which producer ids begin with, are other ones
    shm, place, listen    empty: nothing in /dev/shm and no address is its own yet
    resume-secret         removed: producers elsewhere that know the original come as new ones

Topics, records, groups, transactions, access and keys stay. Leader epochs change by themselves: a
log that was copied begins one when it is opened.

Owns that list. The folder is locked meanwhile, so no node runs on it.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from penstock.core.errors import DataFolderError
from penstock.core.storage import Storage
from penstock.ipc.liveness import boot_id
from penstock.server.gateway.tokens import SECRET_FILE
from penstock.server.node.data_folder import NODE_FILE, DataFolder, FolderLock
from penstock.server.node.shared_memory import own_objects


class Adoption(NamedTuple):
    """The result of an adoption, or of its dry run. `had_secret`: remote producers may have resumed
    here."""

    folder: str
    before: str
    uuid: str
    had_secret: bool


def adopt(path: str, *, dry_run: bool = False) -> Adoption:
    """Give the data folder `path` an identity of its own. Raises `DataFolderError` where a node
    serves it, where it is a broker's, and where its own last run left records in /dev/shm."""
    folder = os.path.abspath(path)
    if not os.path.isfile(os.path.join(folder, NODE_FILE)):
        raise DataFolderError(f"{folder} has no {NODE_FILE}: it is no data folder of a node")
    with closing(FolderLock(folder)) as lock:
        if not lock.try_acquire():
            raise lock.refusal(0.0)
        data = DataFolder.open(folder, boot_id(), Storage())
        _check(data)
        before = data.record.uuid
        secret = os.path.join(folder, SECRET_FILE)
        found = Adoption(folder, before, _another_uuid(before), os.path.exists(secret))
        if not dry_run:
            data.storage.unlink(secret)  # first: without a new uuid this only costs new ids
            data.storage.fsync_folder(folder)
            data.becomes(found.uuid)
        return found


def _check(data: DataFolder) -> None:
    record = data.record
    if record.node_id or record.cluster:
        raise DataFolderError(
            f"{data.path} is the folder of broker {record.node_id}, whose records and number its "
            "cluster knows: a copy of it can be no node of its own. Start a broker with another "
            "number on an empty folder, and the others fill it"
        )
    if (own := own_objects(data)) is not None:
        raise DataFolderError(
            f"{data.path} is no copy: its own last run has left {len(own.objects())} objects in "
            "/dev/shm, with records that no log may have yet. Start its node and stop it cleanly "
            "(and its producers), then try again"
        )


def _another_uuid(before: str) -> str:
    while True:
        found = os.urandom(16).hex()
        if found[:6] != before[:6]:
            return found
