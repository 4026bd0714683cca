"""The counts of a replicator since its start, for `Lives`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ReplicatorCounts:
    """Sizes are bytes. `garbage`: what came from a leader and could not be taken; `unread`: reads
    of the log here that failed."""

    fetches_in: int = 0
    fetches_out: int = 0
    answers_in: int = 0
    answers_out: int = 0
    batches_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused_in: int = 0
    refused_out: int = 0
    truncations: int = 0
    truncated_below: int = 0
    restarted: int = 0
    isr_grows: int = 0
    isr_shrinks: int = 0
    isr_refused: int = 0
    elections: int = 0
    connections_lost: int = 0
    timeouts: int = 0
    garbage: int = 0
    unread: int = 0
    unwritten: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
