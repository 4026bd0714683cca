"""The messages of admins about a cluster: brokers, leaders and followers, elections, reassignments.

They travel as the messages of `ipc.messages` do. Brokers are named by their numbers; -1 means none.
Lists come in pages, so that a message keeps its bound.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Broker = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
BROKERS_PER_PAGE: Final = 40
PARTITIONS_PER_PAGE: Final = 75
ILL_MAX: Final = 25
"""Partitions that a description names as not well; it counts them all."""
REPLICAS_MAX: Final = 16
TROUBLE_MAX: Final = 100
"""Characters of `QuorumMember.trouble`."""


class BrokerInfo(msgspec.Struct, frozen=True):
    """`state`: "up", "leaving" or "fenced". `leads`, `replicas`, `in_sync`: of how many partitions
    it is leader, has a replica, is one of the in-sync replicas."""

    broker: int
    epoch: int
    url: str
    rack: str
    state: str
    leads: int
    replicas: int
    in_sync: int


class QuorumMember(msgspec.Struct, frozen=True):
    """One that keeps the controller's log. `role`: "leader", "follower" or "learner", which has no
    vote. `behind`: entries that it does not have, as far as the leader knows; -1 where nobody
    knows. `trouble`: why it is not connected to the leader; empty where it is."""

    node: int
    role: str
    behind: int = -1
    trouble: str = ""


class UncleanRecovery(msgspec.Struct, frozen=True):
    """The last election in which no replica in sync was clean. The log of `leader`, elected in
    `leader_epoch`, ended at `first` (-1: not known): what was committed from there on may be
    missing. Offsets below `known_end` are known to have been used. `at`: seconds since 1970."""

    leader: int
    leader_epoch: int
    first: int
    known_end: int
    at: float


class PartitionPlace(msgspec.Struct, frozen=True):
    """Where a partition is. `target`: the replicas that a reassignment is to end with; `offline`:
    those whose log takes nothing; `unclean`: its last election without a clean replica."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    target: list[int] = []
    offline: list[int] = []
    unclean: UncleanRecovery | None = None


# --- client -> node -----------------------------------------------------------------------------
class DescribeCluster(msgspec.Struct, frozen=True, tag="describe_cluster"):
    """With the brokers, and the members of the quorum, from the `skip`-th on."""

    skip: int = 0


class DescribePartitions(msgspec.Struct, frozen=True, tag="describe_partitions"):
    """Where the partitions of a topic are, from the `skip`-th on."""

    name: str
    skip: int = 0


class ElectLeaders(msgspec.Struct, frozen=True, tag="elect_leaders"):
    """Have the first replica of each partition lead, if it is in sync. `topic` empty: of all;
    `partition` None: all of that topic. `unclean`: have anybody lead where nobody of the in-sync
    replicas is there; what it does not have is lost."""

    topic: str = ""
    partition: int | None = None
    unclean: bool = False


class ReassignPartition(msgspec.Struct, frozen=True, tag="reassign_partition"):
    """Move a partition to these brokers, the preferred leader first. It goes on meanwhile.
    `partition` None: all of the topic, and each broker comes first in turn. `replication_factor`
    instead of brokers: have so many replicas, wherever there is least."""

    topic: str
    partition: int | None = None
    replicas: Annotated[list[int], msgspec.Meta(max_length=REPLICAS_MAX)] = []
    replication_factor: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] = 0


class RemoveBroker(msgspec.Struct, frozen=True, tag="remove_broker"):
    """Take a broker that is stopped out of the quorum, and off the list if it has no replicas."""

    broker: Broker


class DrainBroker(msgspec.Struct, frozen=True, tag="drain_broker"):
    """Have other in-sync replicas lead what this broker leads, until it comes back from a restart,
    or this is undone."""

    broker: Broker
    undo: bool = False


class DescribeDrain(msgspec.Struct, frozen=True, tag="describe_drain"):
    """How far that is."""

    broker: Broker


Request = (
    DescribeCluster | DescribePartitions | ElectLeaders | ReassignPartition | RemoveBroker
    | DrainBroker | DescribeDrain
)  # fmt: skip


# --- node -> client -----------------------------------------------------------------------------
class ClusterDescription(msgspec.Struct, frozen=True, tag="cluster"):
    """The cluster as `broker` sees it. `controller`: the broker whose controller is active.
    `ill_partitions` counts those that have no leader, replicas out of sync, or fewer in sync than
    `min_insync_replicas`; `ill` names the first of them. `unclean_partitions` counts those that had
    an election without a clean replica within the last day; `unclean` names the first of them.
    `drained`: which of `brokers` are to lead nothing that another one could."""

    cluster_id: bytes
    broker: int
    controller: int
    term: int
    brokers: list[BrokerInfo]
    quorum: list[QuorumMember]
    topics: int
    partitions: int
    leaderless: int
    below_min_insync: int
    ill_partitions: int
    ill: list[PartitionPlace]
    more: bool = False
    unclean_partitions: int = 0
    unclean: list[PartitionPlace] = []
    drained: list[int] = []


class PartitionPlaces(msgspec.Struct, frozen=True, tag="partition_places"):
    partitions: list[PartitionPlace]
    more: bool


class LeadersElected(msgspec.Struct, frozen=True, tag="leaders_elected"):
    """How many partitions have another leader now."""

    changed: int


class DrainStatus(msgspec.Struct, frozen=True, tag="drain_status"):
    """`leads`: how many partitions that broker still leads; of them `stuck_partitions` have no
    other replica that could lead now, and `stuck` names the first ones."""

    broker: int
    is_drained: bool
    leads: int
    stuck_partitions: int
    stuck: list[PartitionPlace] = []


Reply = ClusterDescription | PartitionPlaces | LeadersElected | DrainStatus
