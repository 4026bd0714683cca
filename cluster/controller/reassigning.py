"""Chooses the replicas that partitions get: named, or only counted. Pure; decides no records.

| asked for | a partition gets |
|---|---|
| brokers, for one partition | these, in that order |
| brokers, for several | these; each comes first in turn, by the partitions' numbers |
| a number of replicas | its own, in-sync ones before others; then brokers that have least |

The whole request is refused or nothing: a topic has at least as many replicas everywhere as it
wants in sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.cluster.controller.image import Image, Place
from penstock.cluster.controller.placement import resize
from penstock.core.errors import ConfigError, UnknownTopicError

Targets = dict[Place, tuple[int, ...]]
_EITHER: Final = "name the brokers of a reassignment, or say how many replicas it is to end with"


def targets(
    image: Image, places: Iterable[Place], named: tuple[int, ...], replication_factor: int
) -> Targets:
    """Raises `ConfigError`, `UnknownTopicError`."""
    if bool(named) == bool(replication_factor):
        raise ConfigError(_EITHER)
    asked = list(places)
    for topic_id, number in asked:
        if (topic_id, number) not in image.partitions:
            raise UnknownTopicError(f"there is no partition {number} of topic {topic_id.hex()}")
        _check_min_insync(image, topic_id, replication_factor or len(named))
    if named:
        return _named(image, asked, named)
    return _chosen(image, asked, replication_factor)


def _check_min_insync(image: Image, topic_id: bytes, replicas: int) -> None:
    topic = image.topics[topic_id]
    if replicas < topic.min_insync:
        raise ConfigError(
            f"{replicas} replicas are fewer than min_insync_replicas={topic.min_insync} of "
            f"{topic.name!r}, and nothing would be committed: lower that first, where the topic is "
            f"yours (`penstock topic config {topic.name} min_insync_replicas={replicas}`)"
        )


def _named(image: Image, places: list[Place], named: tuple[int, ...]) -> Targets:
    strangers = [broker for broker in named if broker not in image.brokers]
    if len(set(named)) != len(named) or strangers:
        raise ConfigError(
            f"{named} cannot be the replicas of a partition: name brokers that are there, "
            f"each once (unknown: {strangers})"
        )
    if len(places) == 1:
        return {places[0]: named}
    turns = ((place, place[1] % len(named)) for place in places)
    return {place: (*named[turn:], *named[:turn]) for place, turn in turns}


def _chosen(image: Image, places: list[Place], replication_factor: int) -> Targets:
    racks = {number: broker.rack for number, broker in image.brokers.items()}
    load = {number: len(image.places.get(number, ())) for number in image.brokers}
    living = [number for number in image.brokers if image.may_lead(number)]
    found: Targets = {}
    for place in places:
        it = image.partitions[place]
        held = it.target or it.replicas
        in_sync_first = sorted(held, key=lambda broker: broker not in it.isr)
        others = [broker for broker in living if broker not in held]
        others.sort(key=lambda broker: (load[broker], broker))
        chosen = resize(in_sync_first, others, racks, replication_factor)
        new = [broker for broker in chosen if broker not in held]
        found[place] = (*(broker for broker in held if broker in chosen), *new)
        for broker in new:
            load[broker] += 1
    return found
