"""A coordinator's lane with a real log behind it, and the writer in the test's hand.

`World.drain` is a writer's pass over one lane: append, publish, answer, ring. Nothing is drained
before a test says so, and what a lane holds can be answered in any way. `BrokerWorld` is the same
on a broker of a cluster: the test also says who leads, in which epoch, and what is committed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.cluster.decisions import Record
from penstock.core.log import Log, LogConfig
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import liveness, shm, state
from penstock.ipc import messages as ms
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack, LaneReceiver
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.ipc.watchers import Watchers
from penstock.server.config import NodeConfig
from penstock.server.coordinator.committed import Tenure
from penstock.server.coordinator.decision_log import Journal
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.node.lane_grants import Grants
from penstock.server.node.lanes import LaneBook
from penstock.server.node.tables import Tables

BOOT = liveness.boot_id()
TOPIC_ID = b"c" * 16
COORDINATOR = 7 << lo.PRODUCER_COUNTER_BITS


class Closing(Protocol):
    def close(self) -> None: ...


class Seats:
    """What of a supervisor lanes need: a doorbell for each writer, and its orders."""

    def __init__(self) -> None:
        self.doorbell = Doorbell()
        self.orders: list[ms.WriterOrder] = []
        self.bells: dict[int, Doorbell] = {}

    def ensure(self, writer: int) -> Seats:
        return self

    def post(self, writer: int, order: ms.WriterOrder, bell: Doorbell | None = None) -> None:
        self.orders.append(order)

    def post_running(self, order: ms.WriterOrder, bell: Doorbell | None = None) -> None:
        self.orders.append(order)
        if isinstance(order, ms.AddClient) and bell is not None:
            self.bells[order.slot] = bell


class World:
    """To be made within an event loop; `close` takes everything away."""

    tables: Tables | None = None
    leader_epoch = 1

    def __init__(self, folder: Path, *, lane_capacity: int = 64 << 10) -> None:
        self.uuid = os.urandom(16).hex()
        config = NodeConfig(str(folder), lane_capacity=lane_capacity, lanes_max=8)
        self.book = LaneBook(self.uuid, BOOT, config)
        self.seats = Seats()
        self.grants = Grants(self.book, self.seats)  # type: ignore[arg-type]
        self.log, _ = Log.open(
            Storage(), str(folder), LogConfig(segment_bytes=16 << 10),
            topic_id=TOPIC_ID, partition=0, generation=1, now_us=0, boot_id=BOOT, node_clean=True,
        )  # fmt: skip
        self.folder = str(folder)
        memory = self._state_table()
        self.state = StatePage(memory, 0)
        self.state.claim(TOPIC_ID, 0, 1)
        self.publish()
        self.topic = ms.TopicInfo("__coordinator", TOPIC_ID, [0], ms.TopicSettings())
        self.broken: list[Exception] = []
        self.lost: list[str] = []
        self.woken = 0
        self.journals: list[Journal] = []
        self.mailboxes: list[Mailbox] = []
        self.mailbox = self.new_mailbox()
        self._receivers: dict[str, LaneReceiver] = {}
        self._region = memory

    def _state_table(self) -> Region:
        memory = Region.of_fd(
            shm.create(shm.object_name(self.uuid, "state"), lo.state_table_bytes(1))
        )
        state.format_table(memory, bytes.fromhex(self.uuid), 1)
        return memory

    def new_mailbox(self) -> Mailbox:
        def woken() -> None:
            self.woken += 1
            for journal in self.journals:
                journal.look()

        box = Mailbox(
            self.grants, self.seats, 1, COORDINATOR,  # type: ignore[arg-type]
            woken=woken, lost=self.lost.append,
            is_waited=lambda: any(journal.is_waited for journal in self.journals),
            replicated=self.tables,
        )  # fmt: skip
        self.mailboxes.append(box)
        return box

    def journal(self, epoch: int = 1, mailbox: Mailbox | None = None) -> Journal:
        journal = Journal(
            mailbox or self.mailbox, self.topic, self.state, COORDINATOR, epoch,
            self.broken.append, None if self.tables is None else Tenure(self.state),
        )  # fmt: skip
        self.journals.append(journal)
        return journal

    # --- the writer ---
    def lanes(self) -> list[str]:
        """The newest one last."""
        return list(self.book.lanes)

    def _receiver(self, name: str) -> LaneReceiver:
        if name not in self._receivers:
            memory = Region.of_fd(shm.open_existing(name, writable=True))
            self._receivers[name] = LaneReceiver(memory, name, 1)
        return self._receivers[name]

    def drain(self, most: int = lo.ACKS_MAX, *, lane: str | None = None, error: int = 0) -> int:
        """Take up to so many frames, append them (or refuse them with `error`), answer and ring."""
        self.end_turn()
        receiver = self._receiver(lane or self.lanes()[-1])
        frames = receiver.frames(most, 1 << 30)
        if not frames:
            return 0
        if error:
            acks = [Ack(frame.sequence, -1, 0, error, self.leader_epoch) for frame in frames]
        else:
            results = self.log.append([frame.batch for frame in frames], time.time_ns() // 1000)
            self.publish()
            acks = [
                Ack(frame.sequence, result.base_offset, 0, result.error, self.leader_epoch)
                for frame, result in zip(frames, results, strict=True)
            ]
        receiver.finish(frames, acks)
        self.ring(receiver)
        return len(frames)

    def end_turn(self) -> None:
        """What was decided so far goes into the lane, as when a turn of the loop is over."""
        for box in self.mailboxes:
            box.end_turn()

    def publish(self) -> None:
        log = self.log
        self.state.publish_segment(log.segment_base, log.valid_bytes)
        self.state.publish_ends(log.log_end, log.log_end, log.log_end)

    def sync(self) -> None:
        """What is appended is on the device, and whoever waits for that is rung."""
        self.log.sync()
        self.state.publish_durable(self.log.durable)
        for receiver in self._receivers.values():
            self.ring(receiver)

    def ring(self, receiver: LaneReceiver) -> None:
        ticket = receiver.producer_ticket()
        if ticket and ticket != receiver.rung:
            receiver.rung = ticket
            for box in self.mailboxes:
                box._client.doorbell.ring()

    def close(self) -> None:
        for box in self.mailboxes:
            box.close(retire=False)
        for receiver in self._receivers.values():
            receiver.detach()
        self.log.close(clean=False)
        self._region.close()
        for name in shm.listing(f"/penstock-{self.uuid}"):
            shm.unlink(name)


class BrokerWorld(World):
    """The partition of page 0 is replicated; this broker leads it until the test says otherwise."""

    def __init__(self, folder: Path, *, lane_capacity: int = 64 << 10) -> None:
        self.committed = 0
        super().__init__(folder, lane_capacity=lane_capacity)
        self.state.publish_epoch(self.leader_epoch)
        self.state.publish_status(lo.STATUS_ONLINE)

    def _state_table(self) -> Region:
        self.tables = Tables(self.uuid)
        return self.tables.state

    def publish(self) -> None:
        log, end = self.log, self.log.log_end
        self.state.publish_segment(log.segment_base, log.valid_bytes)
        self.state.publish_ends(end, min(self.committed, end), min(self.committed, end))

    def commit(self, offset: int | None = None) -> None:
        """The high watermark is there now (at the end of the log), and who watches is rung."""
        self.committed = self.log.log_end if offset is None else offset
        self.publish()
        self._changed()

    def lead(self, epoch: int) -> None:
        """This broker leads in another epoch."""
        self.leader_epoch = epoch
        self.state.publish_epoch(epoch)
        self.state.publish_status(lo.STATUS_ONLINE)
        self._changed()

    def follow(self, epoch: int) -> None:
        """Another broker leads."""
        self.state.publish_status(lo.STATUS_OFFLINE)  # as any state in which nobody leads here
        self.leader_epoch = epoch
        self.state.publish_epoch(epoch)
        self._changed()

    def _changed(self) -> None:
        assert self.tables is not None
        watchers = Watchers(self.tables.clients)
        for slot, bell in self.seats.bells.items():
            watchers.add(slot, bell)
        watchers.ring({0})

    def close(self) -> None:
        super().close()
        assert self.tables is not None
        for fd in (self.tables.state_fd, self.tables.clients_fd):
            os.close(fd)
        self.tables.clients.close()


def some(count: int, start: int = 0) -> Sequence[Record]:
    return [Record(b"\x92\xa1k%c" % (start + number), b"value") for number in range(count)]


# --- running a test on one ---
def running(make: Callable[..., Closing]) -> Callable[..., None]:
    """What runs a coroutine function on what `make` makes of the options, and closes that."""

    def run(scenario: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            world = make(**options)
            try:
                await asyncio.wait_for(scenario(world), 25)
            finally:
                world.close()

        asyncio.run(main())

    return run


async def turns(count: int = 20) -> None:
    """So many turns of the loop, in which whatever is ready comes true."""
    for _ in range(count):
        await asyncio.sleep(0)


def waiting(
    journal: Journal, *, durable: bool = False, timeout: float = 10.0
) -> asyncio.Future[None]:
    """Somebody who waits until all that was decided is settled."""
    return asyncio.ensure_future(journal.settled(durable=durable, timeout=timeout))
