"""Serves admins' requests about the cluster, from the image or by the controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from penstock.cluster.controller import (
    BrokerRegistration,
    Image,
    Partition,
    Place,
    UncleanRecovery,
    successors,
)
from penstock.core.errors import ConfigError, PenstockTimeout, UnknownTopicError
from penstock.ipc import clustering as cg
from penstock.ipc import messages as ms
from penstock.server.broker.metadata_view import Endpoints, is_below_min_insync
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum.read_barrier import read_barrier

logger = logging.getLogger("penstock.cluster")

NOBODY: Final = -1
UNCLEAN_SHOWN: Final = 86_400.0
"""Seconds for which an election without a clean replica is named among the cluster's news."""
LEADER_TIMEOUT: Final = 2.0
"""Seconds for which the quorum's leader is asked about it."""
FENCED_POLL: Final = 0.02
"""Seconds between looks whether a broker that was stopped counts as gone."""


R = TypeVar("R")


class Described(Protocol):
    """The quorum, as far as it is asked here."""

    @property
    def image(self) -> Image: ...
    @property
    def applied(self) -> int: ...
    @property
    def leader(self) -> int | None: ...
    @property
    def cluster_id(self) -> bytes: ...
    def describe(self) -> dict[str, Any]: ...
    async def ask(self, request: cr.QuorumRequest[R], timeout: float) -> R: ...


