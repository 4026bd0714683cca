"""Moves leadership back to the preferred replicas, some partitions at a time.

A broker that was away leads nothing when it is back: its successors keep leading. Now and then the
controller looks for partitions whose first replica could lead and does not:

| a partition | moves |
|---|---|
| whose first replica is in the ISR, and has been up for a while | yes |
| the same, but its broker came back just now, or leaves | no: it may go again, or is busy |
| that is being reassigned | no: its leader changes anyhow |
| whose first replica is drained | no |

One round moves at most `MOVES_MAX` of them, since each makes its clients turn to another broker;
the rest has its turn `PAUSE` later. Kafka's `auto.leader.rebalance.enable` has the idea, and moves
all at once. Time is an argument. Nothing here is in the log, so a controller that has just become
active waits for a whole interval.
"""

from __future__ import annotations

from typing import Final

from penstock.cluster.controller import elections as el
from penstock.cluster.controller.image import Image, Place

MOVES_MAX: Final = 100
"""Partitions that get another leader in one round."""
PAUSE: Final = 5.0
"""Seconds between two rounds, while the first of them left something to do."""
SETTLED: Final = 30.0
"""Seconds that a broker has been up before it is given anything; the interval, if that is less."""


class Balancer:
    """`interval`: seconds between two looks; 0: never."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next: float | None = None
        self._up: dict[int, tuple[int, float]] = {}
        """The epoch of each broker that may lead, and since when that was so."""

    def unsettle(self) -> None:
        """Nobody was heard for a while: everybody counts as having come back just now."""
        self._up.clear()

    def due(self, now: float, image: Image) -> list[Place]:
        """Returns the partitions to move now. Call it again and again: each call also updates which
        brokers are up."""
        if not self._interval:
            return []
        self._up = {
            number: (broker.epoch, self._since(now, number, broker.epoch))
            for number, broker in image.brokers.items()
            if image.may_lead(number) and not image.is_drained(number)
        }
        if self._next is None:
            self._next = now + self._interval
        if now < self._next:
            return []
        found = self._found(now, image)
        is_all = len(found) <= MOVES_MAX
        self._next = now + (self._interval if is_all else min(PAUSE, self._interval))
        return found[:MOVES_MAX]

    def _since(self, now: float, number: int, epoch: int) -> float:
        known = self._up.get(number)
        return known[1] if known is not None and known[0] == epoch else now

    def _found(self, now: float, image: Image) -> list[Place]:
        """As many as a round takes, and one more if there are more."""
        long_ago = now - min(SETTLED, self._interval)
        settled = {number for number, (_, since) in self._up.items() if since <= long_ago}
        found: list[Place] = []
        for place, partition in image.partitions.items():
            if not partition.target and el.preferred(partition, settled.__contains__) is not None:
                found.append(place)
                if len(found) > MOVES_MAX:
                    break
        return found
