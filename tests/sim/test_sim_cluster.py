"""A whole cluster under seeded faults; see `cluster_world`, and `cluster_mutants` for faults that
it has to find.

The default suite runs seeds for `SECONDS`; `make sim` runs `PENSTOCK_SIM_ROUNDS` of them.
`PENSTOCK_SEED=n` runs one again.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from seeds import fresh_seed, tell
from sim.cluster_mutants import MUTANTS, Mutant
from sim.cluster_world import ClusterWorld

ROUNDS = int(os.environ.get("PENSTOCK_SIM_ROUNDS", "0"))
SECONDS = 8.0
CATCHING = 120


@pytest.mark.timeout(0 if ROUNDS else SECONDS + 60)
def test_a_cluster_holds_under_seeded_faults(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = fresh_seed("cluster")
    begun, counts = time.monotonic(), Counter[str]()
    while seed - first < ROUNDS if ROUNDS else time.monotonic() - begun < SECONDS:
        world = ClusterWorld(seed)
        world.run()
        counts += world.counts
        counts["steps"] += world.sim.steps
        counts["acknowledged"] += sum(map(len, world.acknowledged.values()))
        seed += 1
        if ROUNDS and (seed - first) % 100 == 0:
            with capsys.disabled():
                tell(f"\ncluster: {seed - first} seeds from {first} on, {counts['steps']} steps")
    with capsys.disabled():
        tell(f"\ncluster: seeds {first} to {seed - 1}, {counts['steps']} steps")
    print(dict(sorted(counts.items())))
    assert counts["acknowledged"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_fault_in_the_cluster_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.where, mutant.name, mutant.instead)
    for seed in range(1, CATCHING):
        try:
            ClusterWorld(seed).run()
        except AssertionError:
            return
    pytest.fail(f"nobody noticed {mutant.what} in {CATCHING} runs")


def test_a_seed_of_the_cluster_runs_the_same_twice() -> None:
    traces = set()
    for _ in range(2):
        world = ClusterWorld(5)
        world.run()
        traces.add(world.sim.trace())
    assert len(traces) == 1
