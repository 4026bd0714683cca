"""The writer's loop with real lanes, pages, doorbells and orders, in this process: whom it wakes,
how it falls asleep, and what it never leaves behind."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from store_crash import memory
from unit.core.log_helpers import MemoryStorage, make_batch, refuse

from penstock.core.storage import Storage
from penstock.ipc import clients as cl
from penstock.ipc import drained, shm, state
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import writer as wr
from penstock.ipc.alone import AloneRole
from penstock.ipc.channel import Channel, pair
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import LANE_KIND, LaneIdentity, LaneSender, format_lane
from penstock.ipc.partitionrole import PartitionRole
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.testing import wait_until

WITHIN = 20.0
PRODUCER = 1
TICKET = 77


class Lane:
    """A producer's end of a lane that the writer drains, with its doorbell."""

    def __init__(self, name: str) -> None:
        self.name = name
        region = Region.of_fd(shm.create(name, lo.lane_bytes(lo.LANE_CAPACITY_MIN)))
        format_lane(region, LaneIdentity(lo.LANE_CAPACITY_MIN, PRODUCER, 0, 0, 1, 1, 1))
        self.sender = LaneSender(region, name)
        self.bell = Doorbell()
        self.sequences: dict[int, int] = {}

    def send(self, page: int, count: int = 1) -> None:
        for _ in range(count):
            sequence = self.sequences.get(page, 0)
            self.sequences[page] = sequence + 1
            batch = make_batch(sequence, topic_id=topic_of(page))
            assert self.sender.try_write(page, [batch], len(batch)) is not None


def topic_of(page: int) -> bytes:
    return bytes([page]) * 16


