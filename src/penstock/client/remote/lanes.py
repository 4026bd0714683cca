"""A lane whose writer is elsewhere: private memory, drained by the carrier ahead of its head.

A sent frame stays in the lane until its answer comes; only then head moves. Frames of one lane may
go to several brokers, which answer when they can: the answers are kept, and handed on in the order
of the lane. After a lost connection it all begins again at head. Producer id, epoch and sequence
make the repetition exact (rule 2).

A `Flow` leads to one writer of one gateway: the batches in flight there, in order, by numbers that
the gateway counts too.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.client.remote.connection import Wire
from penstock.client.remote.mirror import memory
from penstock.cluster.frames import messages as fr
from penstock.core.errors import SENT_BACK, ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc.doorbell import fence
from penstock.ipc.lane import Ack, Frame, LaneIdentity, LaneReceiver, format_lane

SEND_PASS_BYTES: Final = 2 << 20
"""Bytes that one lane sends before others get their turn."""

_tickets = itertools.count(time.monotonic_ns())
_numbers = itertools.count()


class AnswerError(Exception):
    """The gateway answered what it was not sent."""


class Flight:
    """One frame under way, and its answer once there is one."""

    __slots__ = ("answer", "frame", "lane")

    def __init__(self, lane: MirroredLane, frame: Frame) -> None:
        self.lane = lane
        self.frame = frame
        self.answer: Ack | None = None


class MirroredLane:
    """A lane in private memory to a remote writer. Its sleeping ticket is not published before each
    sleep of the carrier. It is *armed* whenever there is nothing to send, and stays so until the
    producer rang."""

    def __init__(self, writer: int, capacity: int, producer_id: int) -> None:
        self.writer = writer
        self.name = f"remote-{producer_id}-{writer}-{next(_numbers)}"
        self.fd, region = memory("lane", lo.lane_bytes(capacity))
        pid = os.getpid()
        format_lane(region, LaneIdentity(
            capacity, producer_id, 0, writer, pid, liveness.start_time(pid) or 0, 0,
        ))  # fmt: skip
        self._receiver = LaneReceiver(region, self.name, 0)
        self._ready: deque[Frame] = deque()  # looked at, and not sent yet
        self._sent: deque[Flight] = deque()
        self.sent_back: dict[int, float] = {}
        """Pages of batches that were sent back for want of a leader, or of replicas, with the time
        (monotonic). Batches that come before a `FRAME_AGAIN` were meant to follow those."""
        self.in_flight = 0
        """Bytes sent whose answers were not handed on."""
        self._rung = 0
        self._again_below = 0

    def was_sent_before(self, frame: Frame) -> bool:
        """Returns whether it went by a connection that was lost before its answer came."""
        return frame.sequence < self._again_below

    def peek(self) -> Frame | None:
        """Returns the next frame to send. Raises `LaneCorruptError`."""
        ready = self._ready
        if not ready:
            sent = self._sent
            ready.extend(
                self._receiver.frames_behind(
                    sent[-1].frame, len(sent), lo.ACKS_MAX, SEND_PASS_BYTES
                )
                if sent
                else self._receiver.frames(lo.ACKS_MAX, SEND_PASS_BYTES)
            )
        return ready[0] if ready else None

    def sends(self) -> Flight:
        """Moves the frame that `peek` returned to those in flight."""
        frame = self._ready.popleft()
        flight = Flight(self, frame)
        self._sent.append(flight)
        self.in_flight += len(frame.batch)
        return flight

    def send_back(self) -> None:
        """Answers the frame that `peek` returned as one without a leader."""
        frame = self._ready.popleft()
        flight = Flight(self, frame)
        flight.answer = Ack(frame.sequence, -1, 0, int(ErrorCode.NOT_LEADER), 0)
        self._sent.append(flight)
        self.in_flight += len(frame.batch)

    def arm(self) -> None:
        """Asks for a ring with the next frame; the caller looks once more after this."""
        self._receiver.publish_sleeping(next(_tickets))
        fence()

    def settle(self) -> int:
        """Hands answers on, as far as they go without a gap; returns how many, without batches sent
        back."""
        sent = self._sent
        done: list[Frame] = []
        known: list[Ack] = []
        while sent:
            answer = sent[0].answer
            if answer is None:
                break
            known.append(answer)
            done.append(sent.popleft().frame)
        if done:
            self.in_flight -= sum(len(frame.batch) for frame in done)
            self._receiver.finish(done, known)
        return sum(answer.error not in SENT_BACK for answer in known)

    def rewind(self) -> None:
        """Prepares to send again, after a lost connection, what has no answer that was
        handed on."""
        if self._sent:
            self._again_below = max(self._again_below, self._sent[-1].frame.sequence + 1)
        self._sent.clear()
        self._ready.clear()
        self.in_flight = 0

    def sleeper(self) -> bool:
        """Returns whether its producer sleeps, once a sleep; ask after a fence."""
        ticket = self._receiver.producer_ticket()
        if not ticket or ticket == self._rung:
            return False
        self._rung = ticket
        return True

    def close(self) -> None:
        os.close(self.fd)
        self.rewind()
        self._receiver.detach()


class Flow:
    """The batches in flight to one writer of one gateway. `endpoint`: the number of the
    attachment's branch at that gateway. `window`: the most bytes without an answer."""

    __slots__ = ("_in_flight", "_next", "_window", "endpoint", "flights", "wire", "writer")

    def __init__(self, wire: Wire, endpoint: int, writer: int, window: int) -> None:
        self.wire = wire
        self.endpoint = endpoint
        self.writer = writer
        self._window = window
        self.flights: deque[Flight] = deque()
        self._in_flight = 0
        self._next = -1  # the first one is numbered as in its lane

    def takes(self, size: int) -> bool:
        """Returns whether a batch of so many bytes may go now. It always may where none is in
        flight."""
        flights = self.flights
        return not flights or (
            self._in_flight + size <= self._window and len(flights) < lo.ACKS_MAX
        )

    def sends(self, flight: Flight) -> int:
        """Adds a batch in flight and returns its number."""
        frame = flight.frame
        number = frame.sequence if self._next < 0 else self._next
        self._next = number + 1
        self.flights.append(flight)
        self._in_flight += len(frame.batch)
        return number

    def answer(self, acks: Sequence[fr.Ack]) -> list[tuple[Flight, Ack]]:
        """Returns the flights that these answers are for. Answers that came before are skipped."""
        flights = self.flights
        due = self._next - len(flights)
        found: list[tuple[Flight, Ack]] = []
        for ack in acks:
            number = ack.sequence
            if number < due:
                continue
            if number > due or not flights:
                wanted = f"{due} is due" if flights else "none is under way"
                raise AnswerError(f"an answer to batch {number} for its writer, where {wanted}")
            due += 1
            flight = flights.popleft()
            frame = flight.frame
            self._in_flight -= len(frame.batch)
            answer = Ack(
                frame.sequence, ack.base_offset, ack.append_timestamp, ack.error, ack.leader_epoch
            )
            found.append((flight, answer))
        return found
