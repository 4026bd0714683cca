"""A partition's replicas, pure: who leads, who follows, what is committed.

    replica = Replica(2, LogEnds(...), ReplicaConfig(), brokers)
    replica.assign(now, PartitionAssignment(...))     # what the controller says
    replica.fetch(now, FetchRequest(...))    # asked by a follower, where this one leads
    replica.fetched(...), replica.diverged(...)  # answers of the leader, where this one follows

Knows neither sockets nor files nor clocks; the bytes of the log are its shell's.
"""

from __future__ import annotations

from penstock.cluster.replica.follower import ReplicaFollower
from penstock.cluster.replica.leader import ReplicaLeader
from penstock.cluster.replica.ledger import LogEnds
from penstock.cluster.replica.machine import Replica
from penstock.cluster.replica.messages import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    IsrChange,
    IsrChanged,
    LogEnd,
    PartitionAssignment,
    ReplicaConfig,
    ReplicaRefusal,
)

__all__ = [
    "Diverged",
    "FetchRefused",
    "FetchRequest",
    "Fetched",
    "IsrChange",
    "IsrChanged",
    "LogEnd",
    "LogEnds",
    "PartitionAssignment",
    "Replica",
    "ReplicaConfig",
    "ReplicaFollower",
    "ReplicaLeader",
    "ReplicaRefusal",
]
