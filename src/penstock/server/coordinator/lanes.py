"""The coordinator as a producer of its own node: a lane to each writer, one doorbell for answers.

A batch without room in its lane waits here, in order. Writers are woken once a turn of the event
loop, however much was sent in it. Batches can be made as late as that. Owns the lanes, and knows
which answer belongs to which batch; never looks into a batch. A writer's death is not seen here:
the lane outlives it, and answers only come later. In a cluster an answer waits until what it tells
of is committed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.core.errors import PenstockError, ResourceLimitError
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.doorbell import BACKOFF_LAST, Doorbell, fence
from penstock.ipc.lane import Ack, LaneSender, Piece
from penstock.ipc.liveness import open_pidfd, start_time
from penstock.ipc.shm import Region
from penstock.server.coordinator.committed import CommittedAnswers
from penstock.server.node.attached_client import AttachedClient
from penstock.server.node.lane_grants import Grants
from penstock.server.node.tables import Tables
from penstock.server.process.writers import Supervisor

logger = logging.getLogger("penstock.coordinator")

QUEUED_MAX: Final = 10_000
QUEUED_BYTES_MAX: Final = 16 << 20
"""Most bytes that wait for room in the lanes; beyond that requests are refused."""

Answered = Callable[[Ack], None]


class Letter(NamedTuple):
    """A batch image that waits for room, and the caller that gets its answer."""

    page: int
    pieces: tuple[Piece, ...]
    length: int
    flags: int
    answered: Answered


class _Link:
    """One lane: what flies in it by lane sequence, and what waits for room."""

    __slots__ = ("bell", "flights", "rung", "sender", "waiting")

    def __init__(self, sender: LaneSender, bell: Doorbell) -> None:
        self.sender = sender
        self.bell = bell
        self.flights: dict[int, Answered] = {}
        self.waiting: deque[Letter] = deque()
        self.rung = 0

    def write(self, letter: Letter) -> bool:
        sequence = self.sender.try_write(letter.page, letter.pieces, letter.length, letter.flags)
        if sequence is None:
            return False
        self.flights[sequence] = letter.answered
        return True

    def wake(self) -> None:
        fence()
        ticket = self.sender.writer_ticket()
        if ticket and ticket != self.rung:
            self.rung = ticket
            self.bell.ring()


class Mailbox:
    """`woken` is called after each look at the answers; `lost` when a lane was dropped: nothing is
    known then of what flew in it. `is_waited`: somebody waits for more than answers. `replicated`:
    the tables of a broker of a cluster; answers wait there until they are committed."""

    def __init__(
        self,
        grants: Grants,
        supervisor: Supervisor,
        writers: int,
        producer_id: int,
        *,
        woken: Callable[[], None],
        lost: Callable[[str], None],
        is_waited: Callable[[], bool],
        replicated: Tables | None = None,
    ) -> None:
        self._grants = grants
        self._supervisor = supervisor
        self._writers = writers
        self._woken = woken
        self._lost = lost
        self._is_waited = is_waited
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, _Link] = {}
        self._unrung: set[_Link] = set()
        self._gathering: list[Callable[[], None]] = []
        self._is_turn = False
        """Whether `_end_turn` is to come."""
        self._belt: asyncio.TimerHandle | None = None
        self._ticket = time.monotonic_ns()
        self._queued = self._queued_bytes = 0
        pid = os.getpid()
        client = AttachedClient(
            lo.KIND_PRODUCER, pid, start_time(pid) or 0, open_pidfd(pid), "coordinator"
        )
        client.producer_id = producer_id
        client.connection = self
        self._client = client
        self.committed = (
            None
            if replicated is None
            else CommittedAnswers(replicated, supervisor, client.doorbell)
        )
        if self.committed is not None:
            self.committed.publish_sleeping(self._ticket)
        self._loop.add_reader(client.doorbell.fileno(), self.look)

    # --- out ---
    def check_room(self) -> None:
        """Refuses while more waits than is good. Asked before something is decided."""
        if self.committed is not None and self.committed.count >= QUEUED_MAX:
            raise ResourceLimitError(
                f"{self.committed.count} batches of the coordinator wait to be committed "
                f"(QUEUED_MAX={QUEUED_MAX}): too few replicas are in sync, ask again later"
            )
        if self._queued >= QUEUED_MAX or self._queued_bytes >= QUEUED_BYTES_MAX:
            raise ResourceLimitError(
                f"{self._queued} decisions of {self._queued_bytes} bytes wait for the writer of "
                f"the coordinator's log (QUEUED_MAX={QUEUED_MAX}, QUEUED_BYTES_MAX="
                f"{QUEUED_BYTES_MAX}): the disk may be full or slow, ask again later"
            )

    @property
    def in_flight(self) -> int:
        """Batches without an answer."""
        held = 0 if self.committed is None else self.committed.count
        return self._queued + held + sum(len(link.flights) for link in self._links.values())

    def send(
        self,
        page: int,
        pieces: Iterable[Piece],
        answered: Answered,
        *,
        sync: bool = False,
        span: int = 1,
    ) -> None:
        """Put a batch of `span` offsets for that page into its writer's lane, now or when there is
        room.

        Raises `PenstockError` when no lane can be made."""
        link = self._link(page % self._writers)
        parts = tuple(pieces)
        if self.committed is not None:
            answered = self.committed.after(page, span, answered)
        flags = lo.FRAME_SYNC if sync else 0
        letter = Letter(page, parts, sum(map(len, parts)), flags, answered)
        if link.waiting or not link.write(letter):
            link.waiting.append(letter)
            self._queued += 1
            self._queued_bytes += letter.length
        self._ring(link)
        if self._belt is None:
            self._belt = self._loop.call_later(BACKOFF_LAST, self._tighten)

    def _link(self, writer: int) -> _Link:
        link = self._links.get(writer)
        if link is None:
            lane, fd = self._grants.open(self._client, ms.OpenLane(writer), self._writers)
            sender = LaneSender(Region.of_fd(fd), lane.name)
            link = _Link(sender, self._supervisor.ensure(writer).doorbell)
            sender.publish_sleeping(self._ticket)
            self._links[writer] = link
        return link

    def frame_max(self, page: int) -> int:
        """The longest batch that can be sent to that page."""
        return self._link(page % self._writers).sender.frame_max - lo.FRAME_BYTES

    def gather(self, send: Callable[[], None]) -> None:
        """Calls `send` when this turn of the loop is over, just before writers are woken."""
        self._gathering.append(send)
        self._end_turn_soon()

    def _ring(self, link: _Link) -> None:
        """Wakes that writer when this turn of the loop is over."""
        self._unrung.add(link)
        self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._is_turn:
            self._is_turn = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Sends what was gathered, then wakes the writers that got something."""
        gathering, self._gathering = self._gathering, []
        try:
            for send in gathering:
                send()
        finally:
            self._is_turn = False
            for link in self._unrung:
                link.wake()
            self._unrung.clear()

    # --- in ---
    def look(self) -> None:
        """Take answers in, refill lanes. Called by the doorbell, and now and then while anything is
        waited for."""
        self._client.doorbell.clear()
        self._ticket += 1
        for link in self._links.values():
            link.sender.publish_sleeping(self._ticket)
        if self.committed is not None:
            self.committed.publish_sleeping(self._ticket)
        fence()
        for link in list(self._links.values()):
            self._take(link)
        if self.committed is not None:
            self.committed.look()
        self._woken()

    def _take(self, link: _Link) -> None:
        acks = link.sender.acks()
        if len(acks) == lo.ACKS_MAX:
            self._ring(link)  # it may sleep until there is room for its answers
        answers = [(link.flights.pop(ack.sequence, None), ack) for ack in acks]
        while link.waiting and link.write(link.waiting[0]):
            letter = link.waiting.popleft()
            self._queued -= 1
            self._queued_bytes -= letter.length
            self._ring(link)
        for answered, ack in answers:
            if answered is not None:
                answered(ack)

    def _tighten(self) -> None:
        """The belt: whatever was missed is found within half a second."""
        self._belt = None
        self.look()
        if self._belt is None and (self.in_flight or self._is_waited()):
            self._belt = self._loop.call_later(BACKOFF_LAST, self._tighten)

    # --- a lane that was dropped: the face of a connection, for `Grants.dropped` ---
    def refuse(self, error: str, message: str) -> None:
        self._let_go()
        self._lost(f"{error}: {message}")

    def hang_up(self) -> None:
        """There is no socket."""

    def _let_go(self) -> None:
        """Forgets all lanes. Those that still exist are found again by the next `send`."""
        for link in self._links.values():
            link.sender.detach()
        self._links.clear()
        self._unrung.clear()
        self._gathering.clear()
        self._queued = self._queued_bytes = 0

    # --- the end ---
    def close(self, *, retire: bool) -> None:
        """Lets go of everything. `retire`: the writers drain the lanes, which then go."""
        if self._client.pidfd < 0:
            return
        if self._belt is not None:
            self._belt.cancel()
        self._loop.remove_reader(self._client.doorbell.fileno())
        if self.committed is not None:
            self.committed.close()
        for link in self._links.values():
            link.sender.mark_closed()
        self._let_go()
        if retire:
            try:
                self._grants.retire(self._client)
            except PenstockError as error:
                logger.warning("the coordinator's lanes are left to the next node: %s", error)
        os.close(self._client.pidfd)
        self._client.pidfd = -1
        self._client.doorbell.close()
