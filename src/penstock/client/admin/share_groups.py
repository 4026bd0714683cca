"""Share groups as an admin sees and moves them: what is ready, waiting, leased and condemned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.consumer.group.options import check_group_name
from penstock.client.consumer.logs import LogHandle
from penstock.client.remote.logs import logs_of
from penstock.client.session import Session
from penstock.client.validation import check_text
from penstock.core.errors import ConfigError
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh
from penstock.ipc.state import StatePage
from penstock.ipc.waits import run

AGES_BUDGET: Final = 1.0
"""Seconds that a description looks for the ages of records."""

Ask = Callable[[Any, type[Any]], Any]


@dataclass(frozen=True, slots=True)
class SharedPartition:
    """Progress of a share group in a partition.

    All records below `floor` are done, dead or skipped. No worker has had the records from
    `frontier` to `end` yet. `ready` records wait for a worker, `waiting` ones for their time
    after a failure, `leased` ones are worked on, `condemned` ones become dead letters. `lag`
    counts the records that are not done: all of these and those behind the frontier.
    `next_due`: seconds since the epoch, when the first that waits is ready; None: none waits.
    `ready_seconds`: age of the first record that only waits for a worker; 0: there is none,
    None: it is not known.
    """

    topic: str
    partition: int
    floor: int
    frontier: int
    end: int
    ready: int
    waiting: int
    leased: int
    condemned: int
    behind: int
    lag: int
    next_due: float | None
    ready_seconds: float | None


@dataclass(frozen=True, slots=True)
class GroupPause:
    """Why nobody gets records of a share group, and since when (seconds since the epoch). `by`:
    the principal who paused it; "" where its breaker did (`dead_share`)."""

    since: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group. `max_lease`: seconds, None where leases have no end. `dead_share`: None
    without a breaker. `dedup_window`: seconds, None where ids are
    not looked at. `pause`: None while it delivers. `leased`: records that each worker has to answer
    for. `counts`: since the coordinator serves. `drain_seconds`: when
    its lag is gone if it goes on as during the sample; None: never, or no sample was taken."""

    group: str
    max_deliveries: int
    backoff: tuple[float, float]
    start: str
    max_lease: float | None
    dead_share: float | None
    order: str | None
    fair: str | None
    dedup_window: float | None
    pause: GroupPause | None
    partitions: list[SharedPartition]
    leased: dict[str, int]
    lag: int
    ready_seconds: float | None
    drain_seconds: float | None
    counts: dict[str, int]


class ShareGroupAdmin:
    """Asks the coordinator through a function that it is given."""

    def __init__(self, ask: Ask, session: Session, timeout: float) -> None:
        self._ask = ask
        self._session = session
        self._logs = logs_of(session, timeout)

    def describe(self, group: str, sample: float) -> ShareGroupDescription:
        answer, found = self._asked(group)
        drain = None
        if sample > 0:
            before, begun = sum(map(self._lag_of, found)), time.monotonic()
            time.sleep(sample)
            answer, found = self._asked(group)
            left = sum(map(self._lag_of, found))
            shrinks = (before - left) / (time.monotonic() - begun)
            drain = 0.0 if left <= 0 else left / shrinks if shrinks > 0 else None
        ages = self._ages(found)
        partitions = [self._partition(one, age) for one, age in zip(found, ages, strict=True)]
        known = [one.ready_seconds for one in partitions if one.ready_seconds is not None]
        settings, pause = answer.settings, answer.pause
        return ShareGroupDescription(
            group,
            settings.max_deliveries,
            (settings.backoff_min, settings.backoff_max),
            settings.start,
            settings.max_lease or None,
            settings.dead_share or None,
            settings.order or None,
            settings.fair or None,
            settings.dedup_window or None,
            None if pause is None else GroupPause(pause.at_us / 1e6, pause.by, pause.reason),
            partitions,
            dict(answer.leased),
            sum(one.lag for one in partitions),
            max(known, default=None),
            drain,
            dict(answer.counts),
        )

    def _end_of(self, one: sh.SharePartitionInfo) -> int:
        page = self._page_of(one)
        return one.frontier if page is None else max(one.frontier, page.last_stable)

    def _page_of(self, one: sh.SharePartitionInfo) -> StatePage | None:
        page = self._session.page(one.page) if one.page >= 0 else None
        is_its = page is not None and page.identity == (one.topic_id, one.partition)
        return page if is_its else None

    def _lag_of(self, one: sh.SharePartitionInfo) -> int:
        left = one.ready + one.waiting + one.leased + one.condemned + one.behind
        return left + self._end_of(one) - one.frontier

    def _partition(self, one: sh.SharePartitionInfo, age: float | None) -> SharedPartition:
        return SharedPartition(
            one.topic, one.partition, one.floor, one.frontier, self._end_of(one),
            one.ready, one.waiting, one.leased, one.condemned, one.behind,
            self._lag_of(one),
            one.next_due_us / 1e6 if one.next_due_us else None, age,
        )  # fmt: skip

    def _ages(self, found: list[sh.SharePartitionInfo]) -> list[float | None]:
        """How old the first record of each is that waits for a worker, by the time index."""
        ages: list[float | None] = [0.0] * len(found)
        numbers, places = [], []
        for number, one in enumerate(found):
            page = self._page_of(one)
            first = one.ready_from if one.ready_from >= 0 else one.frontier
            if page is not None and first < page.last_stable:
                numbers.append(number)
                log = LogHandle(page, one.topic_id, one.partition)
                places.append((log, max(first, page.log_start)))
        now = time.time()
        for number, at in zip(numbers, run(self._logs.dating(places, AGES_BUDGET)), strict=True):
            ages[number] = None if at is None else max(0.0, now - at)
        return ages

    def pause(self, group: str, reason: str) -> None:
        check_group_name(group)
        check_text("reason", reason)
        if len(reason) > sh.REASON_MAX:
            raise ConfigError(
                f"reason: {len(reason)} characters; {sh.REASON_MAX} at most (REASON_MAX)"
            )
        self._ask(sh.PauseShare(group, reason), ms.Done)

    def resume(self, group: str) -> None:
        check_group_name(group)
        self._ask(sh.ResumeShare(group), ms.Done)

    def seek(self, group: str, topic: ms.TopicInfo, places: Sequence[tuple[int, int]]) -> None:
        """Sets where the group begins now, as (partition, offset).

        Its workers cannot answer any more for records that they hold of these partitions.
        """
        for partition, offset in places:
            self._ask(sh.SeekShare(group, topic.topic_id, partition, offset), ms.Done)

    def floors(self, group: str, topic_id: bytes) -> dict[int, int]:
        """By partition of a topic, the first offset that is not done."""
        _, found = self._asked(group)
        return {one.partition: one.floor for one in found if one.topic_id == topic_id}

    def _asked(self, group: str) -> tuple[sh.ShareDescription, list[sh.SharePartitionInfo]]:
        check_group_name(group)
        first = page = self._ask(sh.DescribeShare(group), sh.ShareDescription)
        found = list(first.partitions)
        while page.more and page.partitions:
            page = self._ask(sh.DescribeShare(group, len(found)), sh.ShareDescription)
            found += page.partitions
        return first, found
