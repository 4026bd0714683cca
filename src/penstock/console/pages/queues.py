"""Queues: a share group with its jobs by state, and its leases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.groups import GroupDescription
from penstock.client.admin.peek import PeekedJob
from penstock.client.admin.share_groups import SharedPartition, ShareGroupDescription
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionPlan
from penstock.console.pages.records import preview

STATES: Final = ("leased", "ready", "waiting", "behind", "condemned", "new")
PARTITIONS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. `at`: when it was leased, or is due, in seconds since the epoch."""

    topic: str
    partition: int
    offset: int
    deliveries: int
    worker: str
    since: float | None
    due: float | None
    reason: str
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class QueuePageModel:
    """`sums`: jobs by state. `workers`: by member what it has leased, and its process."""

    name: str
    shares: ShareGroupDescription
    state: str
    jobs: tuple[JobRow, ...]
    sums: tuple[tuple[str, int], ...]
    workers: tuple[tuple[str, int, str], ...]
    partitions: tuple[SharedPartition, ...]
    left: int
    topics: tuple[str, ...]


def queue_model(
    group: GroupDescription, shares: ShareGroupDescription, state: str, jobs: Iterable[PeekedJob]
) -> QueuePageModel:
    parts = shares.partitions
    sums = [
        (name, sum(getattr(one, name) for one in parts))
        for name in ("ready", "leased", "waiting", "behind", "condemned")
    ]
    sums.append(("new", sum(max(0, one.end - one.frontier) for one in parts)))
    processes = {each.member_id: f"pid {each.pid}" if each.pid else "of another host"
                 for each in group.members}  # fmt: skip
    names = {**dict.fromkeys(processes, 0), **shares.leased}
    workers = [(name, count, processes.get(name, "is gone")) for name, count in names.items()]
    ranked = sorted(parts, key=lambda one: -one.lag)
    return QueuePageModel(
        shares.group, shares, state, tuple(_row(job) for job in jobs), tuple(sums),
        tuple(sorted(workers, key=lambda one: -one[1])), tuple(ranked[:PARTITIONS_SHOWN]),
        max(0, len(ranked) - PARTITIONS_SHOWN), tuple(sorted({one.topic for one in parts})),
    )  # fmt: skip


def _row(job: PeekedJob) -> JobRow:
    record = job.record
    return JobRow(
        job.topic, job.partition, job.offset, job.deliveries, job.worker or "", job.since, job.due,
        preview(job.reason.encode()) or "", None if record is None else preview(record.key),
        None if record is None else preview(record.value),
    )  # fmt: skip


def pause_plan(url: str, name: str, reason: str) -> ActionPlan:
    words = ("--reason", reason) if reason else ()
    return ActionPlan(
        f"Pause {name}",
        ("No worker gets further jobs; answers are taken, and leases go on.",),
        command(url, "group", "pause", name, *words), "Pause it", page_link("queue", name=name),
    )  # fmt: skip


def resume_plan(url: str, name: str) -> ActionPlan:
    return ActionPlan(
        f"Resume {name}", ("Workers get jobs again; its breaker begins to count.",),
        command(url, "group", "resume", name), "Resume it", page_link("queue", name=name),
    )  # fmt: skip
