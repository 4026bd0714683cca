"""A replicated partition as its writer keeps it: a real role on its page, on files in memory, and
the replication lane through which it is told what to do, with both its ends."""

from __future__ import annotations

import os

from lane_bytes import identity_of
from store_crash import memory
from unit.core.log_helpers import FOLDER, TOPIC, MemoryStorage

from penstock.core.errors import ErrorCode
from penstock.core.log import AppendResult
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.lane import Ack, LaneReceiver, LaneSender, format_lane
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.replicated import ReplicaRole
from penstock.ipc.state import StatePage, format_table

CAPACITY = 1 << 20
PAGE = 2


class ReplicaPartition:
    def __init__(self, storage: MemoryStorage | None = None, **settings) -> None:
        self.storage = storage or MemoryStorage()
        self.settings = TopicSettings(**settings)
        self.boot = 1
        self.generation = 0
        self.clock = 1_000_000
        self.new_boot()
        self.start()

    def new_boot(self) -> None:
        fd, table = memory(lo.state_table_bytes(4))
        os.close(fd)
        format_table(table, bytes(16), 4)
        self.page = StatePage(table, PAGE)
        fd, lane = memory(lo.lane_bytes(CAPACITY))
        os.close(fd)
        format_lane(lane, identity_of(CAPACITY))
        self.lane = lane
        self.sender = LaneSender(lane, "lane")

    def start(self) -> None:
        """A writer process begins with what the one before left."""
        self.generation += 1
        order = OpenPartition(
            PAGE, "t", TOPIC, 0, FOLDER, self.settings, False, f"boot-{self.boot}", True
        )
        self.role, self.report = ReplicaRole.open(
            self.storage, order, self.page, generation=self.generation, batch_bytes_max=1 << 16,
            now_us=self.clock,
        )  # fmt: skip
        self.receiver = LaneReceiver(self.lane, "lane", self.generation, replicates=True)

    def killed(self) -> None:
        self.storage = self.storage.killed()
        self.start()

    def power_cut(self) -> None:
        self.storage = self.storage.power_cut()
        self.boot += 1
        self.new_boot()
        self.start()

    # --- the lane ---
    def say(self, *orders: ro.RoleOrder, topic_id: bytes = TOPIC, partition: int = 0) -> None:
        for order in orders:
            packed = ro.encode_order(order, topic_id, partition)
            assert self.sender.try_write(PAGE, [packed], len(packed), kind=lo.KIND_ROLE) is not None

    def send(self, epoch: int, *batches: memoryview | bytes) -> None:
        for batch in batches:
            sent = self.sender.try_write(
                PAGE, [batch], len(batch), kind=lo.KIND_REPLICA, fetch_epoch=epoch
            )
            assert sent is not None

    def drain(self, *, answer: bool = True) -> list[AppendResult]:
        """One pass over the lane; without `answer` its writer is about to die."""
        self.clock += 1_000
        frames = self.receiver.frames(lo.ACKS_MAX, 1 << 20)
        results = self.role.replicate(frames, self.clock)
        if answer and results:
            done = frames[: len(results)]
            acks = [
                Ack(frame.sequence, result.base_offset, 0, result.error, self.role.leader_epoch)
                for frame, result in zip(done, results, strict=True)
            ]
            self.receiver.finish(done, acks)
            self.sender.acks()
        return results

    def obey(self, *orders: ro.RoleOrder) -> list[ErrorCode]:
        self.say(*orders)
        return [ErrorCode(result.error) for result in self.drain()]

    def follow(self, epoch: int, *batches: memoryview | bytes) -> list[ErrorCode]:
        self.send(epoch, *batches)
        return [ErrorCode(result.error) for result in self.drain()]

    # --- a leader's ---
    def append(self, *batches: memoryview) -> list[ErrorCode]:
        self.clock += 1_000
        return [ErrorCode(r.error) for r in self.role.append(list(batches), self.clock)]

    def batches(self, offset: int = 0) -> list[bytes]:
        """What a follower is sent who asks for that offset."""
        return [data for _, data in self.role._log.read(offset, 1 << 40)]

    def ends(self) -> tuple[int, int, int, int]:
        """log start, high watermark, last stable, log end, as the page shows them."""
        page = self.page
        return page.log_start, page.high_watermark, page.last_stable, page.log_end

    def sync(self) -> None:
        self.role.request_sync()
        job = self.role.tick(0.0, self.clock)
        if job is not None:
            job.run()
            self.role.finish_sync(job)
