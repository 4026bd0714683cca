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
PATIENCE = 60.0
"""Seconds beyond `SECONDS` that a busy machine has for a first answer between two faults."""


def shows_something(figures: Figures) -> bool:
    """Something was acknowledged between two faults, and each round brought a record on average."""
    seen = min(figures.records, figures.acknowledged, figures.consumed)
    return figures.moving > 0 and seen >= figures.rounds


@pytest.mark.crash
@pytest.mark.timeout(0 if ROUNDS else SECONDS + PATIENCE + 120)
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
        if ROUNDS:
            return figures.rounds >= ROUNDS
        return figures.seconds >= (SECONDS if shows_something(figures) else SECONDS + PATIENCE)

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
    assert shows_something(figures), figures
