"""Exactly-once jobs on three brokers: workers are killed at any moment, and brokers with them, the
one that decides of transactions and share groups too. Each job has one output.

PENSTOCK_CRASH_ROUNDS is how many are struck; PENSTOCK_SEED=n begins with a seed.
"""

from __future__ import annotations

import os
import time

import pytest
from cluster_under_test import ClusterUnderTest, bounce
from crash.process_pool import Nursery
from job_trial import JobTrial
from seeds import seed_of, tell

ROUNDS = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "100"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]


def test_each_job_has_one_output_whichever_broker_is_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed, begun = seed_of("done jobs on brokers"), time.monotonic()
    nursery = Nursery()
    try:
        with ClusterUnderTest() as ground:
            trial = JobTrial(
                ground, nursery, seed, "jobs", session_timeout=1.0, patience=2.0, others_every=10
            )

            def strike(clean: bool) -> None:
                broker = trial.rng.choice([*ground.present(), ground.leader("__coordinator")])
                bounce(ground, broker, clean=clean)

            others = [("broker", lambda: strike(False)), ("broker stopped", lambda: strike(True))]
            try:
                for _ in range(ROUNDS):
                    trial.round(others)
                ground.heal()
                told = trial.end()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error}\n{ground.keep()}") from error
            finally:
                trial.close()
    finally:
        nursery.close()
    with capsys.disabled():
        took = time.monotonic() - begun
        tell(f"\njobs on brokers: {dict(trial.struck)}; {dict(told)} in {took:.0f} s")
    assert min(trial.struck["broker"], told["committed"]) > 0
