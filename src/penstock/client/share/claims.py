"""Jobs with dedup ids, from when they are read until the coordinator knows of them.

A job whose record has a dedup id is handed out once the coordinator said that it is the first of
its id. Others of the id are done by then. Owns the jobs that wait for that. Knows no clocks, and
not the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.client.share.jobs import Job
from penstock.client.share.leases import OpenLease, runs_of
from penstock.cluster.shares.dedup_ids import columns_of_ids
from penstock.cluster.shares.runs import Run, Runs
from penstock.ipc.sharing import CLAIMS_MAX, ClaimedIds


class WaitingJob(NamedTuple):
    """A job that nobody has yet, and its lease."""

    held: OpenLease
    job: Job


class SentClaims(NamedTuple):
    """Claims on their way, and the jobs of each."""

    claims: list[ClaimedIds]
    jobs: list[list[WaitingJob]]


class JudgedJobs(NamedTuple):
    """`first`: to be handed out. `withheld`: leases and what they have no more. `left`: those that
    still wait."""

    first: list[WaitingJob]
    withheld: list[tuple[OpenLease, Runs]]
    duplicates: int
    left: list[WaitingJob]


NO_CLAIMS: Final = SentClaims([], [])


class WaitingClaims:
    """Jobs that are read and not known to be the first ones of their ids. The oldest come first."""

    def __init__(self) -> None:
        self.jobs: list[WaitingJob] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def outgoing(self) -> SentClaims:
        """Returns the claims to send next, as many as one request takes."""
        if not self.jobs:
            return NO_CLAIMS
        by_lease: dict[int, list[WaitingJob]] = {}
        self.jobs = [one for one in self.jobs if not one.held.is_void]
        for one in self.jobs[:CLAIMS_MAX]:
            by_lease.setdefault(id(one.held), []).append(one)
        found = [sorted(each, key=_offset) for each in by_lease.values()]
        return SentClaims([_claim_of(each) for each in found], found)

    def judged(self, sent: SentClaims, withheld: Iterable[Sequence[Run]]) -> JudgedJobs:
        """Says what the coordinator's answer makes of them; changes nothing."""
        waiting = {id(one.job) for one in self.jobs}
        first: list[WaitingJob] = []
        gone: list[tuple[OpenLease, Runs]] = []
        duplicates = 0
        for jobs, told in zip(sent.jobs, withheld, strict=True):
            runs = tuple((begin, end) for begin, end in told)
            for one in jobs:
                if id(one.job) not in waiting:
                    continue  # it was given back meanwhile
                if any(begin <= one.job.offset < end for begin, end in runs):
                    duplicates += 1
                else:
                    first.append(one)
            if runs:
                gone.append((jobs[0].held, runs))
        asked = {id(one.job) for jobs in sent.jobs for one in jobs}
        left = [one for one in self.jobs if id(one.job) not in asked]
        return JudgedJobs(first, gone, duplicates, left)


def _offset(one: WaitingJob) -> int:
    return one.job.offset


def _claim_of(jobs: list[WaitingJob]) -> ClaimedIds:
    """The claim of jobs of one lease, in the order of their offsets."""
    held = jobs[0].held
    ids = [(one.job.key, one.job.record.dedup_id or b"") for one in jobs]
    digests, stamps = columns_of_ids(ids, [one.job.timestamp for one in jobs])
    runs = [*runs_of([one.job.offset for one in jobs])]
    return ClaimedIds(held.topic_id, held.name[1], held.number, runs, digests, stamps)
