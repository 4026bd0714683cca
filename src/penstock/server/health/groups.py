"""How far groups are behind: what they committed comes from the coordinator, the rest from pages.

Bounded: a page tells of `GROUPS_MAX` groups and asks for `SECONDS_MAX` at most; what is over is
left out and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.cluster.groups import windows
from penstock.ipc import coordination as co
from penstock.ipc import sharing as sh
from penstock.observe.ages import LogPosition
from penstock.observe.sample import PartitionSample, Sample
from penstock.server.health import share_groups
from penstock.server.health.local import NOWHERE, LocalMetrics
from penstock.server.health.page import Page, labels

GROUPS_MAX: Final = 500
SECONDS_MAX: Final = 2.0
NUMBERS: Final = 1 << 20
"""More than there are numbers of groups at a time."""

Ask = Callable[[Any, type[Any]], Any]


class GroupMetrics:
    """`ask` puts a request to the node and raises a `PenstockError`."""

    def __init__(self, ask: Ask, local: LocalMetrics) -> None:
        self._ask = ask
        self._local = local
        self._numbers: dict[str, int] = {}

    def write(self, page: Page, sample: Sample) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        described: list[tuple[co.GroupInfo, list[co.GroupPartition]]] = []
        shared: dict[str, list[sh.SharePartitionInfo]] = {}
        for info in self._listed():
            if len(described) >= GROUPS_MAX or time.monotonic() >= deadline:
                page.omitted += 1
                continue
            described.append((info, self._partitions(page, info)))
            if info.guarantee == share_groups.SHARED:
                shared[info.group] = share_groups.asked_of(self._ask, page, info.group)
        self._number([info.group for info, _ in described])
        places: dict[tuple[str, int], LogPosition] = {}
        earlier: dict[tuple[str, int], dict[int, LogPosition]] = {}
        for info, rows in described:
            for row in rows:
                part = sample.partitions.get(row.page)
                if part is not None and row.offset < part.high_watermark:
                    number = self._numbers[info.group]
                    places[info.group, row.page] = self._local.place(number, part, row.offset)
                    earlier[info.group, row.page] = self._earlier(number, part, row)
        for group, shares in shared.items():
            number = self._numbers[group]
            found = share_groups.places_of(self._local, sample, number, shares)
            places |= {(group, at): place for at, place in found.items()}
        before = [place for by_offset in earlier.values() for place in by_offset.values()]
        times = self._local.ages.times([*places.values(), *before])
        for group, shares in shared.items():
            at = {row.page: times.get(places.get((group, row.page), NOWHERE)) for row in shares}
            ages = {n: max(0.0, sample.time - one) for n, one in at.items() if one is not None}
            share_groups.write(page, sample, group, shares, ages)
        for info, rows in described:
            for row in rows:
                part = sample.partitions.get(row.page)
                if part is None:
                    continue
                where = labels(group=info.group, topic=row.topic, partition=row.partition)
                lag = max(0, part.high_watermark - row.offset)
                page.add("penstock_group_committed_offset", row.offset, where)
                page.add("penstock_group_lag_records", lag, where)
                place = places.get((info.group, row.page))
                if place is None:
                    page.add("penstock_group_lag_seconds", 0, where)
                elif place in times:
                    age = max(0.0, sample.time - times[place])
                    page.add("penstock_group_lag_seconds", age, where)
                    if row.topic in sample.retentions:
                        left = sample.retentions[row.topic] - age
                        page.add("penstock_group_retention_left_seconds", left, where)
                known = earlier.get((info.group, row.page), {})
                appended = {offset: times[at] for offset, at in known.items() if at in times}
                status, _ = windows.judge(row.commits, sample.time, lag, appended)
                page.add("penstock_group_status", windows.SEVERITY[status], where)

    def _earlier(
        self, number: int, part: PartitionSample, row: co.GroupPartition
    ) -> dict[int, LogPosition]:
        """The places by which its last commits are judged, by offset. Each is of a reader of its
        own, since `ages` remembers one place of each."""
        return {
            offset: self._local.place(number - nth * NUMBERS, part, offset)
            for nth, offset in enumerate(windows.places(row.commits))
            if offset >= part.log_start
        }

    def _number(self, groups: list[str]) -> None:
        """Readers of a log are told apart by numbers; those of consumers are 0 and up."""
        for group in groups:
            self._numbers.setdefault(group, -1 - len(self._numbers))
        if len(self._numbers) > 2 * GROUPS_MAX:
            self._numbers = {group: -1 - number for number, group in enumerate(groups)}

    def _listed(self) -> Iterator[co.GroupInfo]:
        last = ""
        while True:
            answer = self._ask(co.ListGroups(last), co.Groups)
            yield from answer.groups
            if not answer.more:
                return
            last = answer.groups[-1].group

    def _partitions(self, page: Page, info: co.GroupInfo) -> list[co.GroupPartition]:
        """Those in which something is committed; what one line a group tells is written here."""
        found: list[co.GroupPartition] = []
        seen = 0
        while True:
            answer = self._ask(co.DescribeGroup(info.group, seen), co.GroupDescription)
            seen += len(answer.partitions)
            found += [row for row in answer.partitions if row.offset != co.NO_OFFSET]
            if not answer.more:
                break
        where = labels(group=info.group)
        page.add("penstock_group_members", info.members, where)
        page.add("penstock_group_moving", int(info.state == "moving"), where)
        page.add("penstock_group_skipped_records_total", answer.skipped, where)
        return found
