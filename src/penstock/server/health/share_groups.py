"""How far share groups are: numbers of records by state, and what became of them, by topic.

Bounded: lines are for topics of a group, not for partitions or workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.ipc import sharing as sh
from penstock.observe.ages import LogPosition
from penstock.observe.sample import Sample
from penstock.server.health.local import LocalMetrics
from penstock.server.health.page import Page, labels

SHARED: Final = "shared"
"""The guarantee of its members."""
STATES: Final = ("ready", "waiting", "leased", "condemned", "behind")


def asked_of(
    ask: Callable[[Any, type[Any]], Any], page: Page, group: str
) -> list[sh.SharePartitionInfo]:
    """Its partitions; what one line a group tells is written here."""
    first = answer = ask(sh.DescribeShare(group), sh.ShareDescription)
    found = list(answer.partitions)
    while answer.more and answer.partitions:
        answer = ask(sh.DescribeShare(group, len(found)), sh.ShareDescription)
        found += answer.partitions
    page.add("penstock_share_group_paused", int(first.pause is not None), labels(group=group))
    for event, count in sorted(first.counts.items()):
        page.add("penstock_share_group_events_total", count, labels(group=group, event=event))
    return found


def places_of(
    local: LocalMetrics, sample: Sample, number: int, rows: Iterable[sh.SharePartitionInfo]
) -> dict[int, LogPosition]:
    """By page, the place of the first record that is not done. `number`: of the group."""
    found = {}
    for row in rows:
        part = sample.partitions.get(row.page)
        if part is not None and row.floor < part.last_stable:
            found[row.page] = local.place(number, part, row.floor)
    return found


def write(
    page: Page,
    sample: Sample,
    group: str,
    rows: Iterable[sh.SharePartitionInfo],
    ages: dict[int, float],
) -> None:
    """`ages`: seconds, by page, of records at `places_of`, as far as they are known."""
    states: dict[str, Counter[str]] = {}
    oldest: dict[str, float] = {}
    for row in rows:
        part = sample.partitions.get(row.page)
        counts = states.setdefault(row.topic, Counter())
        for state in STATES:
            counts[state] += getattr(row, state)
            counts["lag"] += getattr(row, state)
        counts["new"] += 0 if part is None else max(0, part.last_stable - row.frontier)
        oldest[row.topic] = max(oldest.get(row.topic, 0.0), ages.get(row.page, 0.0))
    for topic, counts in states.items():
        where = {"group": group, "topic": topic}
        for state in (*STATES, "new"):
            count, at = counts[state], labels(**where, state=state)
            page.add("penstock_share_group_records", count, at)
        lag = counts["lag"] + counts["new"]
        page.add("penstock_share_group_lag_records", lag, labels(**where))
        page.add("penstock_share_group_oldest_seconds", oldest[topic], labels(**where))
