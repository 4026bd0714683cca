"""The tables and lanes of a data folder, mapped read-only, and again where they are made again."""

from __future__ import annotations

import os

from penstock.core.errors import NotConnectedError, PenstockError
from penstock.ipc import clients as client_table
from penstock.ipc import shm
from penstock.ipc import state as state_table
from penstock.ipc.lane import LaneCorruptError, LaneIdentity, read_identity
from penstock.ipc.shm import Region


class Shared:
    """All shared memory of one node. `refresh` before each look."""

    def __init__(self, owner: str) -> None:
        self._tables: list[Region] = []
        self.lanes: dict[str, tuple[LaneIdentity, Region]] = {}
        self.move(owner)

    def move(self, owner: str) -> None:
        """Maps what a run has made under another name, see `ipc.ownership`."""
        self.owner = owner
        self._uuid = bytes.fromhex(owner.partition("-")[0])
        self._names = [shm.object_name(owner, kind) for kind in ("state", "clients")]
        self._prefix = shm.object_name(owner, "lane") + "-"
        self._inodes: list[int] = []
        self.refresh()

    @property
    def state(self) -> Region:
        return self._tables[0]

    @property
    def clients(self) -> Region:
        return self._tables[1]

    def refresh(self) -> None:
        """Maps what is new, and unmaps what is gone. Raises `NotConnectedError` without tables."""
        try:
            inodes = [os.stat(shm.SHM_FOLDER + name).st_ino for name in self._names]
        except FileNotFoundError as error:
            raise NotConnectedError(
                f"{error.filename} is not there: the node has ended, or is just starting"
            ) from None
        if inodes != self._inodes:
            self._map_tables(inodes)
        names = shm.listing(self._prefix)
        for name in self.lanes.keys() - set(names):
            self.lanes.pop(name)[1].close()
        for name in names:
            if name not in self.lanes:
                self._map_lane(name)

    def _map_tables(self, inodes: list[int]) -> None:
        for region in self._tables:
            region.close()
        self._tables = [_map(name) for name in self._names]
        whole = state_table.check_table(self.state, self._uuid)
        if not (whole and client_table.check_table(self.clients)):
            raise NotConnectedError(f"{self._names[0]} is not finished: the node is just starting")
        self._inodes = inodes

    def _map_lane(self, name: str) -> None:
        """Maps a lane. One that was never finished, or that went in this moment, is none."""
        try:
            region = _map(name)
        except (OSError, ValueError):
            return
        try:
            identity = read_identity(region)
        except LaneCorruptError:
            identity = None
        except PenstockError:
            region.close()
            raise
        if identity is None:
            region.close()
        else:
            self.lanes[name] = identity, region

    def regions(self) -> list[Region]:
        """Returns all mapped regions."""
        return [*self._tables, *(region for _, region in self.lanes.values())]

    def close(self) -> None:
        for region in self.regions():
            region.close()
        self._tables.clear()
        self.lanes.clear()


def _map(name: str) -> Region:
    return Region.of_fd(shm.open_existing(name, writable=False), writable=False)
