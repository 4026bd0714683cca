"""Reports positions of remote clients to their gateways, for tools that watch the node.

On the node's host such tools read them in the client table. Here they are sent after something came
or went. While nothing does, each report waits a little longer: a consumer also moves on by what it
has. Owns the times. Used by the carrier's thread only.
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
    """The times of position reports, and the reports."""

    def __init__(self) -> None:
        self._pause = TELL_FIRST
        self.due: float | None = None
        """When `tell` has something to do (monotonic)."""

    def stirred(self, now: float) -> None:
        """Notes that records came for a client, or went."""
        self._pause = TELL_FIRST
        if self.due is None or self.due > now + TELL_FIRST:
            self.due = now + TELL_FIRST

    def tell(
        self, now: float, endpoints: Callable[[], Iterable[Endpoint]], brokers: Brokers
    ) -> None:
        """Sends the changed positions, if it is time for that."""
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
    """Returns the positions that concern a broker: of the partitions it leads, or all where it
    coordinates groups."""
    if branch.broker == fr.NOBODY or branch.serves_groups:
        return positions
    return [place for place in positions if brokers.leader(place[0]) == branch.broker]
