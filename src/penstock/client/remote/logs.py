"""A remote client's requests about logs, which its node's gateway answers from the logs there.

The methods are those of `penstock.client.consumer.logs.NodeLogs`. `logs_of` chooses between these
and those of this host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from penstock.client.consumer.logs import LocalLogs, LogHandle, NodeLogs, PollAge
from penstock.client.session import Session
from penstock.ipc import lookups as lk
from penstock.ipc.hostslots import DiskRoom
from penstock.ipc.state import StatePage
from penstock.ipc.waits import Waits

T = TypeVar("T")


class FarLogs:
    """See `NodeLogs` of `penstock.client.consumer.logs`. A request is given up after `timeout`
    seconds."""

    def __init__(self, session: Session, timeout: float) -> None:
        self._session = session
        self._timeout = timeout

    def refreshing(self, pages: Collection[StatePage]) -> Waits[None]:
        for some in _parts([page.index for page in pages], lk.PAGES_AT_ONCE):
            yield from self._looking_at(some)

    def _looking_at(self, pages: list[int]) -> Waits[lk.PagesLookedUp]:
        """Asks about pages. The carrier publishes them before it hands on the answer."""
        request = lk.LookUpPages(pages)
        return self._session.requesting(request, lk.PagesLookedUp, self._timeout)

    def finding_time(self, log: LogHandle, timestamp: int, *, committed: bool) -> Waits[int | None]:
        start = 0
        while True:
            request = lk.LookUpTime(
                log.page.index, log.topic_id, log.partition, max(0, timestamp), committed, start
            )
            found = yield from self._session.requesting(request, lk.TimeLookedUp, self._timeout)
            if not found.again or found.offset is None or found.offset <= start:
                return found.offset
            start = found.offset

    def dating(
        self, places: Sequence[tuple[LogHandle, int]], budget: float
    ) -> Waits[list[float | None]]:
        times: list[float | None] = []
        for some in _parts([_place(*place) for place in places], lk.PLACES_AT_ONCE):
            request = lk.LookUpAppends(some)
            found = yield from self._session.requesting(request, lk.AppendsLookedUp, self._timeout)
            times += found.times
        return times

    def sizing(self, log: LogHandle, before: int) -> Waits[tuple[int, int]]:
        request = lk.LookUpSegments(_place(log, before))
        found = yield from self._session.requesting(request, lk.SegmentsLookedUp, self._timeout)
        return found.segments, found.nbytes

    def positioning(self, clients: Sequence[tuple[int, int]]) -> Waits[list[PollAge]]:
        polled: list[PollAge] = []
        for some in _parts([*clients], lk.CLIENTS_AT_ONCE):
            request = lk.LookUpPositions(some)
            expect = lk.PositionsLookedUp
            found = yield from self._session.requesting(request, expect, self._timeout)
            ages = found.poll_ages or [None] * len(some)  # a gateway of before tells none
            polled += [
                PollAge(dict(places), None if age is None else age / 1e6)
                for places, age in zip(found.positions, ages, strict=True)
            ]
        return polled

    def looking_at_disk(self) -> Waits[DiskRoom]:
        return DiskRoom(*(yield from self._looking_at([])).disk)


def logs_of(session: Session, timeout: float) -> NodeLogs:
    """Returns the logs of a session's node. Requests are bounded by `timeout` seconds."""
    return LocalLogs(session) if session.far is None else FarLogs(session, timeout)


def _place(log: LogHandle, offset: int) -> lk.LogPlace:
    return lk.LogPlace(log.page.index, log.topic_id, log.partition, offset)


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
