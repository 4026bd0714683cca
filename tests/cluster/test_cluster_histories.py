"""The guarantees on three real brokers under faults at random: kill -9, clean stops and SIGSTOP of
brokers and of their parts, of clients, of most brokers and of all, one fault after the other, while
leaders come back by themselves.

Each trial is a seed. By default one runs; `PENSTOCK_BROKERS_SECONDS` is how long it goes on, and
`PENSTOCK_SEED=n` begins with that seed; `make cluster` gives more.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest
from cluster_trial import WITH_SHARES, BrokersTrial
from cluster_under_test import ClusterUnderTest
from crash.history_trial import check_amounts, least_of
from crash.process_pool import Nursery
from seeds import seed_of, tell

SECONDS = float(os.environ.get("PENSTOCK_BROKERS_SECONDS", "0"))
TRIALS_PER_CLUSTER = 5

pytestmark = [pytest.mark.crash, pytest.mark.timeout(SECONDS * 2 + 240)]


def test_histories_of_a_cluster_under_faults(capsys):
    first = seed_of("histories of a cluster")
    begun, trials = time.monotonic(), 0
    faults: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    while not trials or time.monotonic() - begun < SECONDS:
        nursery = Nursery()
        try:
            with ClusterUnderTest(options={"leader_balance_interval": 3.0}) as ground:
                for turn in range(TRIALS_PER_CLUSTER):
                    if trials and time.monotonic() - begun >= SECONDS:
                        break
                    one_trial(ground, nursery, first + trials, f"h{turn}", faults, figures)
                    trials += 1
        finally:
            nursery.close()
    with capsys.disabled():
        struck = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
        tell(
            f"\na cluster: {trials} trials from seed {first} in {time.monotonic() - begun:.0f} s, "
            f"{figures['reads']} deliveries; {struck}"
        )
    check_amounts(trials, figures, faults, least_of(WITH_SHARES))


def one_trial(ground, nursery, seed, prefix, faults, figures):
    trial = BrokersTrial(ground, nursery, WITH_SHARES, seed, prefix)
    try:
        report = trial.run(random.Random(seed).randint(4, 8))
    except Exception as error:
        trial.keep()
        raise AssertionError(
            f"{error}\n--- seed {seed}: PENSTOCK_SEED={seed} PENSTOCK_BROKERS_SECONDS=0 "
            f"python -m pytest -m crash tests/cluster/test_cluster_histories.py\n"
            f"--- kept in {ground.keep()}\n--- trace\n{trial.trace_text()}\n"
            f"--- brokers\n{ground.tail()}"
        ) from error
    finally:
        trial.close()
    faults += trial.tally
    figures.update(report.figures)
