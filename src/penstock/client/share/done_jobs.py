"""Jobs that a transaction has done: acknowledged with its records, or not at all.

Until the end is decided they are jobs without an answer, which their workers have. Owns the look at
them before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from penstock.client.share.jobs import Job, by_lease
from penstock.client.share.leases import runs_of
from penstock.core.errors import ConfigError, ResourceLimitError, TransactionError
from penstock.ipc.sharing import DONE_LEASES_MAX, RUNS_MAX, DoneJobs, DoneLease

Done: TypeAlias = "Job[Any, Any] | Iterable[Job[Any, Any]]"
"""A job, or several, of one share consumer or of several."""


def check_done(done: Done | None) -> list[Job[Any, Any]]:
    """Jobs that a transaction may acknowledge. Raises `ConfigError` for what is none or is named
    twice, `TransactionError` for one that was answered, `ResourceLimitError` for too many."""
    if isinstance(done, Job):
        jobs: list[Job[Any, Any]] = [done]
    elif done is None:
        return []
    elif isinstance(done, Iterable) and not isinstance(done, str | bytes):
        jobs = [*done]
    else:
        raise ConfigError(f"done={done!r}: a transaction is done with jobs of a share consumer")
    for job in jobs:
        if not isinstance(job, Job):
            raise ConfigError(f"done=: {job!r} is no job of a share consumer")
        if job.is_answered:
            raise TransactionError(
                f"done=: {job!r}: it cannot be acknowledged with a transaction any more; leave the "
                "answer to the transaction, or leave the job out"
            )
    for offsets in by_lease(jobs).values():
        if len(set(offsets)) < len(offsets):
            twice = next(job for job in jobs if offsets.count(job.offset) > 1)
            raise ConfigError(f"done=: {twice!r} is named twice")
    messages_for(jobs)
    return jobs


def messages_for(jobs: Sequence[Job[Any, Any]]) -> list[DoneJobs]:
    """The jobs as the coordinator is told of them. Raises `ResourceLimitError`."""
    found: dict[tuple[str, str], list[DoneLease]] = {}
    leases = by_lease(jobs)
    runs = 0
    for (held, workers), offsets in leases.items():
        one = DoneLease(held.topic_id, held.name[1], held.number, [*runs_of(offsets)])
        found.setdefault((workers.group, workers.member_id()), []).append(one)
        runs += len(one.runs)
    if len(leases) > DONE_LEASES_MAX or runs > RUNS_MAX:
        raise ResourceLimitError(
            f"done=: {len(jobs)} jobs in {runs} runs of offsets, by {len(leases)} leases, are more "
            f"than a transaction takes: RUNS_MAX={RUNS_MAX} and DONE_LEASES_MAX={DONE_LEASES_MAX}; "
            "take several transactions"
        )
    return [DoneJobs(*who, each) for who, each in found.items()]
