"""A lane as the writer that drains it sees it: the shared end, and what is remembered privately."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL, ATTRIBUTES_AT, HEADER_BYTES
from penstock.core.log import AppendResult
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import LANE_KIND, Frame, LaneReceiver
from penstock.ipc.shm import listing, object_name

RETRY_MIN: Final = 0.05
_PRODUCER_ID: Final = slice(64, 72)


def producers_with_lanes(owner: str) -> set[int]:
    """The producers of whom a lane exists, drained or not, with whatever writer."""
    prefix = object_name(owner, LANE_KIND) + "-"
    return {int(name.removeprefix(prefix).partition("-")[0]) for name in listing(prefix)}


class DrainedLane:
    """`doorbell` None: nobody waits for answers. `blocked_until` (monotonic seconds): its frame
    found no room on the disk. `stop_at`: where a clean stop ends draining."""

    __slots__ = ("blocked_until", "doorbell", "receiver", "replicates", "retiring", "retry",
                 "stop_at")  # fmt: skip

    def __init__(self, receiver: LaneReceiver, doorbell: Doorbell | None) -> None:
        self.receiver = receiver
        self.replicates = receiver.replicates
        self.doorbell = doorbell
        self.retiring = doorbell is None
        self.blocked_until = 0.0
        self.retry = RETRY_MIN
        self.stop_at: int | None = None

    def owns(self, batch: memoryview) -> bool:
        """Whether the batch may come by this lane: it names the producer that the lane was granted
        to. In a transaction it names another, for whom the coordinator has opened it (the log looks
        after that); only the coordinator begins and ends them."""
        if len(batch) < HEADER_BYTES:
            return False
        granted = self.receiver.identity.producer_id
        kind = batch[ATTRIBUTES_AT]
        if kind & ATTR_CONTROL:
            return lo.is_coordinators(granted)
        if kind & ATTR_TRANSACTIONAL:
            return True
        return int.from_bytes(batch[_PRODUCER_ID], "little") == granted

    def refusal(self, frame: Frame, leader_epoch: int) -> AppendResult | None:
        """Returns why a producer's frame does not get to its partition, which is led in that epoch;
        None if it does. A frame of a past epoch may follow batches that were cut off."""
        if not self.owns(frame.batch):
            return refused(
                ErrorCode.CORRUPT_BATCH,
                f"lane {self.receiver.name} sent a batch that is not its producer's",
            )
        if frame.flags & lo.FRAME_IN_EPOCH and frame.fetch_epoch != leader_epoch:
            return refused(
                ErrorCode.NOT_LEADER,
                f"lane {self.receiver.name} sent a batch for leader epoch {frame.fetch_epoch} of "
                f"page {frame.page}, which is in epoch {leader_epoch}",
            )
        return None

    @property
    def is_drained(self) -> bool:
        """Up to where a clean stop ends draining."""
        return self.stop_at is None or self.receiver.head >= self.stop_at

    @property
    def may_go_on(self) -> bool:
        """Whether frames in it could be drained now."""
        if self.blocked_until and time.monotonic() < self.blocked_until:
            return False
        return self.retiring or self.receiver.has_room


def wake_producers(lanes: Iterable[DrainedLane]) -> None:
    """Rings those that sleep, once a sleep, for what was published before."""
    fence()
    for lane in lanes:
        if lane.doorbell is not None:
            ticket = lane.receiver.producer_ticket()
            if ticket and ticket != lane.receiver.rung:
                lane.receiver.rung = ticket
                lane.doorbell.ring()
