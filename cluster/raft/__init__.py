"""Raft, pure: the controller's log, agreed on by a quorum of brokers.

    raft = Raft(1, fresh(1, 2, 3), RaftConfig(), random.random, now)
    effects = raft.tick(now)  # at raft.deadline; likewise of receive, persisted, propose, ...

Knows neither sockets nor files nor clocks. The controller owns the meaning of entries.
"""

from __future__ import annotations

from penstock.cluster.raft.config import RaftConfig
from penstock.cluster.raft.machine import Effects, Raft
from penstock.cluster.raft.messages import (
    LogEntry,
    Members,
    RaftMessage,
    Saved,
    Snapshot,
    Write,
    fresh,
)

__all__ = [
    "Effects",
    "LogEntry",
    "Members",
    "Raft",
    "RaftConfig",
    "RaftMessage",
    "Saved",
    "Snapshot",
    "Write",
    "fresh",
]
