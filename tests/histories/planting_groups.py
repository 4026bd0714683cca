"""Anomalies planted into correct histories: broken guarantees of groups and jobs."""

from __future__ import annotations

from typing import Any

from histories import planting
from histories.planting import promised
from histories.plot import PLANTERS, Plot, plants

__all__ = ["PLANTERS", "Plot", "planting"]


def _stranger(plot: Plot, guarantee: str, t: int, row: list[Any], claim: bool = False) -> None:
    """A member that comes late and gets these records."""
    hello = next(h for h in plot.hellos.values() if h.get("guarantee") == guarantee)
    lines = [dict(hello), {"e": "assigned", "t": t, "r": [row[:2]]}]
    if claim:
        lines.append({"e": "claimed", "t": t, "r": [[*row[:2], row[2][-1] + 1]]})
    lines.append({"e": "polls", "t": t + 1, "r": [row]})
    plot.lines["stranger"] = lines


def _row_of(plot: Plot, guarantee: str) -> list[Any] | None:
    found = plot.pick(r for w, r in plot.rows(plot.group(guarantee)) if r[2])
    return None if found is None else [*found[:2], *(c and list(c) for c in found[2:])]


@plants("delivered twice")
def another_member_gets_it_too(plot: Plot) -> bool:
    row = _row_of(plot, "at-most-once")
    if row is None:
        return False
    _stranger(plot, "at-most-once", 10**9, row, claim=True)
    return True


@plants("delivered twice")
def a_member_gets_it_again_after_a_rebalance(plot: Plot) -> bool:
    row = _row_of(plot, "at-most-once")
    if row is None:
        return False
    who = next(w for w, r in plot.rows(plot.group("at-most-once")) if r[3] == row[3])
    plot.lines[who] += [
        {"e": "assigned", "t": 10**9, "r": [row[:2]]}, {"e": "polls", "t": 10**9, "r": [row]},
    ]  # fmt: skip
    return True


@plants("unclaimed delivery")
def it_never_claimed(plot: Plot) -> bool:
    row = _row_of(plot, "at-most-once")
    for mine in plot.lines.values():
        mine[:] = [line for line in mine if line["e"] != "claimed"]
    return row is not None


@plants("unclaimed delivery")
def it_claimed_afterwards(plot: Plot) -> bool:
    found = plot.pick(
        line for who, line in plot.every("claimed")
        if _first_claim(plot, line) and _delivered(plot, line)
    )  # fmt: skip
    if found is None:
        return False
    found["t"] += 10**8
    return True


def _first_claim(plot: Plot, line: dict[str, Any]) -> bool:
    """Nobody claimed more of that partition before."""
    (topic, number, offset), t = line["r"][0], line["t"]
    return not any(
        other["t"] < t and other["r"][0][:2] == [topic, number] and other["r"][0][2] >= offset
        for _, other in plot.every("claimed")
    )


def _delivered(plot: Plot, line: dict[str, Any]) -> bool:
    topic, number, offset = line["r"][0]
    return any(
        row[:2] == [topic, number] and offset - 1 in row[2]
        for _, row in plot.rows(plot.group("at-most-once"))
    )


@plants("never delivered")
def no_member_ever_had_it(plot: Plot) -> bool:
    guarantee = plot.rng.choice(["at-least-once", "manual"])
    value = plot.pick(v for v in promised(plot) if plot.acked[v][0] in ("in", "also"))
    if value is None:
        return False
    plot.drop(value, plot.group(guarantee))
    return True


@plants("never delivered")
def the_job_never_had_it(plot: Plot) -> bool:
    value = plot.pick(v for v in promised(plot) if plot.acked[v][0] == "in")
    if value is None:
        return False
    plot.drop(value, plot.group("exactly-once"))
    return True


@plants("committed again")
def a_later_member_begins_too_low(plot: Plot) -> bool:
    guarantee = plot.rng.choice(["at-least-once", "manual", "exactly-once"])
    row = _row_of(plot, guarantee)
    if row is None:
        return False
    _stranger(plot, guarantee, 10**9, row)
    return _was_committed(plot, guarantee, row)


def _was_committed(plot: Plot, guarantee: str, row: list[Any]) -> bool:
    return any(
        each[:2] == row[:2] and each[2] > row[2][0]
        for who, line in plot.every("committed")
        if plot.group(guarantee)(who)
        for each in line["r"]
    )


@plants("lost commit")
def the_group_ends_below_its_commits(plot: Plot) -> bool:
    names = {plot.hellos[who]["group"] for who, _ in plot.every("committed")}
    found = plot.pick(line for _, line in plot.every("drained") if line["group"] in names)
    if found is None:
        return False
    found["r"] = [[topic, number, 0] for topic, number, _ in found["r"]]
    return True


def _outputs(plot: Plot) -> list[tuple[list[Any], int]]:
    return [
        (row, at)
        for _, row in plot.rows(lambda who: who == "late-read_committed")
        if row[4] is not None
        for at in range(len(row[2]))
        if row[4][at] in plot.acked and plot.txn(row[4][at]) is None
    ]


def _without_output(plot: Plot) -> bool:
    found = plot.pick(_outputs(plot))
    if found is None:
        return False
    plot.drop(found[0][3][found[1]])
    return True


@plants("missing output")
def an_input_has_no_output(plot: Plot) -> bool:
    return _without_output(plot)


@plants("offset without output")
def it_counts_as_consumed_and_has_no_output(plot: Plot) -> bool:
    return _without_output(plot)


@plants("output without offset")
def it_has_an_output_and_is_not_consumed(plot: Plot) -> bool:
    found = plot.pick(_outputs(plot))
    if found is None:
        return False
    topic, number, offset = plot.acked[found[0][4][found[1]]]
    for _, line in plot.every("drained"):
        if line["group"] == "job":
            line["r"] = [
                [t, n, offset if (t, n) == (topic, number) else at] for t, n, at in line["r"]
            ]
    return True


@plants("doubled output")
def an_input_has_two_outputs(plot: Plot) -> bool:
    found = _outputs(plot)
    if len(found) < 2:
        return False
    (row, at), (other, there) = plot.rng.sample(found, 2)
    plot.set_source(row[3][at], other[4][there])
    return True


@plants("output order")
def outputs_stand_in_another_order(plot: Plot) -> bool:
    rows: dict[int, tuple[list[Any], list[int]]] = {}
    for row, at in _outputs(plot):
        rows.setdefault(id(row), (row, []))[1].append(at)
    pairs = [
        (row, a, b)
        for row, places in rows.values()
        for a in places
        for b in places
        if a < b and plot.acked[row[4][a]][:2] == plot.acked[row[4][b]][:2]
    ]
    found = plot.pick(pairs)
    if found is None:
        return False
    row, a, b = found
    of_a, of_b = row[4][a], row[4][b]
    plot.set_source(row[3][a], of_b)
    plot.set_source(row[3][b], of_a)
    return True