def is_rung(bell: Doorbell, timeout: float = WITHIN) -> bool:
    poll = select.poll()
    poll.register(bell.fileno(), select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class World:
    """One writer, and the node's, producers' and consumers' ends of all that it shares."""

    def __init__(self, storage: Storage) -> None:
        self.uuid = uuid.uuid4().hex
        fd, self.state = memory(lo.state_table_bytes(8))
        os.close(fd)
        state.format_table(self.state, bytes(16), 8)
        fd, self.clients = memory(lo.client_table_bytes(4))
        os.close(fd)
        cl.format_table(self.clients, 4)
        here, there = pair()
        self.node = Channel(here, inbound=ms.WriterReport)
        self.channel = Channel(there, inbound=ms.WriterOrder)
        self.bell = Doorbell()
        self.storage = storage
        self.writer = wr.Writer(
            0, 1, channel=self.channel, doorbell=self.bell, state=self.state, clients=self.clients,
            open_role=self._open_role,
        )  # fmt: skip
        self.lanes: list[Lane] = []
        self._thread: threading.Thread | None = None

    def _open_role(self, order: ms.OpenPartition) -> tuple[PartitionRole, str]:
        page = StatePage(self.state, order.page)
        return AloneRole.open(
            self.storage, order, page, generation=1, batch_bytes_max=1 << 16, now_us=1
        )

    # --- what the node says ---
    def order(self, order: Any, *fds: int) -> None:
        self.node.send(order, fds)

    def open(self, *pages: int, **settings: Any) -> None:
        for page in pages:
            self.order(
                ms.OpenPartition(
                    page, f"t{page}", topic_of(page), 0, f"/data/t{page}",
                    ms.TopicSettings(**settings), False, "boot-1",
                )
            )  # fmt: skip

    def add_lane(self, *, dead: bool = False) -> Lane:
        lane = Lane(shm.object_name(self.uuid, LANE_KIND, PRODUCER, 0, len(self.lanes) + 1))
        self.lanes.append(lane)
        self.order(ms.AddLane(lane.name, dead), *([] if dead else [lane.bell.fileno()]))
        return lane

    def add_consumer(self, *pages: int) -> Doorbell:
        slot, bell = cl.ClientSlot(self.clients, 1), Doorbell()
        slot.assign(1, 1, 1)
        slot.watch(pages)
        slot.publish_sleeping(TICKET)
        self.order(ms.AddClient(1), bell.fileno())
        return bell

    def report(self, kind: type[Any]) -> Any:
        """The next of these that the writer tells."""
        while True:
            received = self.node.recv(WITHIN)
            assert received is not None, f"the writer left without a {kind.__name__}"
            if isinstance(received[0], kind):
                return received[0]

    # --- the loop ---
    def run(self) -> None:
        self._thread = threading.Thread(target=self.writer.run, args=(os.getpid(),))
        self._thread.start()

    def joined(self) -> bool:
        assert self._thread is not None
        self._thread.join(WITHIN)
        return not self._thread.is_alive()

    def end(self, page: int) -> int:
        return StatePage(self.state, page).log_end

    def close(self) -> None:
        self.node.close()
        if self._thread is not None:
            self.bell.ring()
            assert self.joined()
        for lane in self.lanes:
            with contextlib.suppress(FileNotFoundError):
                shm.unlink(lane.name)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def world(storage: MemoryStorage) -> Iterator[World]:
    world = World(storage)
    yield world
    world.close()


class Watched:
    """The writer's poll: notes how long it would sleep, and does not."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.waits.append(milliseconds)
        return []


# --- rule 13: falling asleep ----------------------------------------------------------------------
@pytest.mark.rule(13)
def test_rule_13_a_writer_publishes_its_ticket_then_fences_then_looks_again(world, monkeypatch):
    """A producer that published before it could see the ticket rings nobody: the look behind the
    fence is what finds its frame."""
    world.open(2)
    lane = world.add_lane()
    world.writer._read_orders()
    poll = world.writer._poll = Watched()
    fences = []

    def fence():
        fences.append(lane.sender.writer_ticket())
        if len(fences) == 2:
            lane.send(2)

    monkeypatch.setattr(wr, "fence", fence)
    world.writer._sleep()
    assert len(poll.waits) == 1, "nothing is there: it sleeps"
    world.writer._sleep()
    assert len(poll.waits) == 1, "a frame came between its ticket and its second look"
    assert len(fences) == 2
    assert 0 < fences[0] < fences[1], "the ticket is there before the fence, and used once"
    assert world.writer._pass()
    world.writer._wake_up()
    assert lane.sender.writer_ticket() == 0


@pytest.mark.rule(13)
def test_rule_13_a_writer_clears_its_doorbell_before_the_look_that_it_is_to_cover(world):
    world.open(2)
    lane = world.add_lane()
    world.writer._read_orders()
    real, world.writer._poll = world.writer._poll, Watched()
    world.bell.ring()
    world.writer._sleep()
    assert not is_rung(world.bell, 0), "or a ring of before would end each sleep"
    world.writer._poll = real
    lane.send(2)
    world.bell.ring()
    world.writer._sleep()
    assert not is_rung(world.bell, 0)
    assert world.writer._pass()


@pytest.mark.rule(13)
@pytest.mark.parametrize("who", ["consumers", "producers"])
def test_rule_13_who_is_to_be_woken_is_looked_at_behind_a_fence(world, monkeypatch, who):
    world.open(2)
    lane = world.add_lane()
    bell = world.add_consumer(2)
    world.writer._read_orders()
    bell.clear()
    slot = cl.ClientSlot(world.clients, 1)
    slot.publish_sleeping(0)
    at_fence = []

    def fence():
        """They fall asleep here: behind what was published, before the look at their tickets."""
        at_fence.append((world.end(2), lane.sender.has_acks()))
        slot.publish_sleeping(TICKET + 1)
        lane.sender.publish_sleeping(TICKET + 1)

    monkeypatch.setattr(wr if who == "consumers" else drained, "fence", fence)
    lane.send(2)
    assert world.writer._pass()
    assert at_fence == [(1, who == "producers")]
    assert is_rung(bell if who == "consumers" else lane.bell, 0)


# --- whom it wakes --------------------------------------------------------------------------------
def test_consumers_of_any_page_of_a_pass_and_producers_are_rung_once_a_sleep(world):
    world.open(1, 2, 3)
    lane = world.add_lane()
    bell = world.add_consumer(3)
    world.writer._read_orders()
    while bell.clear():
        pass
    cl.ClientSlot(world.clients, 1).publish_sleeping(TICKET + 1)
    lane.sender.publish_sleeping(TICKET)
    lane.send(1)
    assert world.writer._pass()
    assert not is_rung(bell, 0), "that page is not watched"
    assert is_rung(lane.bell, 0)
    lane.bell.clear()
    lane.send(2)
    lane.send(3)
    assert world.writer._pass()
    assert is_rung(bell, 0)
    assert not is_rung(lane.bell, 0), "rung for that ticket already"
    bell.clear()
    lane.send(3)
    assert world.writer._pass()
    assert not is_rung(bell, 0), "rung for that ticket already"


def test_a_writer_that_sleeps_is_woken_by_its_doorbell_and_wakes_who_waits(world):
    world.open(2)
    lane = world.add_lane()
    bell = world.add_consumer(2)
    world.run()
    wait_until(lane.sender.writer_ticket, WITHIN, "it sleeps")
    bell.clear()
    cl.ClientSlot(world.clients, 1).publish_sleeping(TICKET + 1)
    lane.sender.publish_sleeping(TICKET)
    lane.send(2)
    world.bell.ring()
    assert is_rung(bell)
    assert is_rung(lane.bell)
    assert [ack.base_offset for ack in lane.sender.acks()] == [0]


# --- what it never leaves behind ------------------------------------------------------------------
class Full:
    """A disk without room for segments, until `over`."""

    def __init__(self) -> None:
        self.refused = 0
        self.over = False

    def __call__(self, call: Any) -> None:
        if not self.over and call.name == "pwritev" and call.path.endswith(".log"):
            self.refused += 1
            refuse(call, errno.ENOSPC)


@pytest.mark.rule(5)
def test_rule_5_the_lane_of_a_dead_producer_stays_until_what_is_in_it_is_written(world, storage):
    full = storage.fault = Full()
    world.open(2)
    lane = world.add_lane()
    lane.send(2, 3)
    world.run()
    wait_until(lambda: full.refused, WITHIN, "it finds no room")
    world.order(ms.RetireLane(lane.name))
    wait_until(lambda: full.refused > 2, WITHIN, "it tries again")
    full.over = True
    assert world.report(ms.LaneDrained).name == lane.name
    assert world.end(2) == 3


@pytest.mark.rule(5)
def test_rule_5_a_clean_stop_writes_first_what_was_in_the_lanes(world, storage):
    full = storage.fault = Full()
    world.open(2)
    lane = world.add_lane()
    lane.send(2, 3)
    world.run()
    wait_until(lambda: full.refused, WITHIN, "it finds no room")
    world.order(ms.StopWriter())
    wait_until(lambda: full.refused > 2, WITHIN, "it tries again")
    full.over = True
    world.report(ms.Stopped)
    assert world.joined()
    assert world.end(2) == 3


@pytest.mark.rule(4)
def test_rule_4_a_full_disk_of_one_partition_holds_no_other_lane_up(world, storage):
    def full(call):
        if call.name == "pwritev" and call.path.startswith("/data/t2/"):
            refuse(call, errno.ENOSPC)

    world.open(2, 3)
    first, second = world.add_lane(), world.add_lane()
    world.writer._read_orders()
    storage.fault = full
    first.send(3)
    first.send(2)
    first.send(3)
    second.send(3)
    assert world.writer._pass()
    assert [ack.base_offset for ack in first.sender.acks()] == [0], "up to what found no room"
    assert first.sender.head < first.sender.tail
    assert second.sender.is_idle
    storage.fault = None
    wait_until(world.writer._pass, WITHIN, "it tries again")
    acks = first.sender.acks()
    assert [(ack.base_offset, ack.error) for ack in acks] == [(0, 0), (1, 0)]
    assert first.sender.is_idle


def test_partitions_that_are_opened_let_the_frames_of_others_pass(world: World) -> None:
    """Whoever makes many partitions holds up no record of another one for longer than one takes."""
    world.open(2)
    lane = world.add_lane()
    world.writer._read_orders()
    world.open(3, 4, 5)
    lane.send(2)
    opened = []
    while world.writer._read_orders():
        opened.append(sum(page in world.writer._roles for page in (3, 4, 5)))
        world.writer._pass()
        if lane.sender.is_idle and opened[-1] < 3:
            lane.send(2)
    assert opened == [1, 2, 3]
    assert world.end(2) == 3


@pytest.mark.rule(9)
def test_rule_9_a_writer_leaves_when_its_node_is_gone_and_keeps_the_lanes(world):
    world.open(2)
    lane = world.add_lane()
    world.run()
    lane.send(2)
    world.bell.ring()
    wait_until(lambda: world.end(2) == 1, WITHIN, "it is appended")
    world.node.close()
    assert world.joined()
    assert lane.name in shm.listing(shm.object_name(world.uuid, LANE_KIND))
