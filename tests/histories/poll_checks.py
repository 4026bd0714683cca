"""What must hold for each reader while a partition is its own.

    non-monotonic poll  it got an offset at or below one that it had before
    skipped poll        it went past a record that is there for it to see
    unowned poll        a member of a group got records of a partition that was not its own

A reader's *era* in a partition begins when it is assigned or sought, and ends when it is revoked or
begins again: across eras it may go back and forth, which the checks of guarantees judge.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from histories.anomalies import Anomaly, found, rows_where
from histories.events import ABORTED, UNKNOWN, Ints
from histories.facts import Facts


def polls(facts: Facts) -> Iterator[Anomaly]:
    if not len(facts.poll_era):
        return
    order = np.argsort(facts.poll_era, kind="stable")
    era, place = facts.poll_era[order], facts.poll_place[order]
    same = era[1:] == era[:-1]

    def pair(row: int) -> str:
        before, after = int(order[row]), int(order[row + 1])
        return f"{facts.describe_poll(before)}, then {facts.describe_poll(after)}"

    yield from found("non-monotonic poll", rows_where(same & (place[1:] <= place[:-1])), pair)
    yield from _skips(facts, order)


def _skips(facts: Facts, order: Ints) -> Iterator[Anomaly]:
    """Among the places that a reader of its isolation level must see, the next one is due. Members
    that claim before they read may drop a claim (counted elsewhere) and are left out."""
    versions, values = facts.versions
    fate = facts.fate_of(values)
    reader = facts.poll_reader[order]
    era, place = facts.poll_era[order], facts.poll_place[order]
    for committed in (True, False):
        # Aborted records may be compacted away, and nobody has to see them.
        visible = (fate != ABORTED) & ~((fate == UNKNOWN) & committed)
        due = np.unique(versions[visible])
        mine = (facts.reader_is_committed[reader] == committed) & ~facts.may_skip[reader]
        before, after = np.searchsorted(due, place[:-1], "right"), np.searchsorted(due, place[1:])
        same = (era[1:] == era[:-1]) & mine[1:]
        gone = rows_where(same & (after > before))

        def tell(row: int, due=due, before=before, after=after) -> str:
            first = int(due[before[row]])
            count = int(after[row] - before[row])
            return (
                f"{facts.describe_poll(int(order[row]))}, then "
                f"{facts.describe_poll(int(order[row + 1]))}; {count} between them, the first at "
                f"{facts.history.place_name(first)}: "
                f"{facts.describe_value(int(values[np.searchsorted(versions, first)]))}"
            )

        yield from found("skipped poll", gone, tell)


def unowned(facts: Facts) -> Iterator[Anomaly]:
    lost = np.array([each.start is None for each in facts.history.eras] or [False])
    if len(facts.poll_era):
        yield from found("unowned poll", rows_where(lost[facts.poll_era]), facts.describe_poll)


CHECKS = (polls, unowned)
