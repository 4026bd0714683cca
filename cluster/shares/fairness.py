"""Turns of tenants: who has the fewest leased records gets the next one.

A record's tenant is known by a hash, as its key is; records without one are one tenant. Owns which
ready records each tenant has, and how many leased ones. Both follow from the window and the hashes,
so that a new coordinator takes the same turns.
"""

from __future__ import annotations

import heapq
from bisect import insort
from operator import neg
from typing import Final

from penstock.cluster.shares.keys import HashColumn
from penstock.cluster.shares.runs import Runs

STALE_MAX: Final = 64
"""Entries of the heap that tell of earlier times, beside four for each tenant."""

Turn = tuple[int, int, int]
"""How many records a tenant has leased, its first ready offset, and the tenant."""


class FairTurns:
    """`column`: the tenant of each record that is not final.

    The heap has one entry at least for each tenant with ready records that says how it is now.
    Others are of earlier times, and passed over when they come up.
    """

    __slots__ = ("_heap", "_leased", "_ready", "column")

    def __init__(self, column: HashColumn | None = None) -> None:
        self.column = column or HashColumn()
        self._ready: dict[int, list[int]] = {}  # of each tenant, the first one last
        self._leased: dict[int, int] = {}
        self._heap: list[Turn] = []

    # --- what happens ---
    def ready(self, runs: Runs) -> None:
        """These may be leased."""
        came: dict[int, list[int]] = {}
        offsets = (offset for first, end in runs for offset in range(first, end))
        for offset, tenant in zip(offsets, self.column.of(runs), strict=True):
            came.setdefault(tenant, []).append(offset)
        for tenant, new in came.items():
            queue = self._ready.setdefault(tenant, [])
            if not queue or new[0] > queue[0]:
                queue[:0] = reversed(new)
            else:
                for offset in new:
                    insort(queue, offset, key=neg)
            self._queue_up(tenant)

    def lease(self, runs: Runs) -> None:
        """These were ready, or suspect, and are leased."""
        touched = {}
        offsets = (offset for first, end in runs for offset in range(first, end))
        for offset, tenant in zip(offsets, self.column.of(runs), strict=True):
            self._leased[tenant] = self._leased.get(tenant, 0) + 1
            queue = touched[tenant] = self._ready.get(tenant, [])
            if queue and queue[-1] == offset:
                queue.pop()
            elif offset in queue:
                queue.remove(offset)
        for tenant in [tenant for tenant, queue in touched.items() if not queue]:
            self._ready.pop(tenant, None)
        for tenant, queue in touched.items():
            if queue:
                self._queue_up(tenant)

    def end(self, runs: Runs) -> None:
        """These are leased no more, whatever they are now."""
        for tenant in self.column.of(runs):
            if self._leased[tenant] > 1:
                self._leased[tenant] -= 1
            else:
                del self._leased[tenant]
            self._queue_up(tenant)

    def _queue_up(self, tenant: int) -> None:
        """Its entry in the heap, as it is now."""
        if queue := self._ready.get(tenant):
            heapq.heappush(self._heap, (self._leased.get(tenant, 0), queue[-1], tenant))
        if len(self._heap) > 4 * len(self._ready) + STALE_MAX:
            leased = self._leased
            self._heap = [(leased.get(it, 0), its[-1], it) for it, its in self._ready.items()]
            heapq.heapify(self._heap)

    # --- turns ---
    def next_ones(self, count_max: int) -> list[int]:
        """Offsets to lease now, in their turns. Changes nothing that matters."""
        heap, picked, found = self._heap, dict[int, int](), list[int]()
        while heap and len(found) < count_max:
            turn = _, offset, tenant = heapq.heappop(heap)
            had = picked.get(tenant, 0)
            if turn != self._turn_of(tenant, had):
                continue
            found.append(offset)
            picked[tenant] = had + 1
            if (after := self._turn_of(tenant, had + 1)) is not None:
                heapq.heappush(heap, after)
        for tenant in picked:
            self._queue_up(tenant)
        return found

    def _turn_of(self, tenant: int, picked: int) -> Turn | None:
        """Its entry once so many of its records are picked. None: it has no more."""
        queue = self._ready.get(tenant, ())
        if len(queue) <= picked:
            return None
        return self._leased.get(tenant, 0) + picked, queue[-1 - picked], tenant
