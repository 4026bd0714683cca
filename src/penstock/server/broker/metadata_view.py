"""The controller's image as a broker looks at it: topics, places, brokers, leaders.

Pure functions of the image, and what was made of it before so that it is made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.cluster.controller import BrokerRegistration, Image, Partition, Place, Topic
from penstock.ipc.messages import TopicSettings
from penstock.server.broker.topic_config import ClusterTopic, cluster_topic
from penstock.server.node.topic_catalog import TopicRecord

REPLICAS_USUAL: Final = 3
INSYNC_USUAL: Final = 2
"""Of three replicas and more: one may be away, and what is committed is still on two."""


class Endpoints(NamedTuple):
    """Where a broker is reached, in the order in which it registers: by clients, by replicators of
    other brokers, by their control links."""

    clients: str
    replication: str
    control: str

    @classmethod
    def of(cls, broker: BrokerRegistration) -> Endpoints:
        """Empty where it has not told one."""
        return cls(*(*broker.endpoints, "", "", "")[:3])


class TopicsView:
    """The topics of an image as a catalogue has them."""

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[Topic, ClusterTopic, TopicRecord]] = {}

    def records(self, image: Image) -> list[TopicRecord]:
        """In the order of their ids, which is one on all brokers."""
        made = {topic_id: self._of(topic_id, image) for topic_id in sorted(image.topics)}
        self._made = made
        return [record for _, _, record in made.values()]

    def _of(self, topic_id: bytes, image: Image) -> tuple[Topic, ClusterTopic, TopicRecord]:
        topic, factor = image.topics[topic_id], image.replication_factor(topic_id)
        known = self._made.get(topic_id)
        if known and known[0] is topic and known[2].settings.replication_factor == factor:
            return known
        kept = cluster_topic(topic.config)
        settings = settings_of(kept, topic.partitions, factor)
        record = TopicRecord(topic.name, topic_id.hex(), kept.pages[: topic.partitions], settings)
        return topic, kept, record


def settings_of(kept: ClusterTopic, partitions: int, replication_factor: int) -> TopicSettings:
    """A topic's settings with what its partitions are now, which they may not have begun with."""
    return replace(kept.settings, partitions=partitions, replication_factor=replication_factor)


def place_of(topic: TopicRecord, index: int) -> Place:
    return bytes.fromhex(topic.topic_id), index


def hosts(image: Image, broker: int, place: Place) -> bool:
    """Whether that broker has a replica of it."""
    partition = image.partitions.get(place)
    return partition is not None and broker in partition.replicas


def living(image: Image) -> dict[int, tuple[int, str]]:
    """The brokers that are there and stay: the epoch and the replication URL of each."""
    return {
        number: (epoch, Endpoints.of(image.brokers[number]).replication)
        for number, epoch in sorted(image.living().items())
    }


def client_urls(image: Image) -> list[tuple[int, str]]:
    """Where clients reach those that are there, also on their way out."""
    return [
        (number, Endpoints.of(broker).clients)
        for number, broker in sorted(image.brokers.items())
        if not broker.is_fenced
    ]


def leaders(image: Image, records: list[TopicRecord]) -> list[tuple[int, int]]:
    """Returns the leader of each page; pages without one are left out."""
    return list(_leaders(image, records))


def _leaders(image: Image, records: list[TopicRecord]) -> Iterator[tuple[int, int]]:
    for record in records:
        topic_id = bytes.fromhex(record.topic_id)
        for index, page in enumerate(record.pages):
            partition = image.partitions.get((topic_id, index))
            if partition is not None and partition.leader is not None:
                yield page, partition.leader


def is_below_min_insync(image: Image, place: Place, it: Partition) -> bool:
    """Whether nothing of it is committed."""
    return len(it.isr) < min(image.topics[place[0]].min_insync, len(it.replicas))


def health_of(image: Image, broker: int) -> dict[str, int]:
    """Returns counts of a broker's replicas and led partitions, and of those that are not well."""
    places = image.places.get(broker, ())
    led = [(place, image.partitions[place]) for place in places]
    led = [(place, it) for place, it in led if it.leader == broker]
    return {
        "replicas": len(places),
        "leads": len(led),
        "underreplicated": sum(len(it.isr) < len(it.replicas) for _, it in led),
        "below_min_insync": sum(is_below_min_insync(image, place, it) for place, it in led),
        "offline": sum(broker in image.partitions[place].offline for place in places),
        "leaderless": sum(it.leader is None for it in image.partitions.values()),
    }


def pages_in_use(image: Image) -> set[int]:
    """Pages that belong to partitions, or are kept for them."""
    return {page for topic in image.topics.values() for page in cluster_topic(topic.config).pages}


def resolved(settings: TopicSettings, brokers: int) -> TopicSettings:
    """Settings with nothing left open of what a cluster decides."""
    factor = settings.replication_factor
    if factor is None:
        factor = min(REPLICAS_USUAL, max(1, brokers))
    insync = settings.min_insync_replicas
    if insync is None:
        insync = INSYNC_USUAL if factor >= REPLICAS_USUAL else 1
    return replace(settings, replication_factor=factor, min_insync_replicas=insync)
