"""Assigns partitions to members: balanced within one, with as few moves as possible.

The result depends on the arguments alone. Members are numbers above 0, and 0 is nobody. Topics with
the same subscribers form a *class*, within which a partition may go to any of them.

1. A partition stays with its owner, also with one that was asked to let go of it and still has it.
2. A partition without an owner goes to the member with the fewest, classes with few subscribers
   first.
3. In each class, while one member has two more than another, a partition moves from the member
   with the most to the one with the fewest. Each move makes the sum of squares smaller, so this
   ends. No move is unnecessary: with one class no other balanced assignment moves less.

Members with the same subscriptions share all their classes, so they end within one of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

Place = tuple[bytes, int]


class Shares(NamedTuple):
    """One topic: its subscribers, and by partition who owns it and whom it was meant for."""

    subscribers: tuple[int, ...]
    owners: Sequence[int]
    targets: Sequence[int]


def assign(topics: Mapping[bytes, Shares], partitions_max: int) -> dict[bytes, list[int]]:
    """For each topic whom its partitions are meant for. Nobody gets more than `partitions_max`:
    what is left over then is meant for nobody."""
    return _Assignment(topics, partitions_max).targets


class _Assignment:
    """`load`: partitions of each member. `held`: by class and member the places it is to have."""

    def __init__(self, topics: Mapping[bytes, Shares], partitions_max: int) -> None:
        self._topics = topics
        self._max = partitions_max
        self.targets = {topic_id: [0] * len(t.owners) for topic_id, t in topics.items()}
        self._load: dict[int, int] = {}
        self._held: dict[tuple[int, ...], dict[int, dict[Place, None]]] = {}
        self._open: dict[tuple[int, ...], list[Place]] = {}
        for shares in topics.values():
            self._load.update(dict.fromkeys(shares.subscribers, 0))
            self._held.setdefault(shares.subscribers, {n: {} for n in shares.subscribers})
            self._open.setdefault(shares.subscribers, [])
        for topic_id, shares in topics.items():
            self._keep(topic_id, shares)
        classes = sorted(self._held, key=len)
        for subscribers in classes:
            self._fill(subscribers)
        while any(self._level(subscribers) for subscribers in classes):
            pass

    def _keep(self, topic_id: bytes, shares: Shares) -> None:
        held, load = self._held[shares.subscribers], self._load
        targets, opened = self.targets[topic_id], self._open[shares.subscribers]
        for partition, owner in enumerate(shares.owners):
            if owner in held and load[owner] < self._max:
                load[owner] += 1
                held[owner][topic_id, partition] = None
                targets[partition] = owner
            else:
                opened.append((topic_id, partition))

    def _fill(self, subscribers: tuple[int, ...]) -> None:
        heap = [(self._load[number], number) for number in subscribers]
        heapify(heap)
        for topic_id, partition in self._open[subscribers]:
            if not heap or heap[0][0] >= self._max:
                return
            load, number = heap[0]
            heapreplace(heap, (load + 1, number))
            self._load[number] = load + 1
            self._held[subscribers][number][topic_id, partition] = None
            self.targets[topic_id][partition] = number

    def _level(self, subscribers: tuple[int, ...]) -> bool:
        """Moves within a class until nobody there has two more than another; returns whether any
        moved.

        No giver ever takes here, and no taker gives: there are always two between them.
        """
        held, load, moved = self._held[subscribers], self._load, False
        givers = [(-load[number], number) for number in subscribers if held[number]]
        takers = [(load[number], number) for number in subscribers]
        heapify(givers)
        heapify(takers)
        stocks: dict[int, _Stock] = {}
        while givers and -givers[0][0] >= takers[0][0] + 2:
            (most, giver), (least, taker) = givers[0], takers[0]
            if -most != load[giver]:  # it took meanwhile
                heappop(givers)
                continue
            stock = stocks.get(giver)
            if stock is None:
                stock = stocks[giver] = _Stock(self._topics, giver, held[giver])
            place = stock.give(taker, held[taker])
            del held[giver][place]
            held[taker][place] = None
            self.targets[place[0]][place[1]] = taker
            load[giver] -= 1
            load[taker] += 1
            heapreplace(takers, (least + 1, taker))
            if held[giver]:
                heapreplace(givers, (most + 1, giver))
            else:
                heappop(givers)
            moved = True
        return moved


class _Stock:
    """The partitions that one member can give, by the cost of giving them."""

    def __init__(self, topics: Mapping[bytes, Shares], giver: int, places: Iterable[Place]) -> None:
        self._promised: dict[int, list[Place]] = {}  # it was told to give these, by taker
        self._absent: list[Place] = []  # it does not have these yet
        self._own: dict[bytes, list[int]] = {}  # partitions by topic that it has and was to keep
        for place in places:
            shares, partition = topics[place[0]], place[1]
            if shares.owners[partition] != giver:
                self._absent.append(place)
            elif (target := shares.targets[partition]) not in (giver, 0):
                self._promised.setdefault(target, []).append(place)
            else:
                self._own.setdefault(place[0], []).append(partition)

    def give(self, taker: int, taken: Iterable[Place]) -> Place:
        """Gives the cheapest partition: first those that it was told to give to this taker.

        Next come those that it does not have yet, then those that it was told to give to another.
        Last comes the topic of which it has most beyond the taker, so that every topic is spread.
        """
        for promised in (self._promised.get(taker), self._absent, *self._promised.values()):
            if promised:
                return promised.pop()
        there = Counter(topic_id for topic_id, _ in taken)
        topic_id = max(self._own, key=lambda topic_id: len(self._own[topic_id]) - there[topic_id])
        partition = self._own[topic_id].pop()
        if not self._own[topic_id]:
            del self._own[topic_id]
        return topic_id, partition
