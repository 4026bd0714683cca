"""How far all groups are in a partition, for retention that holds records for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.cluster.shares import ShareGroups
from penstock.server.coordinator.epoch import Machines

NO_GROUP: Final = -1


def floor_of(machines: Machines, topic_id: bytes, partition: int) -> int:
    """Returns the first offset that some group has not finished, `NO_GROUP` without any group.

    A group that has begun with another partition of the topic will begin with this one, too: it
    holds all of it.
    """
    plain = (
        of_topic[partition].offset if partition in of_topic else 0
        for of_topic in machines.groups.committed_of(topic_id)
    )  # fmt: skip
    return min((*plain, *_shared(machines.shares, topic_id, partition)), default=NO_GROUP)


def _shared(shares: ShareGroups, topic_id: bytes, partition: int) -> Iterator[int]:
    for name in shares.names():
        places = dict(shares.partitions(name))
        if (machine := places.get((topic_id, partition))) is not None:
            yield machine.floor
        elif shares.policy(name).start == "earliest" and any(it[0] == topic_id for it in places):
            yield 0
