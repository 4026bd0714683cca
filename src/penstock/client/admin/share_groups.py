"""Share groups as an admin sees and moves them: what is ready, waiting, leased and condemned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.consumer.group.options import check_group_name
from penstock.client.session import Session
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh

Ask = Callable[[Any, type[Any]], Any]


@dataclass(frozen=True, slots=True)
class SharedPartition:
    """Where a share group stands in a partition. All below `floor` is done, dead or skipped; from
    `frontier` to `end` is what no worker has had yet. `ready` records wait for a worker, `waiting`
    ones for their time after a failure, `leased` ones are worked on, `condemned` ones become dead
    letters. `lag` is what is not done: all of these and the records behind the frontier.
    `next_due`: seconds since the epoch, when the first that waits is ready; None: none waits."""

    topic: str
    partition: int
    floor: int
    frontier: int
    end: int
    ready: int
    waiting: int
    leased: int
    condemned: int
    lag: int
    next_due: float | None


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group. `max_lease`: seconds, None where leases have no end. `leased`: records that
    each worker has to answer for. `counts`: since the coordinator serves."""

    group: str
    max_deliveries: int
    backoff: tuple[float, float]
    start: str
    max_lease: float | None
    partitions: list[SharedPartition]
    leased: dict[str, int]
    lag: int
    counts: dict[str, int]


class ShareGroupAdmin:
    """Asks the coordinator through a function that it is given."""

    def __init__(self, ask: Ask, session: Session) -> None:
        self._ask = ask
        self._session = session

    def describe(self, group: str) -> ShareGroupDescription:
        answer, found = self._asked(group)
        partitions = [self._partition(one) for one in found]
        settings = answer.settings
        return ShareGroupDescription(
            group,
            settings.max_deliveries,
            (settings.backoff_min, settings.backoff_max),
            settings.start,
            settings.max_lease or None,
            partitions,
            dict(answer.leased),
            sum(one.lag for one in partitions),
            dict(answer.counts),
        )

    def _partition(self, one: sh.SharePartitionInfo) -> SharedPartition:
        end = one.frontier
        if one.page >= 0:
            page = self._session.page(one.page)
            if page.identity == (one.topic_id, one.partition):
                end = max(end, page.last_stable)
        left = one.ready + one.waiting + one.leased + one.condemned
        return SharedPartition(
            one.topic, one.partition, one.floor, one.frontier, end,
            one.ready, one.waiting, one.leased, one.condemned, left + end - one.frontier,
            one.next_due_us / 1e6 if one.next_due_us else None,
        )  # fmt: skip

    def seek(self, group: str, topic: ms.TopicInfo, places: Sequence[tuple[int, int]]) -> None:
        """(partition, offset) where the group begins now. What its workers have of these
        partitions they cannot answer for any more."""
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
