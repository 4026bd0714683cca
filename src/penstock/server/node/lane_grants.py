"""The owner of each lane, and the orders to writers about lanes.

    open --its producer dead or closed--> retired --LaneDrained, head == tail--> unlinked
      ^---------- resumed in time -----------'
    any --LaneDropped--> unlinked, its client sent away

Joins the lanes of the folder with clients and writers. Never looks into a frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

from penstock.core.errors import ConfigError, PenstockError, PenstockTimeout
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.server.node.attached_client import (
    HAVE_LANES,
    KINDS,
    REMOTE_PID,
    AttachedClient,
    Owner,
)
from penstock.server.node.lanes import Lane, LaneBook
from penstock.server.process.writer import Order
from penstock.server.process.writers import Supervisor

logger = logging.getLogger("penstock.node")

LOOK_AGAIN: Final = 1.0
"""Seconds until a drained lane that could not be looked at is looked at again."""


class Grants:
    """The lanes of the book with their owners; a lane without one is retired."""

    def __init__(
        self,
        book: LaneBook,
        supervisor: Supervisor,
        on_gone: Callable[[Lane], None] = lambda _: None,
        namespace_of: Callable[[AttachedClient], str] = lambda _: "",
    ) -> None:
        self._book = book
        self._supervisor = supervisor
        self._on_gone = on_gone
        self._namespace_of = namespace_of
        self._loop = asyncio.get_running_loop()
        self._owners: dict[str, AttachedClient] = {}
        self._awaited: set[asyncio.Future[None]] = set()

    def orders_for(self, writer: int) -> Iterator[Order]:
        """Everything about lanes that a fresh writer must know."""
        for lane in self._book.lanes.values():
            if lane.writer == writer:
                owner = self._owners.get(lane.name)
                yield _added(lane, dead=owner is None), None if owner is None else owner.doorbell

    def adopt(self, lane: Lane, client: AttachedClient | None) -> None:
        """Take up a lane of the run before; no writer is told yet. No client: it is retired."""
        self._book.adopt(lane)
        lane.retired = client is None
        if client is not None:
            self._own(client, lane)

    def _own(self, client: AttachedClient, lane: Lane) -> None:
        client.lanes[lane.writer] = lane
        self._owners[lane.name] = client

    def open(self, client: AttachedClient, request: ms.OpenLane, writers: int) -> tuple[Lane, int]:
        """The client's lane to that writer, made if need be, and a descriptor of its memory."""
        if client.kind not in HAVE_LANES:
            raise ConfigError(f"only a producer has lanes, and this is {KINDS[client.kind]!r}")
        if not 0 <= request.writer < writers:
            raise ConfigError(f"writer {request.writer} is outside 0..{writers - 1}")
        lane = client.lanes.get(request.writer)
        if lane is not None:
            return lane, self._book.open_memory(lane)
        pid, start_time = client.pid, client.start_time
        if client.remote is not None:  # the gateway's death is not that of its clients
            pid = start_time = REMOTE_PID
        lane, fd = self._book.make(
            request.writer, request.capacity, client.producer_id, pid, start_time, client.owner
        )
        lane.namespace = self._namespace_of(client)
        self._own(client, lane)
        self._supervisor.post(lane.writer, _added(lane, dead=False), client.doorbell)
        return lane, fd

    async def drained_before(self, client: AttachedClient, writer: int, timeout: float) -> None:
        """Waits until old lanes of the client's producer id to that writer are gone, from an
        earlier connection. Their frames come first (rule 5), and no two clients ever write into one
        lane."""
        until = self._loop.time() + timeout
        while any(
            lane.writer == writer and self._owners.get(lane.name) is not client
            for lane in self.of_producer(client.producer_id)
        ):
            left = until - self._loop.time()
            if left <= 0:
                raise PenstockTimeout(
                    f"a lane that producer {client.producer_id} had before is not drained after "
                    f"{timeout:g} s (topic_timeout): its writer restarts, or its disk is full"
                )
            gone = self._loop.create_future()
            self._awaited.add(gone)
            try:
                await asyncio.wait_for(gone, left)
            except TimeoutError:
                continue
            finally:
                self._awaited.discard(gone)

    def _gone(self, lane: Lane) -> None:
        for waiter in self._awaited:
            if not waiter.done():
                waiter.set_result(None)
        self._on_gone(lane)

    def take_back(self, client: AttachedClient) -> None:
        """A resuming client's socket had ended, so its lanes were being retired; now they are its
        own again. A second lane beside one that holds frames would mix up sequences (rule 5)."""
        for lane in self.of_producer(client.producer_id):
            lane.retired = False
            self._own(client, lane)
            self._supervisor.post(lane.writer, _added(lane, dead=False), client.doorbell)

    def of_producer(self, producer_id: int) -> list[Lane]:
        lanes = self._book.lanes.values()
        return [lane for lane in lanes if lane.identity.producer_id == producer_id]

    def has_replicators(self) -> bool:
        """Whether lanes of a replicator are there."""
        return any(map(lo.is_replicators, self._producer_ids()))

    def _producer_ids(self) -> Iterator[int]:
        return (lane.identity.producer_id for lane in self._book.lanes.values())

    def has_lanes_of(self, owner: Owner) -> bool:
        """Whether anything of that process, or remote client, may still be in a lane."""
        return any(lane.owner == owner for lane in self._book.lanes.values())

    def retire(self, client: AttachedClient) -> None:
        """The client is dead or closed: its writers drain what its lanes hold."""
        for lane in client.lanes.values():
            lane.retired = True
            self._owners.pop(lane.name, None)
            self._supervisor.post(lane.writer, ms.RetireLane(lane.name))
        client.lanes.clear()

    def are_closed(self, client: AttachedClient) -> bool:
        """Whether the client marked all its lanes closed: an absent one can tell no other way."""
        try:
            return all(self._book.is_closed(lane) for lane in client.lanes.values())
        except (PenstockError, OSError) as error:
            logger.error("the lanes of %s cannot be looked at: %s", client, error)
            return False

    # --- what writers report ---
    def drained(self, report: ms.LaneDrained) -> None:
        """A writer found head at the tail of a lane. It counts while the lane is retired."""
        lane = self._book.lanes.get(report.name)
        if lane is None or not lane.retired:
            return
        left = self._bytes_left(lane)
        if left is None:  # a writer that knows the lane no more answers at once, as it did now
            order = ms.RetireLane(lane.name)
            self._loop.call_later(LOOK_AGAIN, self._supervisor.post, lane.writer, order)
        elif left:  # published once more after the writer had looked
            self._supervisor.post(lane.writer, _added(lane, dead=True))
        else:
            self._book.remove(lane)
            logger.debug("lane %s is drained and gone", lane.name, extra={"lane": lane.name})
            self._gone(lane)

    def _bytes_left(self, lane: Lane) -> int | None:
        """Bytes between head and tail; None when the node has no descriptor left to look."""
        try:
            return self._book.bytes_left(lane)
        except (PenstockError, OSError) as error:
            logger.error(
                "lane %s cannot be looked at: %s", lane.name, error, extra={"lane": lane.name}
            )
            return None

    def dropped(self, report: ms.LaneDropped) -> AttachedClient | None:
        """A lane held what no producer writes: it is gone. Returns whom it belonged to, told."""
        lane = self._book.lanes.get(report.name)
        if lane is None:
            return None
        left = self._bytes_left(lane)
        logger.error(
            "lane %s is dropped with %s bytes in it: %s",
            lane.name,
            left,
            report.reason,
            extra={"lane": lane.name, "bytes": left, "reason": report.reason},
        )
        self._book.remove(lane)
        self._gone(lane)
        client = self._owners.pop(lane.name, None)
        if client is None:
            return None
        del client.lanes[lane.writer]
        if client.connection is not None:
            client.connection.refuse(
                "CorruptBatchError",
                f"the node dropped lane {lane.name} with {left} bytes that were not drained, "
                f"because its writer could not go on with it: {report.reason}",
            )
        return client

    # --- the end of the node ---
    def forget_drained(self) -> None:
        """Unlink what is drained and whose producer is gone, after the writers have stopped."""
        for lane in list(self._book.lanes.values()):
            if lane.retired and self._bytes_left(lane) == 0:
                self._book.remove(lane)

    @property
    def lanes(self) -> Collection[Lane]:
        """All of them."""
        return self._book.lanes.values()

    @property
    def count(self) -> int:
        return len(self._book.lanes)


def _added(lane: Lane, *, dead: bool) -> ms.AddLane:
    return ms.AddLane(lane.name, dead, replicates=lo.is_replicators(lane.identity.producer_id))
