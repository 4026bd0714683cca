"""When a gateway is told where remote clients stand, for who looks on at the node.

On the node's host onlookers read it in the client table. Here it is sent after something came or
went, a little later each time while nothing does: a consumer also moves on by what it has. Owns the
times and what was told last. Used by the carrier's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.remote.endpoint import Endpoint

TELL_FIRST: Final = 0.5
TELL_LAST: Final = 8.0
"""Seconds from one look to the next; after the last nothing is looked at until something comes."""

_Told = tuple[list[tuple[int, int]], int]


class Onlookers:
    """See the module."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[Endpoint, tuple[int, _Told]] = WeakKeyDictionary()
        self._pause = TELL_FIRST
        self.due: float | None = None
        """When `tell` has something to do (monotonic)."""

    def stirred(self, now: float) -> None:
        """Something came for a client, or went."""
        self._pause = TELL_FIRST
        if self.due is None or self.due > now + TELL_FIRST:
            self.due = now + TELL_FIRST

    def tell(
        self, now: float, endpoints: Iterable[Endpoint], send: Callable[[msgspec.Struct], object]
    ) -> None:
        """Send what has changed, if it is time for that."""
        if self.due is None or now < self.due:
            return
        for endpoint in endpoints:
            if endpoint.slot is None:
                continue
            slot = endpoint.slot.slot
            standing = slot.positions(), slot.dropped
            number, told = self._told.get(endpoint, (-1, ([], 0)))
            if standing != (told if number == endpoint.number else ([], 0)):
                self._told[endpoint] = endpoint.number, standing
                send(fr.Positions(endpoint.number, *standing))
        self._pause *= 2
        self.due = now + self._pause if self._pause <= TELL_LAST else None
