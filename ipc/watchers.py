"""The clients that a writer wakes: which of them sleep, and watch a page that changes.

Owns the doorbells of clients, and the tickets for which each was rung (rule 13). Never fences and
never knows why a page changed.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.shm import Region


class Watchers:
    """The clients that watch pages of one writer process, and their doorbells."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._clients: dict[int, tuple[ClientSlot, Doorbell]] = {}
        self._rung: dict[int, int] = {}

    def add(self, slot: int, bell: Doorbell) -> None:
        self.forget(slot)
        self._clients[slot] = (ClientSlot(self._region, slot), bell)

    def forget(self, slot: int) -> None:
        known = self._clients.pop(slot, None)
        self._rung.pop(slot, None)
        if known is not None:
            known[1].close()

    def ring(self, pages: Collection[int]) -> None:
        """Rings clients that sleep and watch one of these pages, once a sleep. Call it after a
        fence that follows the publication."""
        for index, (slot, doorbell) in self._clients.items():
            ticket = slot.ticket
            if ticket and ticket != self._rung.get(index):
                for page in pages:
                    if slot.watches(page):
                        self._rung[index] = ticket
                        doorbell.ring()
                        break
