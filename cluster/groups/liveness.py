"""When members were last heard of, and what is due when. All of it is volatile.

Nothing here is in a record, and it is safe to lose: after a reload each member counts as
disconnected from the first `tick` on, so that it has its whole session timeout to come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.cluster.groups.records import Member

Key = tuple[str, str]
"""(group, member id)."""


@dataclass(slots=True)
class MemberSession:
    """`away_since`: None while connected."""

    away_since: float | None
    last_request: float

    def end(self, member: Member) -> tuple[float, str] | None:
        """When this member's time is up, and why; None while nothing runs against it."""
        found = []
        if self.away_since is not None:
            found.append((self.away_since + member.session_timeout, "session_timeout"))
        if member.processing_timeout is not None:
            found.append((self.last_request + member.processing_timeout, "processing_timeout"))
        return min(found, default=None)


class Timers:
    """Times by key, one for each. A key with a later time still comes at the earlier one, and the
    caller checks whether it is due. So a request of a member costs no heap operation."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def schedule(self, key: Key, at: float) -> None:
        if at < self._at.get(key, float("inf")):
            self._at[key] = at
            heappush(self._heap, (at, key))

    def forget(self, key: Key) -> None:
        self._at.pop(key, None)
        self._skip()

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, keys_max: int) -> list[Key]:
        """Takes keys whose time has come, those first that came first."""
        found: list[Key] = []
        while self._heap and self._heap[0][0] <= now and len(found) < keys_max:
            key = heappop(self._heap)[1]
            del self._at[key]
            self._skip()
            found.append(key)
        return found

    def _skip(self) -> None:
        """Removes outdated entries from the top of the heap."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)


class Liveness:
    """The pulse of each member. `unseen`: members that were replayed and not heard of since."""

    def __init__(self) -> None:
        self._pulses: dict[Key, MemberSession] = {}
        self._unseen: dict[Key, None] = {}
        self.timers = Timers()

    def replayed(self, key: Key) -> None:
        if key not in self._pulses:
            self._unseen[key] = None

    def forget(self, key: Key) -> None:
        self._pulses.pop(key, None)
        self._unseen.pop(key, None)
        self.timers.forget(key)

    def heard(self, now: float, key: Key, member: Member) -> None:
        """A request, or its connection is there again."""
        pulse = self._pulses.get(key)
        if pulse is None:
            pulse = self._begin(key, MemberSession(None, now))
        pulse.away_since = None
        pulse.last_request = now
        if member.processing_timeout is not None:
            self._schedule(key, pulse, member)

    def lost(self, now: float, key: Key, member: Member) -> None:
        """Its connection ended."""
        pulse = self._pulses.get(key) or self._begin(key, MemberSession(now, now))
        if pulse.away_since is None:
            pulse.away_since = now
        self._schedule(key, pulse, member)

    def is_connected(self, key: Key) -> bool:
        pulse = self._pulses.get(key)
        return pulse is not None and pulse.away_since is None

    def unseen(self) -> tuple[Key, ...]:
        return tuple(self._unseen)

    def expired(self, now: float, key: Key, member: Member) -> str | None:
        """Why this member's time is up, None if it is not: then it is looked at again later."""
        pulse = self._pulses[key]
        end = pulse.end(member)
        if end is not None and end[0] <= now:
            return end[1]
        self._schedule(key, pulse, member)
        return None

    def deadline(self) -> float | None:
        """0 while members are unseen: `tick` starts their time."""
        return 0.0 if self._unseen else self.timers.next()

    def _begin(self, key: Key, pulse: MemberSession) -> MemberSession:
        self._unseen.pop(key, None)
        self._pulses[key] = pulse
        return pulse

    def _schedule(self, key: Key, pulse: MemberSession, member: Member) -> None:
        if (end := pulse.end(member)) is not None:
            self.timers.schedule(key, end[0])
