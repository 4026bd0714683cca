"""A real writer process and a replication lane: what it is told, answers, wakes, and takes over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.core.log_helpers import TOPIC, numbered

from penstock.core.control import ControlType, encode_control
from penstock.core.errors import ErrorCode
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.storage import Storage
from penstock.ipc import clients, shm, state
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import roles as ro
from penstock.ipc.channel import Channel
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import LANE_KIND, Ack, LaneIdentity, LaneSender, format_lane
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.testing import wait_until

WITHIN = 45.0
CAPACITY = 1 << 20
PRODUCER = (9 << lo.PRODUCER_COUNTER_BITS) + 1
REPLICATOR = PRODUCER + 1
COORDINATOR = 9 << lo.PRODUCER_COUNTER_BITS


class Host:
    """What a node makes for one writer process, by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uuid = uuid.uuid4().hex
        self.state = self._made("state", lo.state_table_bytes(8))
        state.format_table(self.state, bytes(16), 8)
        self.clients = self._made("clients", lo.client_table_bytes(4))
        clients.format_table(self.clients, 4)
        self.lanes: dict[int, tuple[str, LaneSender, Doorbell]] = {}
        self.generation = 0
        self.bell = Doorbell()
        self.start()

    def _made(self, kind: str, size: int) -> Region:
        return Region.of_fd(shm.create(shm.object_name(self.uuid, kind), size))

    def start(self) -> None:
        self.generation += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = Channel(ours, inbound=ms.WriterReport)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock.server.writer.main", "--writer", "0"),
                *("--believed-us", str(time.time_ns() // 1000)),
                *("--generation", str(self.generation), "--data", str(self.folder)),
                *("--shm", self.uuid, "--channel-fd", str(theirs.fileno())),
                *("--doorbell-fd", str(self.bell.fileno())),
            ],
            pass_fds=(theirs.fileno(), self.bell.fileno()),
        )
        theirs.close()

    def lane(self, producer: int, *, replicates: bool = False) -> LaneSender:
        name = shm.object_name(self.uuid, LANE_KIND, producer, 0, 1)
        region = Region.of_fd(shm.create(name, lo.lane_bytes(CAPACITY)))
        format_lane(region, LaneIdentity(CAPACITY, producer, 0, 0, os.getpid(), 1, 1))
        self.lanes[producer] = name, LaneSender(region, name), Doorbell()
        self.add_lane(producer, replicates=replicates)
        return self.lanes[producer][1]

    def add_lane(self, producer: int, *, replicates: bool = False) -> None:
        name, _, bell = self.lanes[producer]
        self.channel.send(ms.AddLane(name, False, replicates), [bell.fileno()])

    def open(self, page: int, *, replicated: bool = True) -> StatePage:
        folder = str(self.folder / f"t-{page}")
        self.channel.send(
            ms.OpenPartition(
                page, "t", TOPIC, 0, folder, ms.TopicSettings(), False, "boot-1", replicated
            )
        )
        report = self.report()
        assert isinstance(report, ms.PartitionOpened), report
        return StatePage(self.state, page)

    def report(self) -> Any:
        received = self.channel.recv(WITHIN)
        assert received is not None
        return received[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.close()

    def close(self) -> None:
        self.kill()
        shm.unlink_all(self.uuid)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def say(host: Host, lane: LaneSender, page: int, *orders: ro.RoleOrder) -> None:
    for order in orders:
        packed = ro.encode_order(order, TOPIC, 0)
        assert lane.try_write(page, [packed], len(packed), kind=lo.KIND_ROLE) is not None
    host.bell.ring()


def send(host: Host, lane: LaneSender, page: int, epoch: int, *batches: bytes) -> None:
    for batch in batches:
        kind = {"kind": lo.KIND_REPLICA, "fetch_epoch": epoch}
        assert lane.try_write(page, [batch], len(batch), **kind) is not None
    host.bell.ring()


def answers(lane: LaneSender, count: int) -> list[Ack]:
    found: list[Ack] = []

    def all_there() -> bool:
        found.extend(lane.acks())
        return len(found) >= count

    wait_until(all_there, WITHIN, f"{count} answers")
    return found


def errors(lane: LaneSender, count: int) -> list[ErrorCode]:
    return [ErrorCode(ack.error) for ack in answers(lane, count)]


def leaders_batches(folder: Path) -> list[bytes]:
    log, _ = Log.open(
        Storage(), str(folder), LogConfig(), topic_id=TOPIC, partition=0, generation=1, now_us=1,
        boot_id="boot-1", node_clean=False, replicated=True,
    )  # fmt: skip
    LogReplica(log).lead(3)
    log.append(numbered(6, producer=PRODUCER), 1)
    begins = encode_control(
        ControlType.BEGIN, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=1,
        timestamp=1, topic_id=TOPIC, partition=0,
    )  # fmt: skip
    log.append([memoryview(begins)], 2)
    batches = [data for _, data in log.read(0, 1 << 30)]
    log.close(clean=True)
    return batches


def test_a_writer_leads_and_follows_as_its_replication_lane_says(host, tmp_path):
    lane, producer = host.lane(REPLICATOR, replicates=True), host.lane(PRODUCER)
    leads, follows = host.open(1), host.open(2)
    assert (leads.status, follows.status) == (lo.STATUS_FOLLOWING, lo.STATUS_FOLLOWING)
    batches = numbered(4, producer=PRODUCER)
    assert producer.try_write(1, [batches[0]], len(batches[0])) == 0
    host.bell.ring()
    assert errors(producer, 1) == [ErrorCode.NOT_LEADER]

    say(host, lane, 1, ro.Lead(3))
    say(host, lane, 2, ro.Follow(3))
    copied = leaders_batches(tmp_path / "leader")
    send(host, lane, 2, 3, *copied)
    say(host, lane, 2, ro.HighWatermark(3, 7))
    found = answers(lane, 10)
    assert [ack.error for ack in found] == [0] * 10
    assert [ack.leader_epoch for ack in found] == [3] * 10
    assert found[-1].base_offset == 7
    assert (follows.log_end, follows.high_watermark, follows.last_stable) == (7, 7, 6)

    for batch in batches:
        assert producer.try_write(1, [batch], len(batch), lo.FRAME_COMMITTED) is not None
    host.bell.ring()
    acks = answers(producer, 4)
    assert [(ack.error, ack.base_offset, ack.leader_epoch) for ack in acks] == [
        (0, offset, 3) for offset in range(4)
    ]
    assert (leads.log_end, leads.high_watermark) == (4, 0)
    say(host, lane, 1, ro.HighWatermark(3, 3))
    assert errors(lane, 1) == [ErrorCode.NONE]
    assert (leads.log_end, leads.high_watermark) == (4, 3)


def test_who_watches_a_page_is_rung_when_its_hw_moves(host):
    lane, bell = host.lane(REPLICATOR, replicates=True), Doorbell()
    slot = ClientSlot(host.clients, 1)
    host.channel.send(ms.AddClient(1), [bell.fileno()])
    page = host.open(1)
    say(host, lane, 1, ro.Lead(3))
    answers(lane, 1)
    producer, (batch,) = host.lane(PRODUCER), numbered(1, producer=PRODUCER)
    producer.try_write(1, [batch], len(batch))
    host.bell.ring()
    answers(producer, 1)
    slot.assign(os.getpid(), 1, lo.KIND_CONSUMER)
    slot.watch([1])
    slot.publish_sleeping(77)
    say(host, lane, 1, ro.HighWatermark(3, 1))
    assert bell.wait(WITHIN)
    assert page.high_watermark == 1
    slot.publish_sleeping(78)
    say(host, lane, 1, ro.Follow(4))
    assert bell.wait(WITHIN)
    assert (page.status, page.leader_epoch) == (lo.STATUS_FOLLOWING, 4)


def test_a_successor_does_what_a_killed_writer_did_not_answer(host, tmp_path):
    lane = host.lane(REPLICATOR, replicates=True)
    page = host.open(2)
    copied = leaders_batches(tmp_path / "leader")
    say(host, lane, 2, ro.Follow(3))
    send(host, lane, 2, 3, *copied[:3])
    answers(lane, 4)
    host.kill()
    send(host, lane, 2, 3, *copied[3:])
    say(host, lane, 2, ro.HighWatermark(3, 5), ro.Truncate(3, 6))
    host.start()
    host.add_lane(REPLICATOR, replicates=True)
    host.open(2)
    assert errors(lane, len(copied) - 3 + 2) == [ErrorCode.NONE] * (len(copied) - 1)
    assert (page.log_end, page.high_watermark, page.last_stable) == (6, 5, 5)


def test_what_is_not_there_or_not_replicated_is_refused(host):
    lane = host.lane(REPLICATOR, replicates=True)
    host.open(1, replicated=False)
    say(host, lane, 1, ro.Lead(3))
    say(host, lane, 5, ro.Lead(3))
    assert errors(lane, 2) == [ErrorCode.UNKNOWN_PARTITION] * 2


def test_a_lane_that_is_no_replicators_is_dropped_for_such_frames(host):
    host.open(1)
    lane = host.lane(PRODUCER)
    say(host, lane, 1, ro.Lead(3))
    report = host.report()
    assert isinstance(report, ms.LaneDropped)
    assert "unknown kind 4" in report.reason
