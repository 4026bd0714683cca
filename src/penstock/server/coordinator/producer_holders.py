"""Which process has which transactional producer, until it is dead and its lanes are drained.

    noted ──its process died──► dying ──no lane of the process is left──► abandoned, forgotten

A remote client is a process too here, which is taken for dead when it was away for long enough.

Only then may what it had open be aborted (rule 19); nothing of it can come after that. Knows what
this run of the node was told: what an earlier run knew is left to the transactions' timeouts.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.node.attached_client import AttachedClient, Owner
from penstock.server.node.lane_grants import Grants
from penstock.server.node.lanes import Lane


class Holders:
    """`abandon` aborts what a producer has open; False: not now, `look` is called again then."""

    def __init__(self, grants: Grants, abandon: Callable[[int], bool]) -> None:
        self._grants = grants
        self._abandon = abandon
        self._process_of: dict[int, Owner] = {}
        self._dying: set[Owner] = set()

    def note(self, producer_id: int, client: AttachedClient) -> None:
        """That producer belongs to the client's process from now on."""
        self._process_of[producer_id] = client.owner
        self._dying.discard(client.owner)

    def process_died(self, process: Owner) -> None:
        if process in self._process_of.values():
            self._dying.add(process)
            self.look()

    def lane_gone(self, lane: Lane) -> None:
        if lane.owner in self._dying:
            self.look()

    def forget(self) -> None:
        """Another broker's coordinator has them from now on."""
        self._process_of.clear()
        self._dying.clear()

    def look(self) -> None:
        """Abandons what can be abandoned."""
        for process in list(self._dying):
            if self._grants.has_lanes_of(process):
                continue
            for producer_id, holder in list(self._process_of.items()):
                if holder == process and self._abandon(producer_id):
                    del self._process_of[producer_id]
            if process not in self._process_of.values():
                self._dying.discard(process)
