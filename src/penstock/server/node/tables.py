"""The state table and the client table of a data folder, in shared memory, and owners of slots.

Made once a data folder and boot, and reused in place by the next node, so that living clients go on
(rule 10). Pages of the state table are only read here: each belongs to its writer.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable

from penstock.core.errors import ResourceLimitError, UnsupportedVersionError
from penstock.ipc import clients, shm, state
from penstock.ipc import layout as lo
from penstock.ipc.shm import Region

logger = logging.getLogger("penstock.node")

STATE_KIND = "state"
CLIENTS_KIND = "clients"


class Tables:
    """Both tables, mapped, and the descriptors that clients get of them."""

    def __init__(self, owner: str) -> None:
        uuid = bytes.fromhex(owner.partition("-")[0])
        self._names = [shm.object_name(owner, kind) for kind in (STATE_KIND, CLIENTS_KIND)]
        self.state = _open_or_make(
            self._names[0],
            lo.state_table_bytes(),
            lambda region: state.check_table(region, uuid),
            lambda region: state.format_table(region, uuid),
        )
        self.clients = _open_or_make(
            self._names[1],
            lo.client_table_bytes(),
            clients.check_table,
            clients.format_table,
        )
        self.state_fd = shm.open_existing(self._names[0], writable=False)
        self.clients_fd = shm.open_existing(self._names[1], writable=True)
        # Slots go round: one that is given back is the last to be given again, since a client that
        # was sent away, or that lives on from the run before, may still write into its old slot.
        used = [slot for slot in range(lo.CLIENTS_MAX) if self._slot(slot).in_use]
        for slot in used:
            self._slot(slot).free()
        fresh = set(range(lo.CLIENTS_MAX)).difference(used)
        self._free = deque([*sorted(fresh), *used])

    def _slot(self, slot: int) -> clients.ClientSlot:
        return clients.ClientSlot(self.clients, slot)

    def take_slot(self, pid: int, start_time: int, kind: int) -> int:
        if not self._free:
            raise ResourceLimitError(
                f"all {lo.CLIENTS_MAX} slots of the client table are taken: close clients, or "
                "start a second node for some of them"
            )
        slot = self._free.popleft()
        self._slot(slot).assign(pid, start_time, kind)
        return slot

    def give_slot_back(self, slot: int) -> None:
        self._slot(slot).free()
        self._free.append(slot)

    def page(self, page: int) -> state.StatePage:
        return state.StatePage(self.state, page)

    def is_page_free(self, page: int) -> bool:
        """Whether a page may be given to a partition: never used in this boot, or given up by its
        writer. Until then somebody may still take it for the partition that it was."""
        found = self.page(page)
        return found.identity is None or found.status == lo.STATUS_DELETED

    def unlink(self) -> None:
        """Take the names away: nobody is left who would go on with these tables."""
        for name in self._names:
            shm.unlink(name)

    def close(self) -> None:
        self.state.close()
        self.clients.close()
        for fd in (self.state_fd, self.clients_fd):
            os.close(fd)


def map_existing(name: str, *, writable: bool) -> Region | None:
    """An object made before, mapped; None when there is none, or one whose maker died before it
    had any size."""
    try:
        fd = shm.open_existing(name, writable=writable)
    except FileNotFoundError:
        return None
    size = os.fstat(fd).st_size
    if size == 0 or size % 8:
        os.close(fd)
        return None
    return Region.of_fd(fd, writable=writable)


def _open_or_make(
    name: str, size: int, check: Callable[[Region], bool], form: Callable[[Region], None]
) -> Region:
    """Returns the table `name` of this boot when it is whole, a new one otherwise.

    The caller holds the folder's lock and has refused lanes of other versions. So only idle clients
    of another version can have a table of another layout mapped; they are told when they attach.
    """
    region = map_existing(name, writable=True)
    if region is not None:
        try:
            if check(region):
                return region
            logger.warning("%s was never finished: it is made again", name, extra={"table": name})
        except UnsupportedVersionError as error:
            logger.warning("%s is made again: %s", name, error, extra={"table": name})
        region.close()
    shm.unlink(name)
    region = Region.of_fd(shm.create(name, size))
    form(region)
    return region
