"""Takes over the state of the last run before a node serves: the folder, the tables, and the lanes.

Owns the order of a start (rule 5): lock, identity, lanes of a readable version, number of writers,
tables. Each step either succeeds or leaves a message that says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import Final

from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.liveness import boot_id
from penstock.ipc.ownership import Ownership
from penstock.server.config import NodeConfig, check_listen
from penstock.server.node.data_folder import DataFolder, FolderLock, make_folder
from penstock.server.node.lanes import LaneBook, Leftover
from penstock.server.node.partitions import Partitions
from penstock.server.node.shared_memory import take_objects
from penstock.server.node.tables import Tables
from penstock.server.node.topic_catalog import Catalog
from penstock.server.security.access_store import Access
from penstock.server.security.exposure import check_brokers, check_exposure

logger = logging.getLogger("penstock.node")

LOCK_POLL: Final = 0.02
DRAIN_POLL: Final = 0.005


@dataclass(slots=True)
class Ground:
    """The parts that a node is built on."""

    lock: FolderLock
    folder: DataFolder
    catalog: Catalog
    tables: Tables
    book: LaneBook
    leftovers: list[Leftover]
    writers: int
    access: Access
    ownership: Ownership

    def close(self) -> None:
        """Before the lock, which is the node's, is given back."""
        self.folder.clock.end()
        self.tables.close()
        self.ownership.close()

    def unlink(self) -> None:
        """Take the names in shared memory away: nobody is left who would go on with them."""
        self.tables.unlink()
        self.ownership.give_up()


async def acquire_lock(config: NodeConfig, stop: asyncio.Event) -> FolderLock | None:
    """The folder's lock, waited for: writers of a killed node finish their pass first (rule 9).

    None when `stop` was asked for in the meantime.
    """
    lock = FolderLock(make_folder(config.data_folder))
    deadline = time.monotonic() + config.lock_timeout
    try:
        while not lock.try_acquire():
            if stop.is_set():
                lock.close()
                return None
            if time.monotonic() >= deadline:
                raise lock.refusal(config.lock_timeout)
            await asyncio.sleep(LOCK_POLL)
    except BaseException:
        lock.close()
        raise
    return lock


def take_over(config: NodeConfig, lock: FolderLock) -> Ground:
    """Everything under the lock, up to the first write that says a run has begun."""
    boot = boot_id()
    folder = DataFolder.open(config.data_folder, boot, Storage())
    catalog = Catalog.open(config.data_folder, folder.storage)
    folder.check_broker(config.node_id or 0, has_topics=bool(catalog.topics))
    access = Access(config.data_folder, folder.storage)
    if config.listen is not None:
        host, _ = check_listen(config.listen)
        check_exposure(host, keys=access.keys.in_use, insecure=config.insecure)
    if config.node_id is not None and config.cluster_key is None and not config.insecure:
        check_brokers(keys=access.keys.in_use)
    if folder.was_copied:
        _tell_copied(folder)
    ownership = take_objects(folder, config)
    try:
        book = LaneBook(ownership.owner, boot, config)
        leftovers = book.find_leftovers()
        writers = _number_of_writers(config, folder, leftovers)
        leftovers = _drainable(book, leftovers, writers)
        folder.begin(boot, writers, config.node_id or 0)
        folder.clock.begin()
        tables = Tables(ownership.owner)
    except BaseException:
        ownership.give_up()
        ownership.close()
        raise
    return Ground(lock, folder, catalog, tables, book, leftovers, writers, access, ownership)


def _tell_copied(folder: DataFolder) -> None:
    """Warns of a copied folder and syncs it: its data may be on no device yet, and its recovery
    points say that it is."""
    logger.warning(
        "%s is not the folder of its last run: it was copied, brought back from a backup or moved "
        "to another file system. Nothing that run left in /dev/shm is taken over, and logs begin a "
        "new leader epoch%s",
        folder.path,
        "" if folder.was_clean else "; that run was not over when it was copied: look at it by "
        "`penstock log verify`",
        extra={"folder": folder.path},
    )  # fmt: skip
    os.sync()


def _number_of_writers(config: NodeConfig, folder: DataFolder, leftovers: list[Leftover]) -> int:
    """Lanes are bound to a writer, and page % writers is the writer of a partition (rule 6)."""
    before = folder.record.writers
    if not leftovers or not before or before == config.writers:
        return config.writers
    logger.warning(
        "%d lanes of the run before are bound to its %d writers: this run has %d and not %d; "
        "restart the node when their producers have left",
        len(leftovers), before, before, config.writers,
    )  # fmt: skip
    return before


def _drainable(book: LaneBook, leftovers: list[Leftover], writers: int) -> list[Leftover]:
    good = [leftover for leftover in leftovers if leftover.lane.writer < writers]
    for leftover in leftovers:
        if leftover.lane.writer >= writers:
            logger.error(
                "%s is removed with %d bytes in it: it names writer %d of %d",
                leftover.lane.name, leftover.bytes_left, leftover.lane.writer, writers,
                extra={"lane": leftover.lane.name, "bytes": leftover.bytes_left},
            )  # fmt: skip
            leftover.region.close()
            book.remove(leftover.lane)
    return good


async def settle(
    ground: Ground, partitions: Partitions, timeout: float, stop: asyncio.Event
) -> None:
    """Wait until what the lanes held at the start is in the logs and every partition is open.

    Only then do pages tell the truth and may clients be admitted. Bounded: a full disk must not
    keep readers out.
    """
    deadline = time.monotonic() + timeout
    while not stop.is_set():
        left = [leftover for leftover in ground.leftovers if leftover.bytes_left]
        opening = partitions.opening()
        if not left and not opening:
            break
        if time.monotonic() >= deadline:
            for leftover in left:
                logger.warning(
                    "%s is not drained after %g s (drain_timeout), %d bytes are left: clients are "
                    "admitted, draining goes on; %s",
                    leftover.lane.name, timeout, leftover.bytes_left,
                    (reason := _why(ground, partitions, leftover.lane.writer)),
                    extra={"lane": leftover.lane.name, "reason": reason},
                )  # fmt: skip
            if opening:
                logger.warning(
                    "%d partitions are not open after %g s (drain_timeout): clients are admitted; "
                    "the first is %s", len(opening), timeout, opening[0],
                )  # fmt: skip
            break
        await asyncio.sleep(DRAIN_POLL)
    for leftover in ground.leftovers:
        leftover.region.close()
    ground.leftovers.clear()


def _why(ground: Ground, partitions: Partitions, writer: int) -> str:
    """Returns the reason why a writer does not drain: its partitions that are not plainly
    online."""
    ill = []
    for page, partition in partitions.live.items():
        if partitions.writer_of(page) == writer:
            status = ground.tables.page(page).status
            if partition.failure is not None:
                ill.append(f"{partition} is offline ({partition.failure})")
            elif not partition.is_open:
                ill.append(f"{partition} is being opened")
            elif status != lo.STATUS_ONLINE:
                ill.append(f"{partition} is {lo.STATUS_NAMES.get(status, status)}")
    return ", ".join(ill[:5]) if ill else f"all partitions of writer {writer} are online"
