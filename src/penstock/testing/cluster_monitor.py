"""Watching a cluster from outside: which broker is there, decides, leads, is in sync, and when.

Owns the times at which that changed, as the brokers that are asked tell it. Used by the demo, the
benchmarks and tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.client.admin.admin import Admin
from penstock.client.client import Client
from penstock.core.errors import PenstockError

INTERVAL: Final = 0.01
ASK_TIMEOUT: Final = 1.0
END_TIMEOUT: Final = 30.0
Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Placed:
    """One partition. `leader` -1: nobody leads it."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]

    @property
    def behind(self) -> frozenset[int]:
        return frozenset(self.replicas) - self.isr


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at one moment. Views are equal where only the moment differs."""

    at: float = field(compare=False)
    controller: int
    term: int
    """Of the controller: a new one for each election."""
    brokers: dict[int, str]
    """The state of each: up, leaving or fenced."""
    partitions: dict[Name, Placed]

    def leads(self, broker: int) -> list[Name]:
        return [name for name, placed in self.partitions.items() if placed.leader == broker]

    def behind(self) -> dict[Name, frozenset[int]]:
        """Replicas that are not in sync, of partitions that have such."""
        return {name: placed.behind for name, placed in self.partitions.items() if placed.behind}


def look(admin: Admin, topics: Iterable[str]) -> View:
    """Asks once. Raises the broker's error, or one where it does not answer."""
    partitions: dict[Name, Placed] = {}
    for topic in topics:
        for place in admin.describe_partitions(topic):
            partitions[place.topic, place.partition] = Placed(
                place.leader, place.leader_epoch, tuple(place.replicas), frozenset(place.isr)
            )
    cluster = admin.describe_cluster()
    return View(
        time.monotonic(),
        cluster.controller,
        cluster.term,
        {each.broker: each.state for each in cluster.brokers},
        partitions,
    )


class Lookout:
    """Looks again and again from `start` to `stop` (or in a `with`), on a thread of its own.

    `connects` make clients, each of one broker; who does not answer is passed over for the next.
    """

    def __init__(
        self,
        connects: Iterable[Callable[[], Client]],
        topics: Iterable[str],
        *,
        interval: float = INTERVAL,
    ) -> None:
        self.views: list[View] = []
        """Each that differed from the one before."""
        self._connects = list(connects)
        self._topics = list(topics)
        self._interval = interval
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def _run(self) -> None:
        turn = 0
        while not self._ending.is_set():
            connect = self._connects[turn % len(self._connects)]
            turn += 1
            try:
                with connect() as client, client.admin(timeout=ASK_TIMEOUT) as admin:
                    while not self._ending.wait(self._interval):
                        self._take(look(admin, self._topics))
            except PenstockError:
                self._ending.wait(self._interval)

    def _take(self, view: View) -> None:
        if not self.views or view != self.views[-1]:
            self.views.append(view)

    def since(self, moment: float) -> Iterator[View]:
        """Yields the views from a moment on, beginning with the one that held then."""
        views = list(self.views)
        first = next((i for i, view in enumerate(views) if view.at > moment), len(views))
        yield from views[max(0, first - 1) :]

    def first(self, since: float, holds: Callable[[View], bool]) -> float | None:
        """Returns the seconds after `since` at which something was first seen to hold; 0 where it
        held then; None: it never did."""
        for view in self.since(since):
            if holds(view):
                return max(0.0, view.at - since)
        return None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(END_TIMEOUT)

    def __enter__(self) -> Lookout:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
