"""Jobs that are done together with a transaction: checked and accepted within its decision.

All of them are still their workers', or nothing of the transaction counts. Owns that check, and
the records that go into the batch of the decision; decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.cluster.decisions import Record
from penstock.cluster.shares.groups import ShareGroups
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.records import Delta
from penstock.cluster.shares.runs import Runs, count
from penstock.cluster.shares.share_log import Place
from penstock.core.errors import ConfigError, StaleGenerationError


class AcceptedLease(NamedTuple):
    """Records of a lease that are done. `name`: what a message calls the partition."""

    place: Place
    lease: int
    runs: Runs
    name: str


class AcceptedJobs(NamedTuple):
    """Jobs that a member of a share group has done."""

    group: str
    member: str
    leases: Sequence[AcceptedLease]


class TransactedJobs:
    """The part of the share groups that transactions use."""

    def __init__(self, shares: ShareGroups) -> None:
        self._shares = shares

    def check_done(self, done: Sequence[AcceptedJobs]) -> None:
        """Raises StaleGenerationError unless each record is still its member's by the lease that is
        named, and `ConfigError` for a lease that is named twice."""
        named: set[tuple[str, Place, int]] = set()
        for group, member, leases in done:
            for place, lease, runs, told in leases:
                if (group, place, lease) in named:
                    raise ConfigError(
                        f"lease {lease} of {told} in share group {group!r} is named twice"
                    )
                named.add((group, place, lease))
                machine = self._machine(group, place)
                stale = runs if machine is None else machine.not_held(member, lease, runs)
                if stale:
                    if machine is not None:
                        self._shares.count(group, "stale", count(stale))
                    raise StaleGenerationError(
                        f"the job at offset {stale[0][0]} of {told} is not this worker's any more "
                        f"(lease {lease} of share group {group!r}): it was answered, or went to "
                        "another worker"
                    )

    def done_records(
        self, done: Sequence[AcceptedJobs]
    ) -> tuple[tuple[Record, ...], frozenset[str]]:
        """The records that accept jobs which were checked in the same decision, one a partition;
        and the members that have something to do now."""
        called: frozenset[str] = frozenset()
        deltas: dict[tuple[str, Place], list[Delta]] = {}
        for group, _, leases in done:
            for place, lease, runs, _ in leases:
                machine = self._machine(group, place)
                assert machine is not None, "it was checked"
                found, answer = machine.accept(lease, runs)
                self._shares.count(group, "accepted", answer.settled)
                called |= self._shares.called(group, answer.freed)
                deltas.setdefault((group, place), []).extend(found)
        records = []
        for (group, place), accepted in deltas.items():
            share = self._shares.share(group, place)
            if accepted and share is not None:
                records.append(share.record_of(tuple(accepted)))
        return tuple(records), called

    def is_holder(self, group: str, member: str, place: Place, lease: int) -> bool:
        """Whether that member has something to answer for by that lease."""
        machine = self._machine(group, place)
        return machine is not None and machine.is_of(member, lease)

    def _machine(self, group: str, place: Place) -> SharePartition | None:
        share = self._shares.share(group, place)
        return None if share is None else share.machine
