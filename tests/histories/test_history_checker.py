"""The checker of histories is checked: it passes what is correct, and names what was planted."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from histories.checker import CHECKS, INTERLEAVING, check
from histories.events import load
from histories.ideal import World, encoded
from histories.planting_groups import PLANTERS, Plot
from histories.planting_shares import PLANTERS as SHARE_PLANTERS
from histories.share_ideal import ShareWorld
from hypothesis import given
from hypothesis import strategies as st
from seeds import seed_of

SEEDS = st.integers(0, 2**32)
WORLDS = (World, ShareWorld)
PLANTED = [(World, *each) for each in PLANTERS] + [(ShareWorld, *each) for each in SHARE_PLANTERS]
RUNS_WANTED = 12
"""So many runs each anomaly is planted into; a run that has no place for it does not count."""


@pytest.mark.parametrize("world", WORLDS)
@given(seed=SEEDS, steps=st.integers(1, 120), batch_max=st.integers(1, 12))
def test_a_correct_history_passes(
    world: type[World], seed: int, steps: int, batch_max: int
) -> None:
    report = check(load(encoded(world(seed, batch_max=batch_max).run(steps))))
    assert not report.broken, f"seed {seed}: {report}"


@pytest.mark.parametrize("world", WORLDS)
@given(seed=SEEDS, steps=st.integers(1, 80), share=st.floats(0, 1))
def test_a_history_that_ends_in_the_middle_passes(
    world: type[World], seed: int, steps: int, share: float
) -> None:
    """Everybody is killed at one moment: what was written down by then breaks no promise."""
    lines = world(seed).run(steps)
    moments = sorted(line["t"] for mine in lines.values() for line in mine)
    end = moments[int(share * (len(moments) - 1))]
    cut = {who: [line for line in mine if line["t"] <= end] for who, mine in lines.items()}
    report = check(load(encoded(cut)))
    assert not report.broken, f"seed {seed}, up to t={end}: {report}"


@pytest.mark.parametrize(
    ("world", "name", "plant"),
    PLANTED,
    ids=[f"{name}: {plant.__name__}".replace(" ", "_") for _, name, plant in PLANTED],
)
def test_a_planted_anomaly_is_found_and_named(
    world: type[World], name: str, plant: Callable[[Plot], bool]
) -> None:
    seed = seed_of(f"planted {name}")
    planted = 0
    for number in range(seed, seed + 20 * RUNS_WANTED):
        lines = world(number).run(40)
        if not plant(Plot(lines, number)):
            continue
        report = check(load(encoded(lines)))
        assert name in report.names, f"seed {number}: {name!r} is not in {report}"
        told = next(each for each in report.anomalies if each.name == name)
        assert told.evidence
        assert all(told.evidence)
        planted += 1
        if planted == RUNS_WANTED:
            return
    raise AssertionError(f"seed {seed}: found a place for {name!r} in {planted} runs only")


def test_every_anomaly_that_a_check_can_name_is_planted() -> None:
    """The names stand in the modules' first lines; none may be left out of the table."""
    named = set()
    for module in {__import__(each.__module__, fromlist=["x"]) for each in CHECKS}:
        for line in (module.__doc__ or "").splitlines():
            words = line[4:].split("  ")[0].strip()
            if line.startswith("    ") and line[4] != " ":
                named.add(next((w for w in _NAMES if line[4:].startswith(w + " ")), words))
    assert named - INTERLEAVING == {name for _, name, _ in PLANTED}


_NAMES = {name for _, name, _ in PLANTED} | INTERLEAVING


def test_interleaved_transactions_are_told_and_allowed() -> None:
    """Two transactions, each before the other in one partition: G0, and no broken promise."""
    lines: dict[str, list[dict[str, object]]] = {"a": [], "b": [], "late": []}
    for who, writer in (("a", 1), ("b", 2)):
        values = [writer << 32, writer << 32 | 1]
        lines[who] += [
            {"e": "begin", "t": 1, "n": 0},
            {"e": "sends", "t": 2, "txn": 0, "r": [[value, "x"] for value in values]},
        ]
    lines["a"].append({"e": "acks", "t": 3, "r": [[1 << 32, "x", 0, 1], [1 << 32 | 1, "x", 1, 3]]})
    lines["b"].append({"e": "acks", "t": 3, "r": [[2 << 32, "x", 0, 3], [2 << 32 | 1, "x", 1, 1]]})
    for who in "ab":
        lines[who] += [
            {"e": "ending", "t": 4, "n": 0, "commit": True},
            {"e": "ended", "t": 5, "n": 0, "outcome": "committed"},
        ]
    report = check(load(encoded(lines)))
    assert not report.broken
    assert {each.name for each in report.noted} == INTERLEAVING


