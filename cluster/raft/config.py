"""Times and bounds of raft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Seconds and bounds.

    Args:
        election_timeout: a node that hears no leader for that long, up to twice it by chance,
            starts an election; a leader without a majority for that long gives up.
        heartbeat: how often a leader speaks.
        snapshot_timeout: how long a snapshot may be under way before it is sent again.
        message_bytes: about how much of the log a message carries at most.
        in_flight_max: messages with entries to one node without an answer.
        uncommitted_max: entries that wait for a majority.
    """

    election_timeout: float = 0.5
    heartbeat: float = 0.1
    snapshot_timeout: float = 5.0
    message_bytes: int = 256 << 10
    in_flight_max: int = 64
    uncommitted_max: int = 10_000
