"""The guarantees under kill -9 and SIGSTOP of clients, writers and node, judged by their histories.

Each trial is a seed: `PENSTOCK_CRASH_SEED=n` begins with that one. By default each test has seconds
(`PENSTOCK_HISTORY_SECONDS`), with `PENSTOCK_CRASH_SEEDS` it runs so many seeds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from crash.ground import NodeUnderTest
from crash.nursery import Nursery
from crash.roster import Scene
from crash.trial import WRITERS, Tally, Trial

SEEDS = int(os.environ.get("PENSTOCK_CRASH_SEEDS", "0"))
SECONDS = float(os.environ.get("PENSTOCK_HISTORY_SECONDS", "12"))
SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", "0"))
TRIALS_PER_NODE = 5
"""After so many the node is stopped cleanly, looked at for leaks, and a new one made."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0 if SEEDS else SECONDS + 120)]


def run_trials(
    scene: Scene,
    test: str,
    capsys: pytest.CaptureFixture[str],
    *,
    rounds: int | None = None,
    seconds: float = SECONDS,
) -> None:
    """As many as there are seeds or seconds for, and at least one; `rounds` are faults of each."""
    first = SEED or random.SystemRandom().randrange(1 << 40)
    tally = Tally()
    begun = time.monotonic()
    with capsys.disabled():
        print(f"\n{test}: seeds from {first}", flush=True)
    nursery = Nursery()
    try:

        def is_over() -> bool:
            if SEEDS:
                return tally.trials >= SEEDS
            return tally.trials > 0 and time.monotonic() - begun >= seconds

        while not is_over():
            _some_trials(scene, first + tally.trials, test, nursery, tally, rounds, is_over)
            tally.seconds = time.monotonic() - begun
            if SEEDS:
                with capsys.disabled():
                    print(f"{test}: {tally}", flush=True)
    finally:
        nursery.close()
    with capsys.disabled():
        print(f"{test}: {tally}", flush=True)


def _some_trials(
    scene: Scene,
    seed: int,
    test: str,
    nursery: Nursery,
    tally: Tally,
    rounds: int | None,
    is_over: Callable[[], bool],
) -> None:
    """On one node."""
    rng = random.Random(seed)
    node = NodeUnderTest(
        writers_max=WRITERS,
        lane_capacity=rng.choice([256 << 10, 4 << 20]),
        restart_backoff=0.001,
        restart_backoff_max=0.02,
        writer_stall_timeout=1.0,
        stall_timeout=rng.choice([0.1, 0.5, 10.0]),
    )
    failed = False
    try:
        node.start()
        for number in range(TRIALS_PER_NODE):
            if is_over():
                break
            trial = Trial(node, nursery, scene, seed + number, f"x{number}")
            try:
                report = trial.run(rounds or random.Random(seed + number).randint(6, 18))
            except Exception as error:
                failed = True
                trial.keep()
                command = (
                    f"PENSTOCK_CRASH_SEED={seed + number} PENSTOCK_CRASH_SEEDS=1 python -m pytest "
                    f"-m crash --timeout=0 tests/crash/test_crash_histories.py -k {test}"
                )
                raise AssertionError(
                    f"{error}\n--- seed {seed + number}: {command}\n--- kept in {node.folder}\n"
                    f"--- trace\n{trial.trace_text()}\n--- node\n{node.tail()}"
                ) from error
            finally:
                trial.close()
            tally.trials += 1
            tally.faults += trial.tally
            tally.figures.update(report.figures)
        status = node.stop()
        assert status == 0, f"the node ended with {status}"
        node.check_gone()
    finally:
        node.clear(keep=failed)


def test_crash_history_of_transactions_and_readers(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(transactors=2, readers=("read_committed", "read_uncommitted"))
    run_trials(scene, "test_crash_history_of_transactions_and_readers", capsys)


@pytest.mark.parametrize("guarantee", ["at-least-once", "manual", "at-most-once"])
def test_crash_history_of_a_group(guarantee: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_trials(
        Scene((guarantee,), transactors=1, readers=()),
        f"test_crash_history_of_a_group[{guarantee}]",
        capsys,
    )


def test_crash_history_of_an_exactly_once_job(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(("exactly-once",), transactors=1, readers=())
    run_trials(scene, "test_crash_history_of_an_exactly_once_job", capsys)


def test_crash_history_of_a_job_killed_20_times(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(("exactly-once",), readers=(), kinds=("kill consumer",))
    name = "test_crash_history_of_a_job_killed_20_times"
    run_trials(scene, name, capsys, rounds=20, seconds=0)
