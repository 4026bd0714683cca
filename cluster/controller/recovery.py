"""Partitions that lost members of their ISR: the controller's knowledge that is in no record.

| a partition | what happens |
|---|---|
| has a last ISR, and its leader is heard for a session more | the last ISR is forgotten |
| has no leader; replicas tell what they have | kept until it has one |
| has no ISR, and all of its last one are back | the one with most leads |

A controller that has just become active knows nothing of this: it waits until replicas tell it
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from penstock.cluster.controller import elections as el
from penstock.cluster.controller.draft import Draft
from penstock.cluster.controller.image import Image, Place
from penstock.cluster.controller.records import Partition
from penstock.cluster.replica.messages import LogEnd

SETTLED_MAX: Final = 1000
"""Partitions whose last ISR is forgotten in one decision."""


class LeaderRecovery:
    """Of one controller. Decides by drafts; image and `counts` are the controller's."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._since: dict[Place, tuple[int, float | None]] = {}
        """Partitions with a last ISR: at which partition epoch, and since when that is known."""
        self._ends: dict[Place, dict[int, tuple[int, LogEnd]]] = {}
        """The log ends of replicas, by broker, with the epoch of the broker that reported."""

    def begin(self, image: Image) -> None:
        """The controller is active from now on, or was held up."""
        self._since.clear()
        self._ends.clear()
        for place, partition in image.partitions.items():
            self.changed(place, partition)

    def changed(self, place: Place, partition: Partition | None) -> None:
        """The image says this of a partition now."""
        if partition is None or not partition.last_isr:
            self._since.pop(place, None)
        elif self._since.get(place, (-1, None))[0] != partition.partition_epoch:
            self._since[place] = partition.partition_epoch, None
        if partition is None or partition.leader is not None:
            self._ends.pop(place, None)

    def tell(
        self, image: Image, broker: int, epoch: int, ends: Iterable[tuple[Place, LogEnd]]
    ) -> None:
        """That life of a broker has these; of partitions that have a leader it is no news."""
        for place, end in ends:
            it = image.partitions.get(place)
            if it is not None and it.leader is None and broker in it.replicas:
                self._ends.setdefault(place, {})[broker] = epoch, end

    def ends(self, image: Image, place: Place) -> dict[int, LogEnd]:
        """Returns the log ends of its replicas, from their present lives and this time without a
        leader."""
        it = image.partitions[place]
        return {
            broker: end
            for broker, (epoch, end) in self._ends.get(place, {}).items()
            if broker in it.replicas
            and image.is_current(broker, epoch)
            and end.leader_epoch == it.leader_epoch
        }

    def recover(self, image: Image, draft: Draft, clock: float) -> None:
        """Have the one with most lead where all of the last ISR are back and none is clean."""
        known = [place for place in sorted(self._ends) if place in image.partitions]
        self._counts["unclean_recoveries"] += self._each(image, draft, known, el.recovered, clock)

    def elect(self, image: Image, draft: Draft, places: Iterable[Place], clock: float) -> int:
        """Have the one with most of those lead that are there, of these partitions: how many got
        another leader."""
        return self._each(image, draft, places, el.unclean, clock)

    def _each(
        self,
        image: Image,
        draft: Draft,
        places: Iterable[Place],
        step: Callable[..., Partition | None],
        clock: float,
    ) -> int:
        count = 0
        for place in places:
            made = step(draft.partition(place), draft.may_lead, self.ends(image, place), clock)
            if made is None:
                continue
            draft.put(place, made)
            count += 1
            if made.unclean is not None and made.unclean.first is not None:
                self._counts["offsets_missing"] += made.unclean.known_end - made.unclean.first
        return count

    def settle(self, now: float, draft: Draft, heard: Mapping[int, float], session: float) -> None:
        """Forget the last ISR of partitions whose leader went on without it: what is heard of a
        leader a session later, it said after that."""
        found = 0
        for place, (epoch, since) in self._since.items():
            it = draft.partition(place)
            if it.partition_epoch != epoch:
                continue  # it changes just now
            if since is None:
                self._since[place] = epoch, now
            elif it.leader is not None and heard.get(it.leader, now) > since + session:
                # Its leader asks for another ISR by this partition epoch, which therefore stays.
                draft.put(place, replace(it, last_isr=()))
                found += 1
                if found == SETTLED_MAX:
                    break
