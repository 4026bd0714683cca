"""The verbs of `penstock.Admin` about a cluster: its brokers, and the leaders of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.ipc import clustering as cg
from penstock.ipc import messages as ms

BrokerInfo = cg.BrokerInfo
ClusterDescription = cg.ClusterDescription
PartitionPlace = cg.PartitionPlace
UncleanRecovery = cg.UncleanRecovery
DrainStatus = cg.DrainStatus
QuorumMember = cg.QuorumMember


class ClusterAdmin:
    """`ask` is a request of an admin to the broker that it is attached to."""

    def __init__(self, ask: Callable[[Any, Any], Any]) -> None:
        self._ask = ask

    def describe(self) -> ClusterDescription:
        found: ClusterDescription = self._ask(cg.DescribeCluster(), cg.ClusterDescription)
        skip, more = cg.BROKERS_PER_PAGE, found.more
        while more:
            page: ClusterDescription = self._ask(cg.DescribeCluster(skip), cg.ClusterDescription)
            found.brokers.extend(page.brokers)
            found.quorum.extend(page.quorum)
            found.drained.extend(page.drained)
            skip, more = skip + cg.BROKERS_PER_PAGE, page.more
        return replace(found, more=False)

    def places(self, topic: str) -> list[PartitionPlace]:
        places: list[PartitionPlace] = []
        while True:
            request = cg.DescribePartitions(topic, len(places))
            answer: cg.PartitionPlaces = self._ask(request, cg.PartitionPlaces)
            places += answer.partitions
            if not answer.more:
                return places

    def elect(self, topic: str | None, partition: int | None, *, unclean: bool) -> int:
        if unclean and topic is None:
            raise ConfigError("name the topic whose records an unclean election may lose")
        request = cg.ElectLeaders(topic or "", partition, unclean)
        answer: cg.LeadersElected = self._ask(request, cg.LeadersElected)
        return answer.changed

    def reassign(
        self,
        topic: str,
        partition: int | None,
        replicas: Sequence[int] | None,
        replication_factor: int | None,
    ) -> None:
        if (replicas is None) == (replication_factor is None):
            raise ConfigError(
                "give replicas, the brokers by their numbers, or replication_factor: one of both"
            )
        number = len(replicas) if replicas is not None else replication_factor or 0
        if not 1 <= number <= cg.REPLICAS_MAX:
            raise ConfigError(
                f"{number} replicas: a partition has 1 to {cg.REPLICAS_MAX}. Name its brokers, the "
                "preferred leader first, or say how many there are to be"
            )
        request = cg.ReassignPartition(
            topic, partition, list(replicas or ()), replication_factor or 0
        )
        self._ask(request, ms.Done)

    def drain(self, broker: int, *, undo: bool) -> DrainStatus:
        answer: DrainStatus = self._ask(cg.DrainBroker(broker, undo), cg.DrainStatus)
        return answer

    def drain_status(self, broker: int) -> DrainStatus:
        answer: DrainStatus = self._ask(cg.DescribeDrain(broker), cg.DrainStatus)
        return answer

    def remove(self, broker: int) -> None:
        self._ask(cg.RemoveBroker(broker), ms.Done)
