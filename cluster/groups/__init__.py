"""Consumer groups as a pure machine: who owns which partition, and what is committed.

`Groups` is the machine; it decides records and is changed by `replay` alone. What it is told and
answers is in `types`.
"""

from __future__ import annotations

from penstock.cluster.groups.machine import Groups
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
    "GroupPartition",
    "Groups",
    "Member",
    "MemberInfo",
    "OffsetCommit",
    "OffsetSeek",
    "OwnedPartition",
    "Release",
]
