"""A lane whose writer is elsewhere: private memory, drained by the carrier ahead of its head.

What is sent stays in the lane until its answer comes; only then head moves. After a lost connection
it all begins again at head: producer id, epoch and sequence make the repetition exact (rule 2).
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc.doorbell import fence
from penstock.ipc.lane import Ack, Frame, LaneIdentity, LaneReceiver, format_lane
from penstock.remote.mirror import memory

SEND_PASS_BYTES: Final = 2 << 20
"""What one lane sends before others get their turn."""

_tickets = itertools.count(time.monotonic_ns())
_numbers = itertools.count()


class AnswerError(Exception):
    """The gateway answered what it was not sent."""


class MirroredLane:
    """See the module. Its sleeping ticket is not published before each sleep of the carrier: it is
    *armed* whenever there is nothing to send, and stays so until the producer rang."""

    def __init__(self, writer: int, capacity: int, producer_id: int) -> None:
        self.writer = writer
        self.name = f"remote-{producer_id}-{writer}-{next(_numbers)}"
        self.fd, region = memory("lane", lo.lane_bytes(capacity))
        pid = os.getpid()
        format_lane(region, LaneIdentity(
            capacity, producer_id, 0, writer, pid, liveness.start_time(pid) or 0, 0,
        ))  # fmt: skip
        self._receiver = LaneReceiver(region, self.name, 0)
        self._sent: deque[Frame] = deque()
        self.in_flight = 0
        """Bytes sent and not answered."""
        self._rung = 0

    def next_frames(self, window: int) -> list[Frame]:
        """What is to be sent now: as far as `window` bytes go, at least one if none is under way.
        Raises `LaneCorruptError`."""
        sent = self._sent
        if sent:
            room = min(window - self.in_flight, SEND_PASS_BYTES)
            if room <= 0:
                return []
            found = self._receiver.frames_behind(sent[-1], len(sent), lo.ACKS_MAX, room)
        else:
            room = min(window, SEND_PASS_BYTES)
            found = self._receiver.frames(lo.ACKS_MAX, room)
        total = self.in_flight
        for count, frame in enumerate(found):
            size = len(frame.batch)
            if total and total + size > window:
                del found[count:]
                break
            total += size
        return found

    def sends(self, frame: Frame) -> None:
        """This one, the next, is under way."""
        self._sent.append(frame)
        self.in_flight += len(frame.batch)

    def arm(self) -> None:
        """Ask to be rung for what comes from now on; look once more after this."""
        self._receiver.publish_sleeping(next(_tickets))
        fence()

    def answer(self, acks: Sequence[fr.Ack]) -> int:
        """Hand answers on, in order; how many were new. Those that came before say nothing new."""
        sent = self._sent
        known: list[Ack] = []
        for ack in acks:
            if len(known) == len(sent):
                if (sent and ack.sequence <= sent[-1].sequence) or ack.sequence < self.due:
                    continue
                raise AnswerError(f"an answer to batch {ack.sequence} of {self.name}, never sent")
            due = sent[len(known)].sequence
            if ack.sequence > due:
                raise AnswerError(
                    f"an answer to batch {ack.sequence} of {self.name} where {due} is due"
                )
            if ack.sequence == due:
                known.append(Ack(*_fields(ack)))
        if not known:
            return 0
        done = [sent.popleft() for _ in known]
        self.in_flight -= sum(len(frame.batch) for frame in done)
        self._receiver.finish(done, known)
        return len(known)

    @property
    def due(self) -> int:
        """The sequence of the first frame without an answer."""
        return self._receiver.next_sequence

    def rewind(self) -> None:
        """The connection is lost: what has no answer is sent again."""
        self._sent.clear()
        self.in_flight = 0

    def sleeper(self) -> bool:
        """Whether its producer sleeps, told once a sleep; ask after a fence."""
        ticket = self._receiver.producer_ticket()
        if not ticket or ticket == self._rung:
            return False
        self._rung = ticket
        return True

    def close(self) -> None:
        os.close(self.fd)
        self._sent.clear()
        self._receiver.detach()


def _fields(ack: fr.Ack) -> tuple[int, int, int, int, int]:
    return (
        ack.sequence, ack.base_offset, ack.append_timestamp, ack.error, ack.leader_epoch
    )  # fmt: skip
