"""Consumer groups as a pure machine: the owners of partitions, and the committed offsets.

`Groups` is the machine; it decides records, and only `replay` changes it. `types` has its inputs
and answers.
"""

from __future__ import annotations

from penstock.cluster.groups.machine import GroupMachine
from penstock.cluster.groups.records import Member
from penstock.cluster.groups.types import (
    Assignment,
    Claim,
    Claimed,
    ClientIdentity,
    GroupDescription,
    GroupInfo,
    GroupLimits,
    GroupList,
    GroupPartition,
    MemberInfo,
    OffsetCommit,
    OffsetSeek,
    OwnedPartition,
    Release,
)

__all__ = [
    "Assignment",
    "Claim",
    "Claimed",
    "ClientIdentity",
    "GroupDescription",
    "GroupInfo",
    "GroupLimits",
    "GroupList",
    "GroupMachine",
    "GroupPartition",
    "Member",
    "MemberInfo",
    "OffsetCommit",
    "OffsetSeek",
    "OwnedPartition",
    "Release",
]
