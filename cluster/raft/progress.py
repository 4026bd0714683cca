"""A leader's knowledge of each follower's log, and its way of sending to them.

| state | sends | left for |
|---|---|---|
| probing | one message with entries at a time | replicating: one is accepted |
| replicating | up to `in_flight_max`, without waiting for answers | probing: one is rejected |
| snapshot | the snapshot, and heartbeats | replicating: it is accepted; probing: it takes long |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

PROBING: Final = "probing"
REPLICATING: Final = "replicating"
SNAPSHOT: Final = "snapshot"


@dataclass(slots=True)
class Progress:
    """`match`: its log is the leader's up to there, on its disk. `next`: what it is sent next."""

    next: int
    heard_at: float
    match: int = 0
    state: str = PROBING
    is_paused: bool = False
    """A probe is under way, until an answer or the next heartbeat."""
    in_flight: deque[int] = field(default_factory=deque)
    """Last indexes of messages without an answer."""
    pending: int = 0
    """The index of the snapshot that is under way, since `sent_at`."""
    sent_at: float = 0.0

    def may_send(self, in_flight_max: int) -> bool:
        if self.state == REPLICATING:
            return len(self.in_flight) < in_flight_max
        return self.state == PROBING and not self.is_paused

    def sent(self, last: int) -> None:
        """Entries up to `last` are under way."""
        if self.state == REPLICATING:
            self.next = last + 1
            self.in_flight.append(last)
        else:
            self.is_paused = True

    def accepted(self, index: int) -> bool:
        """Whether that is news."""
        is_news = index > self.match
        self.match = max(self.match, index)
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        if self.state == PROBING or (self.state == SNAPSHOT and index >= self.pending):
            self.state, self.next, self.is_paused = REPLICATING, self.match + 1, False
            self.in_flight.clear()
        self.next = max(self.next, self.match + 1)
        return is_news

    def rejected(self, index: int, hint: int) -> bool:
        """Takes the rejection of an `Append` behind `index`. Returns whether it is news. A follower
        with less than it had has another disk, or an older copy of it; a late rejection costs a few
        messages."""
        if hint < index <= self.match:
            self.match = hint
            self.probe(hint + 1)
            return True
        if index <= self.match or (self.state == PROBING and index != self.next - 1):
            return False
        self.probe(max(self.match + 1, min(index, hint + 1)))
        return True

    def probe(self, following: int) -> None:
        self.state, self.next, self.is_paused = PROBING, following, False
        self.in_flight.clear()

    def snapshot(self, index: int, now: float) -> None:
        self.state, self.pending, self.sent_at = SNAPSHOT, index, now
        self.in_flight.clear()
