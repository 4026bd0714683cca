"""kill -9 and SIGSTOP of producer, writer, node and consumer at random moments (see `machine`)."""

from __future__ import annotations

import os
import time

import pytest
from crash.crash_episode import ROUNDS_MAX, Figures
from crash.crash_machine import Machine
from seeds import seed_of, tell

ROUNDS = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0"))
SECONDS = float(os.environ.get("PENSTOCK_CRASH_SECONDS", "6"))
SEED = seed_of("crash machine")
ROUNDS_EACH = ROUNDS_MAX if ROUNDS else 30
"""Of an episode, at most."""
MACHINE_EPISODES = 30
"""Episodes on one data folder."""


@pytest.mark.crash
@pytest.mark.timeout(0 if ROUNDS else SECONDS + 120)
def test_crash_nothing_accepted_is_lost_or_doubled_and_nobody_hangs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = Figures()
    begun = time.monotonic()
    seed = SEED
    with capsys.disabled():
        tell(f"\ncrash machine: seed {seed}")

    def is_over() -> bool:
        figures.seconds = time.monotonic() - begun
        return figures.rounds >= ROUNDS if ROUNDS else figures.seconds >= SECONDS

    while not is_over():
        machine = Machine(seed, figures, ROUNDS_EACH)
        try:
            for _ in range(MACHINE_EPISODES):
                machine.run_episode()
                seed += 1
                if is_over():
                    break
                if ROUNDS:
                    with capsys.disabled():
                        tell(f"crash machine: {figures}")
        finally:
            machine.close()
    with capsys.disabled():
        tell(f"crash machine: {figures}")
    assert figures.rounds > 0
    assert sum(figures.faults.values()) == figures.rounds
    assert figures.moving > 0
    assert min(figures.records, figures.acknowledged, figures.consumed) >= figures.rounds, figures
