"""Decisions of the machine of a group in a partition, and the answers to members."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from penstock.cluster.shares import records as rec
from penstock.cluster.shares.runs import Run, Runs

T_co = TypeVar("T_co", covariant=True)


class ShareDecision(NamedTuple, Generic[T_co]):
    """`deltas` are replayed at once, appended as one batch, and the answer given after that."""

    deltas: tuple[rec.Delta, ...]
    answer: T_co


class LeaseGranted(NamedTuple):
    """Records that a member works on. `deliveries`: how often each run was delivered by now."""

    lease: int
    runs: Runs
    deliveries: tuple[tuple[int, Run], ...]


class LeaseAnswered(NamedTuple):
    """`stale`: runs that the lease does not hold, so that nothing changed. They were answered for
    before, or their member was taken for gone. `freed`: records that are ready now, since the one
    before them of their key is over."""

    settled: int
    stale: Runs
    condemned: int = 0
    freed: int = 0
