"""The replication lanes: one to each writer of this broker, for its roles and batches.

Frames without room in a lane wait here in order, and nothing overtakes. The writer answers every
frame, and its callback is called then. Owns lanes, their doorbells and the order. It blocks only
while a lane is opened, which happens once for each writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from penstock.core.errors import ResourceLimitError
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import Ack, LaneSender, Piece
from penstock.ipc.roles import RoleOrder, encode_order

WAITING_MAX: Final = 8 << 20
"""Bytes that wait for room in lanes, from which on nothing is read from leaders."""
ASIDES_MAX: Final = 16
"""Frames of a lane whose answers are read when there is something else to do, or another one."""
UNANSWERED_MAX: Final = 1 << 16
"""Frames of a lane without an answer. One that has more has a writer that is not replaced."""

Answered = Callable[[Ack], None]
Open = Callable[[int], tuple[LaneSender, Doorbell]]
_Frame = tuple[int, Piece, int, int, Answered]


class Addressed(Protocol):
    """A partition as frames name it."""

    page: int
    topic_id: bytes
    partition: int


class FollowerLane:
    """One of them."""

    def __init__(self, sender: LaneSender, doorbell: Doorbell) -> None:
        self._sender = sender
        self._doorbell = doorbell
        self._waiting: deque[_Frame] = deque()  # (page, piece, kind, epoch, whom to tell)
        self._written: deque[Answered] = deque()
        self._rung = 0
        self._is_new = False
        self._has_late = False
        self._asides = 0
        """Frames without an answer about which nothing is to be done then."""
        self.waiting_bytes = 0
        self.batch_bytes_max = sender.frame_max - lo.FRAME_BYTES

    def put(self, page: int, piece: Piece, kind: int, epoch: int, done: Answered) -> None:
        """Write a frame, now or as soon as there is room; the piece stays as it is till then."""
        if self._put(page, piece, kind, epoch, done):
            self._is_new = True

    def _put(self, page: int, piece: Piece, kind: int, epoch: int, done: Answered) -> bool:
        """Whether it is written already."""
        if not self._waiting:
            sequence = self._sender.try_write(page, (piece,), len(piece), 0, kind, epoch)
            if sequence is not None:
                self._written.append(done)
                return True
        if len(self._waiting) + len(self._written) > UNANSWERED_MAX:
            raise ResourceLimitError(
                f"{UNANSWERED_MAX} frames wait for writer {self._sender.writer}, which answers none"
            )
        self._waiting.append((page, piece, kind, epoch, done))
        self.waiting_bytes += len(piece)
        return False

    def put_aside(
        self, page: int, piece: Piece, epoch: int, done: Answered, *, is_late: bool
    ) -> None:
        """A control frame whose answer is no reason to wake up. `is_late`: nor is the frame for its
        writer, which gets it with the next one, or by `ring_late`."""
        self._asides += 1
        if self._put(page, piece, lo.KIND_ROLE, epoch, lambda ack: self._aside(done, ack)):
            if is_late:
                self._has_late = True
            else:
                self._is_new = True

    def _aside(self, done: Answered, ack: Ack) -> None:
        self._asides -= 1
        done(ack)

    def push(self) -> None:
        """Write what waits, as far as there is room."""
        waiting = self._waiting
        while waiting:
            page, piece, kind, epoch, done = waiting[0]
            if self._sender.try_write(page, (piece,), len(piece), 0, kind, epoch) is None:
                return
            waiting.popleft()
            self.waiting_bytes -= len(piece)
            self._written.append(done)
            self._is_new = True

    def take(self) -> bool:
        """Tell who was answered; whether anybody was."""
        acks = self._sender.acks()
        for ack in acks:
            self._written.popleft()(ack)
        return bool(acks)

    def ring(self) -> None:
        """Wake its writer, if it sleeps and something new is there. Behind a fence."""
        if self._is_new:
            self._is_new = self._has_late = False
            ticket = self._sender.writer_ticket()
            if ticket and ticket != self._rung:
                self._rung = ticket
                self._doorbell.ring()

    def hurry(self) -> None:
        """Has the next `ring` count what was put aside late, too."""
        self._is_new = self._is_new or self._has_late

    @property
    def has_acks(self) -> bool:
        return self._sender.has_acks()

    @property
    def is_new(self) -> bool:
        return self._is_new

    def publish_sleeping(self, ticket: int) -> None:
        """Its writer is to ring for answers, if there are any to come that somebody waits for."""
        is_awaited = len(self._written) > self._asides or self._asides > ASIDES_MAX
        self._sender.publish_sleeping(ticket if is_awaited else 0)

    def close(self) -> None:
        self._waiting.clear()
        self._sender.mark_closed()
        self._sender.detach()
        self._doorbell.close()


class Lanes:
    """All of them. A page's lane is its writer's (rule 6)."""

    def __init__(self, writers: int, open_lane: Open) -> None:
        self._writers = writers
        self._open = open_lane
        self._lanes: dict[int, FollowerLane] = {}

    def of_page(self, page: int) -> FollowerLane:
        writer = page % self._writers
        lane = self._lanes.get(writer)
        if lane is None:
            lane = self._lanes[writer] = FollowerLane(*self._open(writer))
        return lane

    def order(self, to: Addressed, order: RoleOrder, done: Answered) -> None:
        """Tell a partition's writer what its replica is to do."""
        packed = encode_order(order, to.topic_id, to.partition)
        self.of_page(to.page).put(to.page, packed, lo.KIND_ROLE, order.epoch, done)

    def note(self, to: Addressed, order: RoleOrder, done: Answered, *, is_late: bool) -> None:
        """Tell it what it is to know; the answer may come late. With `is_late` the note may, too:
        with the next frame, or by `ring_late`."""
        packed = encode_order(order, to.topic_id, to.partition)
        lane = self.of_page(to.page)
        lane.put_aside(to.page, packed, order.epoch, done, is_late=is_late)

    @property
    def are_full(self) -> bool:
        """Whether so much waits for room that no more is to come."""
        return any(lane.waiting_bytes > WAITING_MAX for lane in self._lanes.values())

    @property
    def have_acks(self) -> bool:
        return any(lane.has_acks for lane in self._lanes.values())

    def take(self) -> bool:
        """Calls the callbacks of answered frames, then writes waiting ones. Returns whether there
        were any answers."""
        found = False
        for lane in list(self._lanes.values()):
            if lane.take():
                found = True
                lane.push()
        return found

    def ring(self) -> None:
        """Wake writers that sleep and have something new."""
        if any(lane.is_new for lane in self._lanes.values()):
            fence()
            for lane in self._lanes.values():
                lane.ring()

    def ring_late(self) -> None:
        """The same also for notes that could wait."""
        for lane in self._lanes.values():
            lane.hurry()
        self.ring()

    def publish_sleeping(self, ticket: int) -> None:
        for lane in self._lanes.values():
            lane.publish_sleeping(ticket)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
