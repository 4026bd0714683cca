"""The lanes of a data folder: made, found again after a node died, and unlinked when drained.

A lane is unlinked here and nowhere else, and only when head == tail and its producer is gone
(rule 5). Owns the named memory; writes nothing in it but the identity of a new lane. Which process
a producer is, and what a writer is told, is decided elsewhere.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from penstock.core.errors import ConfigError, ResourceLimitError
from penstock.ipc import layout as lo
from penstock.ipc import shm
from penstock.ipc.lane import (
    LANE_KIND,
    LaneCorruptError,
    LaneIdentity,
    format_lane,
    read_identity,
    undrained,
)
from penstock.ipc.shm import Region
from penstock.server.config import NodeConfig
from penstock.server.node.tables import map_existing

logger = logging.getLogger("penstock.node")


@dataclass(slots=True, eq=False)
class Lane:
    """A lane of this folder. `retired`: its producer is dead or closed, its writer drains it.
    `owner`: the principal of its batches, as far as this run knows (see `attached_client`)."""

    name: str
    identity: LaneIdentity
    owner: tuple[int, int] = (0, 0)
    retired: bool = False
    namespace: str = ""
    """That of the principal it was opened for, if that has one."""

    @property
    def writer(self) -> int:
        return self.identity.writer


@dataclass(slots=True)
class Leftover:
    """A lane of the run before, mapped until what it held then is drained."""

    lane: Lane
    region: Region
    tail: int = field(init=False)

    def __post_init__(self) -> None:
        self.tail = int(self.region.q[lo.Q_LANE_TAIL])

    @property
    def bytes_left(self) -> int:
        """The bytes that were there at the start and are not drained yet; a living producer adds
        more."""
        return max(0, self.tail - int(self.region.q[lo.Q_LANE_HEAD]))


def boot_hash(boot_id: str) -> int:
    """The first half of the boot id, as lanes carry it."""
    return int(boot_id.replace("-", "")[:16], 16)


class LaneBook:
    """All lanes by name."""

    def __init__(self, owner: str, boot_id: str, config: NodeConfig) -> None:
        self._owner = owner
        self.boot_hash = boot_hash(boot_id)
        self._config = config
        self.lanes: dict[str, Lane] = {}

    # --- the run before ---
    def find_leftovers(self) -> list[Leftover]:
        """Every finished lane in shared memory; half-made ones are removed.

        Raises `UnsupportedVersionError` for a lane that another version must drain.
        """
        found: list[Leftover] = []
        prefix = shm.object_name(self._owner, LANE_KIND) + "-"
        for name in shm.listing(prefix):
            region = map_existing(name, writable=False)
            try:
                identity = None if region is None else read_identity(region)
            except LaneCorruptError as error:
                logger.error(
                    "%s is removed, nothing can be drained from it: %s",
                    name,
                    error,
                    extra={"lane": name},
                )
                identity = None
            if region is not None and identity is not None:
                owner = identity.pid, identity.start_time
                found.append(Leftover(Lane(name, identity, owner), region))
                continue
            if region is not None:
                region.close()
            shm.unlink(name)
        return found

    def adopt(self, lane: Lane) -> None:
        """Take a lane of the run before into the book."""
        self.lanes[lane.name] = lane

    # --- this run ---
    def make(
        self,
        writer: int,
        capacity: int | None,
        producer_id: int,
        pid: int,
        start_time: int,
        owner: tuple[int, int] | None = None,
    ) -> tuple[Lane, int]:
        """A new lane and the descriptor of its memory, which is the caller's."""
        if len(self.lanes) >= self._config.lanes_max:
            raise ResourceLimitError(
                f"the node has {len(self.lanes)} lanes, its bound lanes_max: close producers, or "
                "start the node with a larger one (each takes its capacity of shared memory)"
            )
        capacity = self._capacity(capacity)
        identity = LaneIdentity(capacity, producer_id, 0, writer, pid, start_time, self.boot_hash)
        name, fd = self._create(writer, producer_id, lo.lane_bytes(capacity))
        try:
            region = Region.of_fd(os.dup(fd))
            format_lane(region, identity)
            region.close()
        except BaseException:
            os.close(fd)
            shm.unlink(name)
            raise
        lane = self.lanes[name] = Lane(name, identity, owner or (pid, start_time))
        return lane, fd

    def _create(self, writer: int, producer_id: int, size: int) -> tuple[str, int]:
        # A number at random is not given twice, so no report about an older lane can mean this one,
        # and nobody can take the name before.
        number = int.from_bytes(os.urandom(8), "little")
        name = shm.object_name(self._owner, LANE_KIND, producer_id, writer, number)
        return name, shm.create(name, size)

    def _capacity(self, asked: int | None) -> int:
        most = self._config.lane_capacity
        if asked is None:
            return most
        if not lo.LANE_CAPACITY_MIN <= asked <= most or asked % 4096:
            raise ConfigError(
                f"lane capacity is {asked}: allowed are multiples of 4096 in "
                f"{lo.LANE_CAPACITY_MIN}..{most} (the node's lane_capacity)"
            )
        return asked

    def open_memory(self, lane: Lane) -> int:
        """A descriptor of a lane's memory, which is the caller's."""
        return shm.open_existing(lane.name, writable=True)

    def bytes_left(self, lane: Lane) -> int:
        """Bytes between head and tail now; 0 when the memory is gone."""
        try:
            region = Region.of_fd(shm.open_existing(lane.name, writable=False), writable=False)
        except FileNotFoundError:
            return 0
        try:
            return undrained(region)
        finally:
            region.close()

    def is_closed(self, lane: Lane) -> bool:
        """Whether its producer wrote that it is done with it."""
        region = map_existing(lane.name, writable=False)
        if region is None:
            return True
        with region:
            return bool(region.q[lo.Q_LANE_STATE] == lo.LANE_CLOSED)

    def remove(self, lane: Lane) -> None:
        """Unlinks the lane. A process that has it mapped keeps the memory until it unmaps."""
        self.lanes.pop(lane.name, None)
        shm.unlink(lane.name)
