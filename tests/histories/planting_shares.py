"""Anomalies planted into correct histories: broken promises of share groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from histories.plot import Planter, Plot, plants

PLANTERS: list[tuple[str, Planter]] = []
"""Those for the lines of a `ShareWorld`."""

LATE = 10**9
"""A time after all that happens in a run."""


def _taken(plot: Plot) -> Iterator[tuple[str, list[Any]]]:
    for who, line in plot.every("taken"):
        for row in line["r"]:
            yield who, row


def _name(row: list[Any]) -> list[Any]:
    """By which an answer names a lease."""
    return [*row[:3], row[4]]


def _answer(plot: Plot, row: list[Any]) -> dict[str, Any] | None:
    """The first line that answers for it."""
    found = (line for _, line in plot.every("answers") if _name(row) in line["r"])
    return next(found, None)


def _is_kept(plot: Plot, who: str, row: list[Any], *by: str) -> bool:
    """Whether its answer is one of these, and its worker was told that it is kept."""
    answer = _answer(plot, row)
    if answer is None or answer["by"] not in by:
        return False
    lines = plot.lines[who]
    after = lines[lines.index(answer) :]
    return next((line["late"] == 0 for line in after if line["e"] == "kept"), False)


def _dead(plot: Plot) -> list[list[Any]]:
    return next(line["r"] for _, line in plot.every("dead"))


def _last(plot: Plot) -> list[tuple[str, list[Any]]]:
    """Of each record its last lease."""
    found: dict[tuple[Any, ...], tuple[str, list[Any]]] = {}
    for who, row in sorted(_taken(plot), key=lambda each: each[1][4]):
        found[tuple(row[:3])] = who, row
    return [*found.values()]


def _stranger(plot: Plot, row: list[Any], t: int = LATE, by: str | None = None) -> None:
    """Another worker has it, too."""
    hello = next(h for h in plot.hellos.values() if h.get("guarantee") == "shared")
    lines = [dict(hello), {"e": "taken", "t": t, "r": [row]}]
    if by is not None:
        lines.append({"e": "answers", "t": t, "by": by, "r": [_name(row)]})
    plot.lines["stranger"] = lines


def _drop_answers(plot: Plot, place: list[Any]) -> None:
    for _, line in plot.every("answers"):
        line["r"] = [name for name in line["r"] if name[:3] != place]


@plants("lost job", PLANTERS)
def nobody_ever_had_it(plot: Plot) -> bool:
    found = plot.pick(row for _, row in _last(plot) if not _is_dead(plot, row))
    if found is None:
        return False
    _drop_answers(plot, found[:3])
    for _, line in plot.every("taken"):
        line["r"] = [row for row in line["r"] if row[:3] != found[:3]]
    return True


def _is_dead(plot: Plot, row: list[Any]) -> bool:
    return any(letter[:3] == row[:3] for letter in _dead(plot))


@plants("lost job", PLANTERS)
def its_workers_all_failed(plot: Plot) -> bool:
    found = plot.pick(row for _, row in _last(plot) if not _is_dead(plot, row))
    if found is None:
        return False
    for _, line in plot.every("answers"):
        if line["by"] == "ack" and any(name[:3] == found[:3] for name in line["r"]):
            line["by"] = "nack"
    return True


@plants("lost job", PLANTERS)
def its_dead_letter_is_gone(plot: Plot) -> bool:
    letters = _dead(plot)
    acked = [name[:3] for _, x in plot.every("answers") if x["by"] == "ack" for name in x["r"]]
    found = plot.pick(row for row in letters if row[:3] not in acked)
    if found is None:
        return False
    letters[:] = [row for row in letters if row[:3] != found[:3]]
    return True


@plants("stale answer counted", PLANTERS)
def a_former_holder_did_it_and_the_last_one_did_not(plot: Plot) -> bool:
    found = plot.pick(row for _, row in _last(plot) if not _is_dead(plot, row))
    if found is None:
        return False
    _stranger(plot, [*found[:4], found[4] + 1, found[5] + 1])
    return True


@plants("done again", PLANTERS)
def it_was_done_and_came_to_another(plot: Plot) -> bool:
    found = plot.pick(row for who, row in _last(plot) if _is_kept(plot, who, row, "ack", "reject"))
    if found is None:
        return False
    _stranger(plot, [*found[:4], found[4] + 1, found[5] + 1], by="ack")
    return True


@plants("done again", PLANTERS)
def it_was_late_and_nobody_said_so(plot: Plot) -> bool:
    """A worker is told that what it did is kept, though others had it by then."""
    last = {tuple(row[:3]): row[4] for _, row in _last(plot)}
    found = plot.pick(
        (who, row) for who, row in _taken(plot)
        if row[4] < last[tuple(row[:3])] and not _is_kept(plot, who, row, "ack", "reject")
        and (answer := _answer(plot, row)) is not None and answer["by"] in ("ack", "reject")
        and _ends_kept(plot, who, answer)
    )  # fmt: skip
    if found is None:
        return False
    for line in plot.lines[found[0]]:
        if line["e"] == "kept":
            line["late"] = 0
    return True


def _ends_kept(plot: Plot, who: str, answer: dict[str, Any]) -> bool:
    lines = plot.lines[who]
    return any(line["e"] == "kept" for line in lines[lines.index(answer) :])


@plants("doubled lease", PLANTERS)
def two_workers_have_one_lease(plot: Plot) -> bool:
    found = plot.pick(row for _, row in _taken(plot))
    if found is None:
        return False
    _stranger(plot, list(found))
    return True


@plants("doubled lease", PLANTERS)
def a_worker_gets_it_twice(plot: Plot) -> bool:
    found = plot.pick((who, row) for who, row in _taken(plot))
    if found is None:
        return False
    plot.lines[found[0]].append({"e": "taken", "t": LATE, "r": [found[1]]})
    return True


@plants("two holders", PLANTERS)
def it_came_to_another_before_it_was_given_back(plot: Plot) -> bool:
    kept = [row for who, row in _taken(plot) if _is_kept(plot, who, row, "nack", "release")]
    found = plot.pick(after for before, after in _later_pairs(plot) if before in kept)
    if found is None:
        return False
    next(line for _, line in plot.every("taken") if found in line["r"])["t"] = 1
    return True


def _later_pairs(plot: Plot) -> list[tuple[list[Any], list[Any]]]:
    """Leases of one record, one after the other."""
    pairs, before = [], dict[tuple[Any, ...], list[Any]]()
    for _, row in sorted(_taken(plot), key=lambda each: each[1][4]):
        if tuple(row[:3]) in before:
            pairs.append((before[tuple(row[:3])], row))
        before[tuple(row[:3])] = row
    return pairs


@plants("deliveries fell", PLANTERS)
def its_number_is_lower_than_before(plot: Plot) -> bool:
    found = plot.pick(_later_pairs(plot))
    if found is None:
        return False
    before, after = found
    after[5] = before[5] - 1
    return True


@plants("deliveries repeated", PLANTERS)
def two_leases_have_one_number(plot: Plot) -> bool:
    def is_back(row: list[Any]) -> bool:
        answer = _answer(plot, row)
        return answer is not None and answer["by"] == "release"

    found = plot.pick(pair for pair in _later_pairs(plot) if not is_back(pair[0]))
    if found is None:
        return False
    before, after = found
    after[5] = before[5]
    return True


def _of_one_key(plot: Plot) -> list[tuple[list[Any], list[Any]]]:
    """In a group with an order, leases of two records of a key, one right after the other."""
    if not any(hello.get("order") for hello in plot.hellos.values()):
        return []
    pairs, before = [], dict[tuple[Any, ...], list[Any]]()
    for _, row in sorted(_taken(plot), key=lambda each: each[1][4]):
        key = (*row[:2], row[6])
        if key in before and before[key][2] != row[2]:
            pairs.append((before[key], row))
        before[key] = row
    return pairs


@plants("key out of order", PLANTERS)
def an_earlier_one_of_its_key_comes_later(plot: Plot) -> bool:
    found = plot.pick(_of_one_key(plot))
    if found is None:
        return False
    before, after = found
    _stranger(plot, [*before[:4], after[4] + 1, before[5] + 1, before[6]])
    return True


@plants("keys side by side", PLANTERS)
def the_next_of_its_key_came_before_it_was_done(plot: Plot) -> bool:
    found = plot.pick(pair for pair in _of_one_key(plot) if not _is_dead(plot, pair[0]))
    if found is None:
        return False
    next(line for _, line in plot.every("taken") if found[1] in line["r"])["t"] = 1
    return True


@plants("keys side by side", PLANTERS)
def the_next_of_its_key_came_and_it_was_never_done(plot: Plot) -> bool:
    found = plot.pick(pair for pair in _of_one_key(plot) if not _is_dead(plot, pair[0]))
    if found is None:
        return False
    _drop_answers(plot, found[0][:3])
    return True


@plants("done and dead", PLANTERS)
def it_is_done_and_has_a_dead_letter(plot: Plot) -> bool:
    found = plot.pick(row for who, row in _last(plot) if _is_kept(plot, who, row, "ack"))
    if found is None:
        return False
    _dead(plot).append([*found[:4], found[5], min(found[5], 5)])
    return True


@plants("delivered when dead", PLANTERS)
def it_comes_after_its_dead_letter(plot: Plot) -> bool:
    found = plot.pick(_dead(plot))
    if found is None:
        return False
    _stranger(plot, [*found[:4], LATE, found[4] + 1])
    return True


@plants("dead without cause", PLANTERS)
def it_died_too_early(plot: Plot) -> bool:
    acked = [name[:3] for _, x in plot.every("answers") if x["by"] != "ack" for name in x["r"]]
    found = plot.pick(row for _, row in _last(plot) if row[:3] not in acked)
    if found is None or 0 < _most(plot) <= found[5]:
        return False
    _dead(plot).append([*found[:4], found[5], min(found[5], 5)])
    return True


def _most(plot: Plot) -> int:
    return int(next(h["max_deliveries"] for h in plot.hellos.values() if "max_deliveries" in h))


@plants("dead without story", PLANTERS)
def its_dead_letter_is_anothers(plot: Plot) -> bool:
    found = plot.pick(_dead(plot))
    if found is None:
        return False
    found[3] += 1
    return True


@plants("dead without story", PLANTERS)
def a_failure_is_not_told(plot: Plot) -> bool:
    found = plot.pick(_dead(plot))
    if found is None:
        return False
    found[5] -= 1
    return True
