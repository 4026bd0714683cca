"""The cursors of one attachment in a cluster: each at the broker that leads its partition.

    wanted ──branch at the leader──> placed ──other leader, or lost──> wanted, from where it came to

The consumer asks once, and its request goes to one leader after the other: each time from the
offset and the leader epoch that it has got to, with the credit that is left. The new leader finds
out whether its log is the one that was read. Each of them knows a cursor by another number, so that
nothing late is taken for the present one's. Used by the carrier's thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from penstock.client.remote.branches import Branch, Reach
from penstock.client.remote.fetcher import RemoteFetcher
from penstock.client.remote.leaders import Brokers
from penstock.cluster.frames import messages as fr
from penstock.core.errors import NotLeaderError


class _Reading:
    """`fetch`: how it would be asked for now. `credit`: what is left, below 0 if too much came.
    `since`: when it was wanted last (monotonic)."""

    __slots__ = ("branch", "credit", "fetch", "number", "since")

    def __init__(self, fetch: fr.Fetch) -> None:
        self.fetch = fetch
        self.since = 0.0
        self.credit = fetch.credit
        self.branch: Branch | None = None
        self.number = -1


class FetchCursors:
    """The cursors of one attachment in a cluster. `far` has the consumer's ends. `reach` finds the
    branch to a broker."""

    def __init__(self, far: RemoteFetcher, brokers: Brokers, reach: Reach) -> None:
        self._far = far
        self._brokers = brokers
        self._reach = reach
        self._numbers = itertools.count()
        self._cursors: dict[int, _Reading] = {}  # by the consumer's number
        self._placed: dict[int, _Reading] = {}  # by the broker's
        self._wanted: dict[_Reading, None] = {}

    @property
    def are_waiting(self) -> bool:
        """Returns whether some have no known broker, or none that can be asked yet."""
        return bool(self._wanted)

    # --- what the consumer wants ---
    def take(self, message: fr.Fetch | fr.More | fr.Drop, now: float) -> None:
        reading = self._cursors.get(message.cursor)
        if isinstance(message, fr.Fetch):
            if reading is not None:
                self._displace(reading)
            reading = self._cursors[message.cursor] = _Reading(message)
            self._want(reading, now)
            self.pump(now)
        elif reading is None:
            return
        elif isinstance(message, fr.More):
            reading.credit += message.credit
            if reading.branch is not None:
                reading.branch.send(fr.More(reading.branch.number, reading.number, message.credit))
        else:
            del self._cursors[message.cursor]
            self._displace(reading)
            self._wanted.pop(reading, None)

    def pump(self, now: float) -> None:
        """Opens the waiting cursors that have a leader to ask."""
        for reading in list(self._wanted):
            broker = self._brokers.settled(reading.fetch.page, now, now - reading.since)
            branch = None
            if broker != fr.NOBODY:
                branch = self._reach(broker)
            if branch is None:
                continue
            del self._wanted[reading]
            reading.branch, reading.number = branch, next(self._numbers)
            self._placed[reading.number] = reading
            credit = min(max(0, reading.credit), fr.CREDIT_MAX)
            branch.send(msgspec.structs.replace(
                reading.fetch, endpoint=branch.number, cursor=reading.number, credit=credit
            ))  # fmt: skip

    # --- what brokers say ---
    def fetched(self, branch: Branch, message: fr.Fetched, size: int) -> int | None:
        """Moves a cursor behind batches of so many bytes. Returns the consumer's number of it; None
        where it is not there any more."""
        reading = self._placed.get(message.cursor)
        if reading is None or reading.branch is not branch:
            return None
        fetch = reading.fetch
        epoch = fetch.leader_epoch if message.leader_epoch < 0 else message.leader_epoch
        reading.fetch = msgspec.structs.replace(
            fetch, offset=message.next_offset, leader_epoch=epoch
        )
        reading.credit -= size
        self._brokers.trust(fetch.page)
        return fetch.cursor

    def failed(self, branch: Branch, message: fr.CursorFailed, now: float) -> bool:
        """Handles the end of a cursor. True: the consumer was told."""
        reading = self._placed.get(message.cursor)
        if reading is None or reading.branch is not branch:
            return False
        del self._placed[message.cursor]
        reading.branch = None
        if message.error == NotLeaderError.__name__:
            self._brokers.doubt(reading.fetch.page, branch.broker, now)
            self._want(reading, now)
            return False
        del self._cursors[reading.fetch.cursor]
        self._far.fail(reading.fetch.cursor, message)
        return True

    # --- brokers that come and go ---
    def left(self, branch: Branch, now: float) -> None:
        """Moves the cursors of a branch that is over."""
        self._move(lambda reading: reading.branch is branch, now)

    def led_otherwise(self, now: float) -> None:
        """Moves cursors after a change of leaders. Those of a partition without a leader stay: the
        broker before knows better, or ends them."""
        leader = self._brokers.leader

        def is_moved(reading: _Reading) -> bool:
            broker, branch = leader(reading.fetch.page), reading.branch
            return branch is not None and broker not in (fr.NOBODY, branch.broker)

        self._move(is_moved, now)

    def refused(self, broker: int, error: str, message: str) -> bool:
        """Fails the cursors that wait for a branch that this broker refused. Returns whether there
        were any."""
        leader = self._brokers.leader
        found = [each for each in self._wanted if leader(each.fetch.page) == broker]
        for reading in found:
            fetch = reading.fetch
            del self._wanted[reading], self._cursors[fetch.cursor]
            said = fr.CursorFailed(fetch.endpoint, fetch.cursor, fetch.offset, error, message)
            self._far.fail(fetch.cursor, said)
        return bool(found)

    def _move(self, which: Callable[[_Reading], bool], now: float) -> None:
        for reading in [each for each in self._placed.values() if which(each)]:
            self._displace(reading)
            self._want(reading, now)

    def _want(self, reading: _Reading, now: float) -> None:
        reading.since = now
        self._wanted[reading] = None

    def _displace(self, reading: _Reading) -> None:
        """Removes a cursor from its broker: nothing more comes from there."""
        branch, reading.branch = reading.branch, None
        if branch is not None:
            del self._placed[reading.number]
            branch.send(fr.Drop(branch.number, reading.number))