def test_a_reset_backwards_lets_records_come_again_once() -> None:
    def history(times: int, reset: bool) -> dict[str, list[bytes]]:
        lines: dict[str, list[dict[str, object]]] = {
            "w": [
                {"e": "sends", "t": 1, "r": [[1 << 32, "x"]]},
                {"e": "acks", "t": 2, "r": [[1 << 32, "x", 0, 0]]},
            ],
            "h": [],
        }
        for number in range(times):
            t = 10 * number + 10
            lines[f"m{number}"] = [
                {"e": "hello", "t": t, "role": "member", "group": "g", "topics": ["x"],
                 "guarantee": "at-most-once"},
                {"e": "assigned", "t": t + 1, "r": [["x", 0]]},
                {"e": "claimed", "t": t + 2, "r": [["x", 0, 1]]},
                {"e": "polls", "t": t + 3, "r": [["x", 0, [0], [1 << 32], None]]},
            ]  # fmt: skip
        if reset:
            lines["h"].append(
                {"e": "reset", "t": 16, "asked": 15, "group": "g", "r": [["x", 0, 1, 0]]}
            )
        return encoded(lines)

    assert not check(load(history(2, reset=True))).broken
    assert check(load(history(2, reset=False))).names == {"delivered twice", "committed again"}
    assert "delivered twice" in check(load(history(3, reset=True))).names


def test_an_assignment_is_as_old_as_its_question() -> None:
    """A member that was stopped between question and answer knows less than others by then."""

    def names(asked: int) -> set[str]:
        hello = {"e": "hello", "t": 1, "role": "member", "group": "g", "topics": ["x"],
                 "guarantee": "at-least-once"}  # fmt: skip
        poll = [["x", 0, [0], [1 << 32], None]]
        lines: dict[str, list[dict[str, object]]] = {
            "w": [{"e": "sends", "t": 1, "r": [[1 << 32, "x"]]}],
            "m0": [
                hello,
                {"e": "assigned", "t": 2, "r": [["x", 0]]},
                {"e": "polls", "t": 3, "r": poll},
                {"e": "committed", "t": 5, "r": [["x", 0, 1]]},
            ],
            "m1": [
                hello,
                {"e": "assigned", "t": 8, "asked": asked, "r": [["x", 0]]},
                {"e": "polls", "t": 9, "r": poll},
            ],
        }
        return check(load(encoded(lines))).names

    assert names(asked=4) == set()
    assert names(asked=6) == {"committed again"}


def test_a_torn_last_line_counts_as_not_written() -> None:
    lines = encoded(World(1).run(10))
    whole = load(lines).lines
    who = max(lines, key=lambda each: len(lines[each]))
    lines[who][-1] = lines[who][-1][:-3]
    assert load(lines).lines == whole - 1
    lines[who].append(lines[who][0])
    with pytest.raises(ValueError, match="no event"):
        load(lines)


def test_a_million_events_take_seconds() -> None:
    """No check goes over pairs: it would take hours here."""
    count, width = 250_000, 500
    writes: list[bytes] = []
    reads: list[bytes] = []
    members: list[bytes] = []
    encode = msgspec.json.encode
    hello = {"e": "hello", "t": 0, "role": "reader", "isolation": "read_committed"}
    joined = {**hello, "role": "member", "group": "g", "guarantee": "at-least-once",
              "topics": ["x"]}  # fmt: skip
    places = [["x", number] for number in range(4)]
    for lines, first in ((reads, hello), (members, joined)):
        lines += [encode(first), encode({"e": "assigned", "t": 1, "r": places})]
    for start in range(0, count, width):
        values = [1 << 32 | number for number in range(start, start + width)]
        number, base = start // width % 4, start // width // 4 * width
        offsets = list(range(base, base + width))
        writes.append(encode({"e": "sends", "t": start, "r": [[value, "x"] for value in values]}))
        acks = [[value, "x", number, at] for value, at in zip(values, offsets, strict=True)]
        writes.append(encode({"e": "acks", "t": start + 1, "r": acks}))
        row = ["x", number, offsets, values, None]
        for lines in (reads, members):
            lines.append(encode({"e": "polls", "t": start + 2, "r": [row]}))
    reads.append(encode({"e": "ends", "t": count, "r": [[*p, count // 4] for p in places]}))
    begun = time.process_time()
    report = check(load({"w": writes, "r": reads, "m": members}))
    assert not report.broken
    assert sum(report.figures[name] for name in ("sends", "acknowledgements", "reads")) == 4 * count
    assert time.process_time() - begun < 60  # it takes 2; pairs would take hours