class Describing:
    """The requests of `ipc.clustering`. `sees(topic)`: whether the client may know of it."""

    def __init__(self, broker: int, quorum: Described, timeout: float) -> None:
        self._broker = broker
        self._quorum = quorum
        self._timeout = timeout

    async def answer(self, request: cg.Request, sees: Callable[[str], bool]) -> ms.NodeMessage:
        match request:
            case cg.DescribeCluster():
                return self._cluster(await self._catch_up(), max(0, request.skip), sees)
            case cg.DescribePartitions():
                await self._catch_up()
                return self._partitions(request)
            case cg.ElectLeaders():
                return await self._elect(request)
            case cg.ReassignPartition():
                return await self._reassign(request)
            case cg.RemoveBroker():
                return await self._remove(request.broker)
            case cg.DrainBroker():
                await self._quorum.ask(cr.Drain(request.broker, request.undo), self._timeout)
                await self._catch_up()
                return self._drain_of(request.broker, sees)
            case cg.DescribeDrain():
                await self._catch_up()
                return self._drain_of(request.broker, sees)

    # --- looks ---
    async def _catch_up(self) -> dict[str, Any]:
        """Waits for the leader's committed entries, so that a client sees its finished changes at
        every broker. Returns the leader's view of the quorum; without a leader, this broker's."""
        try:
            return await read_barrier(self._quorum, LEADER_TIMEOUT)
        except PenstockTimeout:
            return self._quorum.describe()

    def _cluster(
        self, quorum: dict[str, Any], first: int, sees: Callable[[str], bool]
    ) -> cg.ClusterDescription:
        image = self._quorum.image
        places = sorted(image.partitions.items())
        ill = [(place, it) for place, it in places if _is_ill(image, place, it)]
        shown = [(place, it) for place, it in ill if sees(image.topics[place[0]].name)]
        since = time.time() - UNCLEAN_SHOWN
        unclean = [(place, it) for place, it in places if it.unclean and it.unclean.at > since]
        news = [(place, it) for place, it in unclean if sees(image.topics[place[0]].name)]
        leader, upto = self._quorum.leader, first + cg.BROKERS_PER_PAGE
        brokers, members = list(_brokers(image)), list(_members(quorum))
        return cg.ClusterDescription(
            cluster_id=self._quorum.cluster_id,
            broker=self._broker,
            controller=NOBODY if leader is None else leader,
            term=int(quorum.get("term", 0)),
            brokers=brokers[first:upto],
            quorum=members[first:upto],
            topics=len(image.topics),
            partitions=len(places),
            leaderless=sum(it.leader is None for _, it in ill),
            below_min_insync=sum(is_below_min_insync(image, place, it) for place, it in ill),
            ill_partitions=len(ill),
            ill=[_described(image, place, it) for place, it in shown[: cg.ILL_MAX]],
            more=upto < max(len(brokers), len(members)),
            unclean_partitions=len(unclean),
            unclean=[_described(image, place, it) for place, it in news[: cg.ILL_MAX]],
            drained=[it.broker for it in brokers[first:upto] if image.is_drained(it.broker)],
        )

    def _partitions(self, request: cg.DescribePartitions) -> cg.PartitionPlaces:
        image = self._quorum.image
        topic_id, topic = image.topic(request.name)
        first = max(0, request.skip)
        upto = min(first + cg.PARTITIONS_PER_PAGE, topic.partitions)
        found = [
            _described(image, (topic_id, number), image.partitions[topic_id, number])
            for number in range(first, upto)
        ]
        return cg.PartitionPlaces(found, more=upto < topic.partitions)

    def _drain_of(self, broker: int, sees: Callable[[str], bool]) -> cg.DrainStatus:
        image = self._quorum.image
        if broker not in image.brokers:
            raise ConfigError(f"there is no broker {broker}")
        led = [
            (at, image.partitions[at])
            for at in sorted(image.places.get(broker, ()))
            if image.partitions[at].leader == broker
        ]
        stuck = [(at, it) for at, it in led if not successors(it, image.may_lead, image.is_drained)]
        shown = [(at, it) for at, it in stuck if sees(image.topics[at[0]].name)]
        return cg.DrainStatus(
            broker, image.is_drained(broker), len(led), len(stuck),
            [_described(image, at, it) for at, it in shown[: cg.ILL_MAX]],
        )  # fmt: skip

    # --- orders ---
    async def _elect(self, request: cg.ElectLeaders) -> cg.LeadersElected:
        image = self._quorum.image
        if not request.topic:
            if request.partition is not None:
                raise ConfigError(f"partition {request.partition} of which topic? Name it")
            places = sorted(image.partitions)
        else:
            places = self._places(request.topic, request.partition)
        order = cr.Elect(tuple(places), is_unclean=request.unclean)
        changed = await self._quorum.ask(order, self._timeout)
        if request.unclean:
            logger.warning(
                "unclean election in topic %s, as an admin asked: %d partitions got another "
                "leader, and what it does not have is lost", request.topic or "*", changed,
            )  # fmt: skip
        return cg.LeadersElected(changed)

    async def _reassign(self, request: cg.ReassignPartition) -> ms.Done:
        places = self._places(request.topic, request.partition)
        factor = request.replication_factor
        order = cr.Reassign(tuple(places), tuple(request.replicas), replication_factor=factor)
        await self._quorum.ask(order, self._timeout)
        return ms.Done()

    async def _remove(self, broker: int) -> ms.Done:
        members = [member.node for member in _members(self._quorum.describe())]
        if broker not in self._quorum.image.brokers and broker not in members:
            there = ", ".join(str(number) for number in sorted(self._quorum.image.brokers))
            raise ConfigError(f"there is no broker {broker}: there are {there or 'none'}")
        await self._quorum.ask(cr.RemoveMember(broker), self._timeout)
        image = self._quorum.image
        if broker in image.brokers and not image.places.get(broker):
            await self._until_fenced(broker)
            await self._quorum.ask(cr.ForgetBroker(broker), self._timeout)
        return ms.Done()

    async def _until_fenced(self, broker: int) -> None:
        """Until the controller counts as gone who was stopped just now, within the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while broker in (brokers := self._quorum.image.brokers) and not (
                    brokers[broker].is_fenced
                ):
                    await asyncio.sleep(FENCED_POLL)

    def _places(self, name: str, partition: int | None) -> list[Place]:
        """That partition of a topic; None: all of them."""
        image = self._quorum.image
        topic_id, topic = image.topic(name)
        if partition is None:
            return image.partitions_of(topic_id)
        if not 0 <= partition < topic.partitions:
            raise UnknownTopicError(
                f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}"
            )
        return [(topic_id, partition)]


def _is_ill(image: Image, place: Place, it: Partition) -> bool:
    return (
        it.leader is None
        or len(it.isr) < len(it.replicas)
        or bool(it.offline)
        or is_below_min_insync(image, place, it)
    )


def _described(image: Image, place: Place, it: Partition) -> cg.PartitionPlace:
    return cg.PartitionPlace(
        image.topics[place[0]].name, place[1], NOBODY if it.leader is None else it.leader,
        it.leader_epoch, list(it.replicas), list(it.isr), list(it.target),
        list(it.offline), None if it.unclean is None else _recovery(it.unclean),
    )  # fmt: skip


def _recovery(it: UncleanRecovery) -> cg.UncleanRecovery:
    first = -1 if it.first is None else it.first
    return cg.UncleanRecovery(it.leader, it.leader_epoch, first, it.known_end, it.at)


def _brokers(image: Image) -> Iterator[cg.BrokerInfo]:
    leads = Counter(it.leader for it in image.partitions.values())
    replicas = Counter(broker for it in image.partitions.values() for broker in it.replicas)
    in_sync = Counter(broker for it in image.partitions.values() for broker in it.isr)
    for number, broker in sorted(image.brokers.items()):
        yield cg.BrokerInfo(
            number, broker.epoch, Endpoints.of(broker).clients, broker.rack, _state(broker),
            leads[number], replicas[number], in_sync[number],
        )  # fmt: skip


def _state(broker: BrokerRegistration) -> str:
    if broker.is_fenced:
        return "fenced"
    return "leaving" if broker.is_leaving else "up"


def _members(quorum: dict[str, Any]) -> Iterator[cg.QuorumMember]:
    for member in quorum["members"]:
        lag = member["lag"]
        yield cg.QuorumMember(
            member["node"], member["role"], NOBODY if lag is None else lag,
            member["trouble"][: cg.TROUBLE_MAX],
        )  # fmt: skip
