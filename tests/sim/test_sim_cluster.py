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
from seeds import seed_of, tell
from sim.cluster_mutants import MUTANTS, Mutant
from sim.cluster_world import ClusterWorld

ROUNDS = int(os.environ.get("PENSTOCK_SIM_ROUNDS", "0"))
SECONDS = 5.0
CATCHING = 120
FOUND_BY = {
    "trust in who is started on an older copy": 34,
    "a high watermark that forgets the ISR that was asked for": 18,
    "a high watermark without followers": 4,
    "elections from outside the ISR": 7,
    "first replicas that lead out of sync": 30,
    "reassignments that end before anybody caught up": 2,
    "assignments of earlier lives": 2,
    "trust in who lost power": 10,
    "the first one leads that is back without all it had": 15,
    "trust in who lost a folder": 36,
    "leaders that stay with their logs offline": 24,
    "logs that are not compared by epochs": 2,
    "records that count before they are synced": 30,
    "followers in the ISR before all that counts is there": 5,
    "an ISR that shrinks without the controller": 17,
    "answers that are taken late and twice": 24,
}
"""Seeds that found a fault once are tried first; without one, or in vain, all are searched."""


@pytest.mark.timeout(0 if ROUNDS else SECONDS + 60)
def test_a_cluster_holds_under_seeded_faults(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = seed_of("cluster")
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
    worlds = seed - first
    faults = sum(count for kind, count in counts.items() if kind.startswith("fault: "))
    assert counts["acknowledged"] >= 10 * worlds
    assert min(faults, counts["elections"]) >= worlds


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_fault_in_the_cluster_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.where, mutant.name, mutant.instead)
    for seed in (FOUND_BY.get(mutant.what, 1), *range(1, CATCHING)):
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
