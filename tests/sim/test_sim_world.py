"""Groups, transactions, claims and stages under seeded faults; see `world`.

The default suite runs seeds for `SECONDS`; `make sim` runs `PENSTOCK_SIM_ROUNDS` of them.
`PENSTOCK_SEED=n` runs one again.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from seeds import fresh_seed
from sim.world import World

ROUNDS = int(os.environ.get("PENSTOCK_SIM_ROUNDS", "0"))
SECONDS = float(os.environ.get("PENSTOCK_SIM_SECONDS", "10"))


@pytest.mark.timeout(0 if ROUNDS else SECONDS + 110)
def test_guarantees_hold_under_seeded_faults(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = fresh_seed("simulator")
    begun, counts = time.monotonic(), Counter[str]()
    while seed - first < ROUNDS if ROUNDS else time.monotonic() - begun < SECONDS:
        world = World(seed)
        world.run()
        counts += world.ledger.counts + world.coordinator.counts
        counts["steps"] += world.sim.steps
        seed += 1
        if ROUNDS and (seed - first) % 100 == 0:
            with capsys.disabled():
                print(f"\nsimulator: {seed - first} seeds from {first} on, {counts['steps']} steps")
    with capsys.disabled():
        print(f"\nsimulator: seeds {first} to {seed - 1}, {counts['steps']} steps")
    print(dict(sorted(counts.items())))
