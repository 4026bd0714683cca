"""The state of the controller's log, replayed: brokers, topics, partitions, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from penstock.cluster.controller import records as rec
from penstock.cluster.controller.records import BrokerRegistration, Partition, Topic
from penstock.cluster.decisions import Record
from penstock.cluster.replica.messages import PartitionAssignment
from penstock.core.errors import UnknownTopicError

Place = tuple[bytes, int]


class Image:
    """Only `replay` changes it. Every broker has one, of what is committed; the active controller's
    is ahead by what it has decided."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[bytes, Topic] = {}
        self.partitions: dict[Place, Partition] = {}
        self.settings: dict[tuple[str, str], bytes] = {}
        self.counters: dict[str, int] = {}
        self.ids: dict[str, bytes] = {}
        """Of topics, by name."""
        self.places: dict[int, set[Place]] = {}
        """Where a broker has a replica."""

    def replay(self, record: Record) -> Place | None:
        """Make it so; which partition that is about, if it is about one."""
        kind, name, value = rec.parsed(record)
        match kind:
            case rec.BROKER:
                _put(self.brokers, name[0], value)
            case rec.TOPIC:
                topic_id = cast(bytes, name[0])
                old = self.topics.get(topic_id)
                if old is not None:
                    del self.ids[old.name]
                _put(self.topics, topic_id, value)
                if isinstance(value, Topic):
                    self.ids[value.name] = topic_id
            case rec.PARTITION:
                place = cast(Place, name)
                for broker in self._replicas(place):
                    self.places[broker].discard(place)
                _put(self.partitions, place, value)
                for broker in self._replicas(place):
                    self.places.setdefault(broker, set()).add(place)
                return place
            case rec.SETTING:
                _put(self.settings, name, value)
            case rec.COUNTER:
                _put(self.counters, name[0], value)
        return None

    def copied(self) -> Image:
        """Another one that says the same; what is in it is never changed, only replaced."""
        copy = Image()
        copy.brokers = dict(self.brokers)
        copy.topics = dict(self.topics)
        copy.partitions = dict(self.partitions)
        copy.settings = dict(self.settings)
        copy.counters = dict(self.counters)
        copy.ids = dict(self.ids)
        copy.places = {broker: set(places) for broker, places in self.places.items()}
        return copy

    def records(self) -> Iterator[Record]:
        """All of it again, for a snapshot; in one order everywhere."""
        for broker, value in sorted(self.brokers.items()):
            yield rec.record(rec.BROKER, broker, value=value)
        for topic_id, topic in sorted(self.topics.items()):
            yield rec.record(rec.TOPIC, topic_id, value=topic)
        for place, partition in sorted(self.partitions.items()):
            yield rec.record(rec.PARTITION, *place, value=partition)
        for setting, data in sorted(self.settings.items()):
            yield rec.record(rec.SETTING, *setting, value=data)
        for name, number in sorted(self.counters.items()):
            yield rec.record(rec.COUNTER, name, value=number)

    # --- what can be asked ---
    def is_current(self, broker: int, broker_epoch: int) -> bool:
        """Returns whether a broker that registered with that epoch may take assignments from here.
        Assignments before its registration were for earlier lives: a broker that obeyed them would
        lead again in a past epoch. Assignments after a later registration are for that life, which
        may be a copy of this one elsewhere. Then both would lead in one epoch."""
        known = self.brokers.get(broker)
        return known is not None and known.epoch == broker_epoch

    def assignment(self, place: Place) -> PartitionAssignment | None:
        """Returns the controller's assignment for the brokers of a partition."""
        partition, topic = self.partitions.get(place), self.topics.get(place[0])
        if partition is None or topic is None:
            return None
        return PartitionAssignment(
            partition.leader, partition.leader_epoch, partition.partition_epoch,
            partition.replicas, partition.isr, topic.min_insync, partition.offline,
        )  # fmt: skip

    def living(self) -> dict[int, int]:
        """Returns the epoch of each broker that is there, not fenced, and not on its way out. A
        broker that fetches until it stops would otherwise be proposed for an ISR with each request,
        and be refused."""
        return {broker: it.epoch for broker, it in self.brokers.items() if self.may_lead(broker)}

    def may_lead(self, broker: int) -> bool:
        known = self.brokers.get(broker)
        return known is not None and not known.is_fenced and not known.is_leaving

    def is_drained(self, broker: int) -> bool:
        """Whether it is to lead nothing that another one could."""
        return self.drained_in(broker) is not None

    def drained_in(self, broker: int) -> int | None:
        """The broker epoch in which that was asked; None: it is not drained."""
        value = self.settings.get((rec.DRAINED, str(broker)))
        if value is None:
            return None
        return int(value) if value.isdigit() else 0

    def topic(self, name: str) -> tuple[bytes, Topic]:
        topic_id = self.ids.get(name)
        if topic_id is None:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return topic_id, self.topics[topic_id]

    def replication_factor(self, topic_id: bytes) -> int:
        """How many replicas each of its partitions has, or is to have once its reassignment is
        through, at least."""
        found = (self.partitions[place] for place in self.partitions_of(topic_id))
        return min(len(it.target or it.replicas) for it in found)

    def partitions_of(self, topic_id: bytes) -> list[Place]:
        return [(topic_id, number) for number in range(self.topics[topic_id].partitions)]

    def _replicas(self, place: Place) -> tuple[int, ...]:
        known = self.partitions.get(place)
        return known.replicas if known is not None else ()


def _put(there: dict, name: object, value: object) -> None:  # type: ignore[type-arg]
    if value is None:
        there.pop(name, None)
    else:
        there[name] = value
