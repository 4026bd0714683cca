"""Kafka's replication matrix on three real brokers: {clean stop, kill -9, five clean bounces, five
kill -9 bounces} of {the leader of a partition, the controller}, in the middle of traffic of all
three guarantees; and stops for longer than the lease, most brokers killed, all brokers killed.

Histories of everybody who writes and reads are judged by the checker. By default a few cases run,
one after the other in the same traffic; `PENSTOCK_CLUSTER=all` (`make cluster`) runs all of them,
each by itself.
"""

from __future__ import annotations

import os

import pytest
from cluster_trial import EVERYTHING, BrokersTrial
from cluster_under_test import ClusterUnderTest
from crash.history_trial import check_amounts
from crash.process_pool import Nursery
from seeds import seed_of, tell

WANTED = os.environ.get("PENSTOCK_CLUSTER", "")
CASES = {
    "clean stop of the leader": ["stop leader"],
    "clean stop of the controller": ["stop controller"],
    "kill -9 of the leader": ["kill leader"],
    "kill -9 of the controller": ["kill controller"],
    "five clean bounces of the leader": ["bounce leader"] * 5,
    "five clean bounces of the controller": ["bounce controller"] * 5,
    "five kill -9 bounces of the leader": ["crash leader"] * 5,
    "five kill -9 bounces of the controller": ["crash controller"] * 5,
    "the leader stands still for longer than its lease": ["pause leader"],
    "the controller stands still for longer than its lease": ["pause controller"],
    "two of three brokers killed": ["kill two brokers"],
    "all brokers killed at once": ["kill all brokers"],
    "parts of the leader killed": ["kill replicator", "kill writers", "kill gateway", "kill node"],
}
ALWAYS = (
    "clean stop of the leader",
    "kill -9 of the leader",
    "all brokers killed at once",
    "parts of the leader killed",
)
"""In the default suite, as one case: traffic is begun, healed and judged once."""
IN_ONE = "one after the other"
PLAYED = CASES if WANTED == "all" else {IN_ONE: [fault for case in ALWAYS for fault in CASES[case]]}

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ground():
    with ClusterUnderTest() as found:
        yield found


@pytest.fixture
def nursery():
    found = Nursery()
    yield found
    found.close()


@pytest.mark.parametrize("case", list(PLAYED), ids=lambda case: case.replace(" ", "-"))
def test_nothing_acknowledged_is_lost_or_doubled(case, ground, nursery, capsys):
    seed = seed_of(case)
    prefix = f"m{list(PLAYED).index(case)}"
    report = run_trial(ground, nursery, seed, prefix, PLAYED[case])
    with capsys.disabled():
        tell(f"\n{case}, seed {seed}: {report.figures}")


def run_trial(ground, nursery, seed, prefix, faults, scene=EVERYTHING):
    trial = BrokersTrial(ground, nursery, scene, seed, prefix)
    try:
        report = trial.play(faults)
        check_amounts(1, report.figures, trial.tally)
        return report
    except Exception as error:
        trial.keep()
        kept = ground.keep()
        raise AssertionError(
            f"{error}\n--- seed {seed}: PENSTOCK_SEED={seed}\n--- kept in {kept}\n"
            f"--- trace\n{trial.trace_text()}\n--- brokers\n{ground.tail()}"
        ) from error
    finally:
        trial.close()
