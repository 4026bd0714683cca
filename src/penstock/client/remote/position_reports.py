"""When a gateway is told where remote clients stand, for who looks on at the node.

On the node's host onlookers read it in the client table. Here it is sent after something came or
went, a little later each time while nothing does: a consumer also moves on by what it has. Owns the
times. Used by the carrier's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.client.remote.branches import Branch
from penstock.client.remote.endpoint import Endpoint
from penstock.client.remote.leaders import Brokers
from penstock.cluster.frames import messages as fr

TELL_FIRST: Final = 0.5
TELL_LAST: Final = 8.0
"""Seconds from one look to the next; after the last nothing is looked at until something comes."""


class PositionReports:
    """See the module."""

    def __init__(self) -> None:
        self._pause = TELL_FIRST
        self.due: float | None = None
        """When `tell` has something to do (monotonic)."""

    def stirred(self, now: float) -> None:
        """Something came for a client, or went."""
        self._pause = TELL_FIRST
        if self.due is None or self.due > now + TELL_FIRST:
            self.due = now + TELL_FIRST

    def tell(
        self, now: float, endpoints: Callable[[], Iterable[Endpoint]], brokers: Brokers
    ) -> None:
        """Send what has changed, if it is time for that."""
        if self.due is None or now < self.due:
            return
        for endpoint in endpoints():
            if endpoint.slot is None:
                continue
            slot = endpoint.slot.slot
            positions, dropped, polled = slot.positions(), slot.dropped, slot.polled
            age = max(0, time.monotonic_ns() // 1000 - polled) if polled else None
            for branch in endpoint.branches.values():
                places = _told_there(branch, positions, brokers)
                standing = places, dropped * branch.is_home, polled
                if branch.is_open and standing != branch.told:
                    branch.told = standing
                    branch.send(fr.Positions(branch.number, *standing[:2], age))
        self._pause *= 2
        self.due = now + self._pause if self._pause <= TELL_LAST else None


def _told_there(
    branch: Branch, positions: list[tuple[int, int]], brokers: Brokers
) -> list[tuple[int, int]]:
    """What concerns a broker: in a cluster what it leads, and all where it looks after groups."""
    if branch.broker == fr.NOBODY or branch.serves_groups:
        return positions
    return [place for place in positions if brokers.leader(place[0]) == branch.broker]
