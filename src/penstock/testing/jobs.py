"""Workers of share groups in a test: deliver what there is to a handler, look at what is left.

Each helper takes where to go as a `Broker`, a `Cluster`, a `Client` or a URL. Every wait is
bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.admin.admin import ShareGroupDescription
from penstock.client.share.jobs import Job
from penstock.testing.records import Target, client_of
from penstock.testing.waiting import wait_until

TURN: Final = 0.05
"""Seconds of one poll: what is under way may be nothing that this worker gets."""


@dataclass(frozen=True, slots=True)
class HandledJob:
    """A job that a handler was called with. `error`: what it raised, so that the job failed."""

    job: Job
    error: Exception | None = None


def deliver(
    target: Target,
    topic: str,
    handler: Callable[[Job], object],
    *,
    group: str,
    timeout: float = 10.0,
    **options: Any,
) -> list[HandledJob]:
    """Calls the handler for each record of the topic that a worker of the group can get now, as a
    worker does: done when it returns, failed when it raises, dead letters written. Each record is
    handed out once a call, also where its wait is over by then. `options`: of `share_consumer`.

    Raises AssertionError that says what is left after `timeout` seconds, or why the group is
    paused.
    """
    handled: list[HandledJob] = []
    seen: set[tuple[int, int]] = set()
    back: set[tuple[int, int]] = set()
    deadline = time.monotonic() + timeout
    with (
        client_of(target) as client,
        client.admin() as admin,
        client.share_consumer(topic, group=group, **options) as worker,
    ):
        partitions = len(admin.describe_topic(topic).partitions)
        while True:
            for job in worker.poll(timeout=TURN):
                place = job.partition, job.offset
                if place in seen:
                    job.release()
                    back.add(place)
                else:
                    seen.add(place)
                    handled.append(_handled(job, handler))
            worker.flush()
            left = admin.describe_share_group(group)
            of_topic = [one for one in left.partitions if one.topic == topic]
            ready = sum(one.ready + one.end - one.frontier for one in of_topic) - len(back)
            condemned = sum(one.condemned for one in of_topic)
            is_all_here = not left.leased.get(worker.member_id)
            if len(of_topic) == partitions and ready <= 0 and is_all_here and not condemned:
                return handled
            if left.pause is not None:
                raise AssertionError(f"share group {group!r} is paused: {left.pause.reason}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"of topic {topic!r} share group {group!r} was delivered {len(handled)} "
                    f"records within {timeout:g} s; {ready} are ready, {condemned} are to become "
                    "dead letters"
                )


def _handled(job: Job, handler: Callable[[Job], object]) -> HandledJob:
    try:
        with job:
            handler(job)
    except Exception as error:
        return HandledJob(job, error)
    return HandledJob(job)


def assert_jobs(
    target: Target,
    group: str,
    *,
    timeout: float = 10.0,
    **expected: int,
) -> ShareGroupDescription:
    """A share group has so many records that are `ready` for a worker (also those that nobody had
    yet), `waiting` for their time, `leased`, `condemned` and not done (`lag`), in partitions that
    a worker has asked for. Waits up to `timeout` seconds for that; what is not named may be
    anything. Returns the description, which has `leased` by worker.

    Raises AssertionError with what is so.
    """
    unknown = expected.keys() - {"ready", "waiting", "leased", "condemned", "lag"}
    if unknown:
        raise TypeError(f"assert_jobs() has no {', '.join(sorted(unknown))}")
    with client_of(target) as client, client.admin() as admin:
        found: dict[str, int] = {}

        def described() -> ShareGroupDescription | None:
            left = admin.describe_share_group(group)
            found.update(_counted(left))
            return left if expected.items() <= found.items() else None

        found_so = wait_until(
            described, timeout, lambda: f"share group {group!r}: {expected}, and not {found}"
        )
        assert found_so is not None
        return found_so


def _counted(left: ShareGroupDescription) -> dict[str, int]:
    return {
        "ready": sum(one.ready + one.end - one.frontier for one in left.partitions),
        "waiting": sum(one.waiting for one in left.partitions),
        "leased": sum(one.leased for one in left.partitions),
        "condemned": sum(one.condemned for one in left.partitions),
        "lag": left.lag,
    }
