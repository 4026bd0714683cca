"""Groups, transactions, claims and stages under seeded faults; see `world`.

The default suite runs seeds for `SECONDS`; `make sim` runs `PENSTOCK_SIM_ROUNDS` of them.
`PENSTOCK_SEED=n` runs one again.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from seeds import seed_of, tell
from sim.partitions import OK, Begin, Data, Marker, PartitionLog
from sim.world import World

ROUNDS = int(os.environ.get("PENSTOCK_SIM_ROUNDS", "0"))
SECONDS = float(os.environ.get("PENSTOCK_SIM_SECONDS", "5"))


@pytest.mark.timeout(0 if ROUNDS else SECONDS + 110)
def test_guarantees_hold_under_seeded_faults(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = seed_of("simulator")
    begun, counts = time.monotonic(), Counter[str]()
    while seed - first < ROUNDS if ROUNDS else time.monotonic() - begun < SECONDS:
        world = World(seed)
        world.run()
        counts += world.ledger.counts + world.coordinator.counts
        counts["steps"] += world.sim.steps
        seed += 1
        if ROUNDS and (seed - first) % 100 == 0:
            with capsys.disabled():
                tell(f"\nsimulator: {seed - first} seeds from {first} on, {counts['steps']} steps")
    with capsys.disabled():
        tell(f"\nsimulator: seeds {first} to {seed - 1}, {counts['steps']} steps")
    print(dict(sorted(counts.items())))
    faults = sum(count for kind, count in counts.items() if kind.startswith("fault: "))
    worlds = seed - first
    assert min(faults, counts["commit"], counts["claim"], counts["end"], counts["join"]) >= worlds


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (10347106690, "a join that came twice, late, made a member that nobody was"),
        (10347108449, "an ABORT met an older transaction, forgotten with the power"),
    ],
)
def test_what_once_failed_holds(seed: int, why: str) -> None:
    World(seed).run()


def test_an_abort_ends_an_older_transaction_of_its_producer_as_aborted() -> None:
    """As in a real partition; see `OpenTransactions.abort`."""
    place = (b"t" * 16, 0)
    log = PartitionLog(place)
    assert log.begin(Begin(place, 7, 2), 0.0) == OK
    assert log.data(Data(place, 7, 2, 0, "forgotten", True)) == OK
    assert log.last_stable == 0
    assert log.mark(Marker(place, 7, 3, commit=False)) == OK
    assert (log.last_stable, log.values()) == (3, [])
