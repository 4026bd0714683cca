"""The batches of remote producers under way: in lanes, of an endpoint.

Plain state, which `produce` moves. Owns the ends of lanes that it closes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack, LaneSender
from penstock.server.gateway.commit_wait import NOTHING, Patience
from penstock.server.gateway.endpoints import GatewayEndpoint

NOT_IN_LANE: Final = -1
FLAGS: Final = lo.FRAME_SYNC | lo.FRAME_COMMITTED


class ProducedBatch:
    """One batch under way. `error`: why the gateway refused it, 0 if it did not. `epoch`: the
    leader epoch that it is for, where `flags` say so. `end`: up to where it waits to be committed,
    0 if it does not (yet); `appended`: when it was answered, and the high watermark then.
    `proof`: what its client shows for a transactional one."""

    __slots__ = ("answer", "appended", "came", "end", "epoch", "error", "flags", "lane_sequence",
                 "page", "payload", "proof", "records", "sequence", "size")  # fmt: skip

    def __init__(self, message: fr.Produce, payload: memoryview, came: float) -> None:
        self.sequence = message.sequence
        self.page = message.page
        self.flags = message.flags & FLAGS
        self.proof = message.proof or b""
        self.payload: memoryview | None = payload
        self.size = len(payload)
        self.came = came
        self.records = 0
        self.error = 0
        self.epoch = 0
        self.end = 0
        self.appended = (0.0, 0)
        self.lane_sequence = NOT_IN_LANE
        self.answer: Ack | None = None


class ProduceLane:
    """An endpoint's way to one writer. `under_way`: all without an answer, in order. Of these,
    `held` are good and not in the lane yet, and `in_lane` are not answered by the writer yet.
    `epochs`: of pages, the leader epoch in which it began to send there. `commit_wait` owns
    `waits_on` and `patience`."""

    __slots__ = ("bytes_under_way", "doorbell", "endpoint", "epochs", "expected", "held", "in_lane",
                 "is_opening", "patience", "rung", "sender", "under_way", "waits_on",
                 "writer")  # fmt: skip

    def __init__(self, endpoint: GatewayEndpoint, writer: int, first: int) -> None:
        self.endpoint = endpoint
        self.writer = writer
        self.expected = first
        self.sender: LaneSender | None = None
        self.doorbell: Doorbell | None = None
        self.under_way: deque[ProducedBatch] = deque()
        self.held: deque[ProducedBatch] = deque()
        self.in_lane: deque[ProducedBatch] = deque()
        self.bytes_under_way = 0
        self.is_opening = False
        self.rung = 0
        self.epochs: dict[int, int] = {}
        self.waits_on = NOTHING
        self.patience = Patience()

    def close(self) -> None:
        for batches in (self.held, self.in_lane, self.under_way):
            batches.clear()
        if self.sender is not None:
            self.sender.detach()
            self.sender = None
        if self.doorbell is not None:
            self.doorbell.close()
            self.doorbell = None


class ProduceWindow:
    """The lanes of one endpoint. A quota holds it back until `held_until` (monotonic seconds).
    `proved`: the producer id, epoch and proof of a transaction that were found good last."""

    __slots__ = ("held_until", "lanes", "proved")

    def __init__(self) -> None:
        self.lanes: dict[int, ProduceLane] = {}
        self.held_until = 0.0
        self.proved: tuple[int, int, bytes] | None = None

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
