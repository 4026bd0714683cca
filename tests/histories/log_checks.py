"""What must hold between writers and the log, whoever reads it.

    phantom               a value came that nobody sent
    failed write          a value came whose sending had surely failed
    duplicate             one value stands at two places
    inconsistent offsets  two values stand at one place
    lost write            promised, below what was read by then, and unseen
    unseen                promised, above all that was read, and unseen at the end
    lost ring write       acknowledged without an offset, and unseen at the end
    torn transaction      some of a committed transaction is there and some is not
    non-monotonic send    of one writer in one partition, a later record stands before an earlier
    stale order           a record stands before another that was acknowledged when it was sent

Promised is what was acknowledged, and all of a transaction whose commit is known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from histories.anomalies import Anomaly, contains, found, look_up, rows_where
from histories.events import NOTHING, OFFSET_BITS, PLAIN, WRITER_SHIFT, Ints, value_name
from histories.facts import Facts, View


def phantoms(facts: Facts) -> Iterator[Anomaly]:
    unsent = rows_where(~contains(facts.send_value, facts.poll_value))
    yield from found("phantom", unsent, facts.describe_poll)
    failed = rows_where(contains(np.unique(facts.history.fails.col("value")), facts.poll_value))
    yield from found("failed write", failed, facts.describe_poll)


def places(facts: Facts) -> Iterator[Anomaly]:
    """Each value at one place, each place with one value."""
    place, value = facts.versions
    again = rows_where(place[1:] == place[:-1])
    yield from found(
        "inconsistent offsets",
        again,
        lambda row: (
            f"{facts.history.place_name(int(place[row]))}: "
            f"{facts.describe_value(int(value[row]))} / {facts.describe_value(int(value[row + 1]))}"
        ),
    )
    order = np.lexsort((place, value))
    place, value = place[order], value[order]
    twice = rows_where(value[1:] == value[:-1])
    yield from found(
        "duplicate",
        twice,
        lambda row: (
            f"{facts.describe_value(int(value[row]))} stands at "
            f"{facts.history.place_name(int(place[row]))} and "
            f"{facts.history.place_name(int(place[row + 1]))}"
        ),
    )


def lost(facts: Facts) -> Iterator[Anomaly]:
    """By what each isolation level's readers saw together."""
    value, row = facts.promised
    place = np.where(row == NOTHING, NOTHING, facts.ack_place[row] if len(facts.ack_place) else row)
    for view in (facts.committed_view, facts.uncommitted_view):
        yield from _lost_in(facts, view, value, place)


def _lost_in(facts: Facts, view: View, value: Ints, place: Ints) -> Iterator[Anomaly]:
    unseen = ~contains(view.values, value)
    placed = place != NOTHING
    highest = view.highest[place >> OFFSET_BITS] if len(view.highest) else place
    below = placed & (place <= highest)

    def tell(index: int) -> str:
        return f"{facts.describe_value(int(value[index]))}; not seen by {view.name}"

    yield from found("lost write", rows_where(unseen & below), tell)
    if not view.is_complete:
        return
    at_end = unseen & placed & ~below
    yield from found("unseen", rows_where(at_end), tell)
    bare = rows_where(unseen & ~placed & (facts.fate_of(value) != PLAIN))
    yield from found("torn transaction", bare, tell)
    alone = rows_where(unseen & ~placed & (facts.fate_of(value) == PLAIN))
    yield from found("lost ring write", alone, tell)


def order_of_writers(facts: Facts) -> Iterator[Anomaly]:
    """The values of a writer grow as it sends, so in each partition they must grow with offsets."""
    place, value = facts.versions
    partition, writer = place >> OFFSET_BITS, value >> WRITER_SHIFT
    order = np.lexsort((place, writer, partition))
    place, value = place[order], value[order]
    partition, writer = partition[order], writer[order]
    same = (partition[1:] == partition[:-1]) & (writer[1:] == writer[:-1])
    back = rows_where(same & (value[1:] < value[:-1]))
    yield from found(
        "non-monotonic send",
        back,
        lambda row: (
            f"{value_name(int(value[row]))} at {facts.history.place_name(int(place[row]))} stands "
            f"before {value_name(int(value[row + 1]))} at "
            f"{facts.history.place_name(int(place[row + 1]))}, which was sent earlier"
        ),
    )


def order_of_time(facts: Facts) -> Iterator[Anomaly]:
    """What is acknowledged before another record is sent stands before it."""
    place, value = facts.versions
    sent = look_up(facts.send_value, facts.send_time, value, NOTHING)
    known = facts.ack_place != NOTHING
    acked_values, first = np.unique(facts.ack_value[known], return_index=True)
    acked = look_up(acked_values, facts.ack_time[known][first], value, np.iinfo(np.int64).max)
    partition = place >> OFFSET_BITS
    # The latest send among all that stand at or before a place, partition by partition.
    latest = np.empty(len(place), np.int64)
    bounds = np.flatnonzero(np.diff(partition)) + 1
    for start, stop in zip([0, *bounds], [*bounds, len(place)], strict=True):
        latest[start:stop] = np.maximum.accumulate(sent[start:stop])
    late = rows_where(latest > acked)
    yield from found(
        "stale order",
        late,
        lambda row: (
            f"{facts.describe_value(int(value[row]))} stands behind a record of its partition that "
            f"was sent at t={int(latest[row])}"
        ),
    )


CHECKS = (phantoms, places, lost, order_of_writers, order_of_time)
