"""Markers that are in a partition's log, until they are on the device.

    written ──durable passed it──► synced
       └─ too many, or too old ──► the partition is asked for a sync

Only then may the coordinator forget them: its own log is synced with every decision, and what it
says must not outlive the marker (rule 15). Mostly the records of the next transaction bring the
marker along, so a sync is asked for only where none comes. Owns what waits; sends nothing itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.core.control import ControlType

EVERY: Final = 0.25
"""Seconds between two looks. A log with a marker at both of them is asked for a sync."""
MARKERS_MAX: Final = 8
"""Markers of one partition that wait until a sync is asked for at once."""
OF_PRODUCER_MAX: Final = 4
"""Transactions of one producer that do: its id remembers `endings_max` of them."""


class Written(NamedTuple):
    """A marker that is in the log below the offset `end`."""

    kind: ControlType
    producer_id: int
    epoch: int
    place: tuple[bytes, int]
    end: int


class Unsynced:
    """`durable`: up to where the partition of a page is on the device. `synced`: this one is.
    `ask`: have this page synced, by sending that marker again. `gone`: the page is no longer that
    of the marker's partition."""

    def __init__(
        self,
        durable: Callable[[int, tuple[bytes, int]], int],
        synced: Callable[[Written], None],
        ask: Callable[[int, Written], None],
        gone: Callable[[int, Written], bool],
    ) -> None:
        self._durable = durable
        self._synced = synced
        self._ask = ask
        self._gone = gone
        self._waiting: dict[int, deque[Written]] = {}
        self._of_producer: dict[int, Counter[int]] = {}  # markers, by epoch
        self._asked: dict[int, int] = {}  # page -> where the last sync that was asked for ends
        self._old: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, page: int, written: Written) -> None:
        waiting = self._waiting.setdefault(page, deque())
        waiting.append(written)
        epochs = self._of_producer.setdefault(written.producer_id, Counter())
        epochs[written.epoch] += 1
        self._look_at(page)
        if len(waiting) >= MARKERS_MAX:
            self._want(page)
        if len(epochs) >= OF_PRODUCER_MAX:
            for each, others in list(self._waiting.items()):
                if any(other.producer_id == written.producer_id for other in others):
                    self._look_at(each)
                    self._want(each)
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._tick)

    def look(self) -> None:
        """Something was synced: see whether it is what was asked for."""
        for page in list(self._asked):
            self._look_at(page)

    def _look_at(self, page: int) -> None:
        waiting = self._waiting.get(page)
        durable = self._durable(page, waiting[0].place) if waiting else 0
        while waiting and (waiting[0].end <= durable or self._gone(page, waiting[0])):
            written = waiting.popleft()
            epochs = self._of_producer[written.producer_id]
            epochs[written.epoch] -= 1
            if not epochs[written.epoch]:
                del epochs[written.epoch]
            if not epochs:
                del self._of_producer[written.producer_id]
            self._synced(written)
        if not waiting:
            self._waiting.pop(page, None)
            self._asked.pop(page, None)
            self._old.discard(page)

    def _want(self, page: int) -> None:
        waiting = self._waiting.get(page)
        if waiting and self._asked.get(page, 0) < waiting[0].end:
            self._asked[page] = waiting[-1].end
            self._ask(page, waiting[-1])

    def _tick(self) -> None:
        self._timer = None
        for page in list(self._waiting):
            self._look_at(page)
        for page in self._old & self._waiting.keys():
            self._asked.pop(page, None)  # its writer may have died before it did
            self._want(page)
        self._old = set(self._waiting)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
