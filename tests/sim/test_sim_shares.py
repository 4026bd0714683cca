"""Share groups under seeded faults; see `share_world`. Each kind of fault that it has to find is
planted by `make mutants ARGS=sim-share`.

The default suite runs seeds for `SECONDS`; `make sim` runs `PENSTOCK_SIM_ROUNDS` of them.
`PENSTOCK_SEED=n` runs one again.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from seeds import seed_of, tell
from sim.share_brokers import Broker
from sim.share_world import ShareWorld

from penstock.cluster.shares import share_log

ROUNDS = int(os.environ.get("PENSTOCK_SIM_ROUNDS", "0"))
SECONDS = 3.0
WORLDS_MIN = 8
CATCHING = 40


@pytest.fixture(autouse=True)
def many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_log, "PART_BYTES", 60)
    monkeypatch.setattr(share_log, "DELTA_BYTES_MIN", 600)
    monkeypatch.setattr(share_log, "SLOTS_MAX", 30)


@pytest.mark.timeout(0 if ROUNDS else SECONDS + 60)
def test_share_groups_hold_under_seeded_faults(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = seed_of("share groups simulated")
    until, counts = time.monotonic() + SECONDS, Counter[str]()
    while seed - first < (ROUNDS or WORLDS_MIN) or (not ROUNDS and time.monotonic() < until):
        world = ShareWorld(seed)
        world.run()
        counts += world.jobs.counts + sum((each.counts for each in world.brokers), Counter())
        counts["steps"] += world.sim.steps
        counts["dead"] += len(world.jobs.dead)
        seed += 1
        if ROUNDS and (seed - first) % 100 == 0:
            with capsys.disabled():
                tell(f"\nshares: {seed - first} seeds from {first} on, {counts['steps']} steps")
    with capsys.disabled():
        tell(f"\nshares: seeds {first} to {seed - 1}, {counts['steps']} steps")
    print(dict(sorted(counts.items())))
    worlds = seed - first
    faults = sum(count for kind, count in counts.items() if kind.startswith("fault: "))
    least = min(faults, counts["took over"], counts["stale"], counts["committed True"])
    assert least >= 1
    assert counts["kept ack"] >= 5 * worlds


class AnswersBeforeStoring(Broker):
    """What is decided is answered before a majority has it."""

    @property
    def committed(self) -> int:
        return len(self.log) if self.is_serving else super().committed


def test_answers_that_nobody_else_has_stored_are_found() -> None:
    for seed in range(1, CATCHING):
        try:
            ShareWorld(seed, AnswersBeforeStoring).run()
        except AssertionError:
            return
    pytest.fail(f"nobody noticed in {CATCHING} runs")


def test_a_seed_runs_the_same_twice() -> None:
    traces = set()
    for _ in range(2):
        world = ShareWorld(11)
        world.run()
        traces.add(world.sim.trace())
    assert len(traces) == 1
