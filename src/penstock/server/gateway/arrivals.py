"""Limits how often one address may connect: its further connections wait.

Pure. An address that connects more often waits for a moment, and then again: nobody is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.cluster.quotas import Bucket

RATE_MIN: Final = 500
"""Connections a second of one address, and so many at once, where there may be fewer in all. Else
it is as many as there may be: all that an address had may come back at once."""
HELD: Final = 0.25
"""Seconds for which an address waits at least that has made more."""
ADDRESSES_MAX: Final = 1024
"""Addresses that are counted: those that connected last."""
HELD_MAX: Final = 64
"""Addresses that wait at one time."""


class Arrivals:
    """The connection rate of each address. `most`: connections that there may be."""

    def __init__(self, most: int) -> None:
        self._rate = max(most, RATE_MIN)
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._held: dict[str, float] = {}

    @property
    def held(self) -> list[str]:
        """The addresses that wait."""
        return list(self._held)

    def came(self, address: str, now: float) -> bool:
        """A connection of that address. Whether it begins to wait by this."""
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = Bucket(now, self._rate)
            if len(self._buckets) > ADDRESSES_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(address)
        wait = bucket.take(now, 1)
        if not wait or (address not in self._held and len(self._held) >= HELD_MAX):
            return False
        begins = address not in self._held
        self._held[address] = now + max(wait, HELD)
        return begins

    def let_go(self, now: float) -> bool:
        """End the waiting of those whose time is over. Whether there were any."""
        over = [address for address, until in self._held.items() if until <= now]
        for address in over:
            del self._held[address]
        return bool(over)
