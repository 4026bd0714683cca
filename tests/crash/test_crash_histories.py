"""The guarantees under kill -9 and SIGSTOP of clients, writers, gateway and node, judged by their
histories.

Each trial is a seed. By default scenes that can be one are one (`IN_SHORT`), each test has seconds
(`PENSTOCK_HISTORY_SECONDS`), and `PENSTOCK_SEED=n` begins with that seed. `PENSTOCK_CRASH_SEEDS` is
a number of trials, which `SCENES` share evenly, rounded up: each has its own piece of the seeds
from `PENSTOCK_CRASH_FIRST` on, so that a large number can be run in chunks, one beginning where the
last one ended.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crash.history_trial import WRITERS, Tally, Trial, check_amounts, least_of, too_few
from crash.node_under_test import NodeUnderTest
from crash.participants import Scene
from crash.process_pool import Nursery
from seeds import seed_of, tell

SCENES = {
    "transactions": Scene(transactors=2, readers=("read_committed", "read_uncommitted")),
    "at-least-once": Scene(("at-least-once",), transactors=1, readers=()),
    "manual": Scene(("manual",), transactors=1, readers=()),
    "at-most-once": Scene(("at-most-once",), transactors=1, readers=()),
    "exactly-once": Scene(("exactly-once",), transactors=1, readers=()),
    "share": Scene(("shared",), transactors=1, readers=(), orders=(None, "key")),
    "remote share": Scene(("shared",), transactors=1, readers=(), orders=("key",)),
    "share of a killed node": Scene(
        ("shared",), readers=(), kinds=(*4 * ("kill node",), "kill consumer"), pauses=4.0
    ),
    "remote": Scene(("exactly-once",), transactors=2, readers=("read_committed",)),
    "killed 20 times": Scene(("exactly-once",), readers=(), kinds=("kill consumer",)),
}
IN_SHORT = {
    "all groups": Scene(
        ("at-least-once", "manual", "at-most-once", "shared"), 1, (), orders=(None, "key")
    ),
    "jobs and readers": Scene(("exactly-once",), 2, ("read_committed", "read_uncommitted")),
    "all remote": Scene(("exactly-once", "shared"), 2, ("read_committed",), orders=("key",)),
    "killed 20 times": SCENES["killed 20 times"],
}
"""Those of `SCENES` beside each other, with all of their guarantees, readers and faults: what they
wait for is waited for once."""
ROUNDS = {"killed 20 times": 20, "share of a killed node": 12}
"""The faults of each trial, where chance does not decide."""
SEEDS = int(os.environ.get("PENSTOCK_CRASH_SEEDS", "0"))
SEEDS_EACH = -(-SEEDS // len(SCENES))
FIRST = int(os.environ.get("PENSTOCK_CRASH_FIRST") or 0) or seed_of("crash histories")
SECONDS = float(os.environ.get("PENSTOCK_HISTORY_SECONDS", "3"))
TRIALS_PER_NODE = 5
"""After so many the node is stopped cleanly, looked at for leaks, and a new one made."""

TRIALS_MAX = 6
"""Of a scene by default, however little they came to."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0 if SEEDS else SECONDS + 120)]


@pytest.fixture(scope="module", autouse=True)
def whole(pytestconfig: pytest.Config) -> Iterator[Tally]:
    """What all scenes came to, told at the end."""
    whole = Tally()
    begun = time.monotonic()
    yield whole
    whole.seconds = time.monotonic() - begun
    manager = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert manager is not None
    with manager.global_and_fixture_disabled():
        tell(f"\nhistories in all: {whole.summary()}")


def run_trials(
    scene: str,
    test: str,
    capsys: pytest.CaptureFixture[str],
    whole: Tally,
    *,
    rounds: int | None = None,
) -> None:
    """As many as there are seeds or seconds for, and at least one; `rounds` are faults of each."""
    first = FIRST + list(SCENES).index(scene) * SEEDS_EACH if SEEDS else FIRST
    last = f" to {first + SEEDS_EACH - 1}" if SEEDS else ""
    made_of = (SCENES | IN_SHORT)[scene]
    tally, least = Tally(), least_of(made_of)
    # What `make mutants ARGS=histories` plants is found by a trial or two, not by each.
    seconds = max(SECONDS, 75.0) if SECONDS and scene == "share of a killed node" else SECONDS
    begun = time.monotonic()
    with capsys.disabled():
        tell(f"\n{test}: seeds from {first}{last}")
    nursery = Nursery()
    try:

        def is_over() -> bool:
            if SEEDS:
                return tally.trials >= SEEDS_EACH
            if not tally.trials or time.monotonic() - begun < seconds:
                return False
            # One trial in which a busy machine let nobody begin says nothing: there are more.
            return tally.trials >= TRIALS_MAX or not too_few(tally.trials, tally.figures, least)

        while not is_over():
            seed = first + tally.trials
            _some_trials(made_of, seed, test, nursery, tally, rounds, is_over)
            tally.seconds = time.monotonic() - begun
            if SEEDS:
                with capsys.disabled():
                    tell(f"{test}: {tally.trials} of {SEEDS_EACH}: {tally.summary()}")
    except BaseException:
        tally.findings += 1
        raise
    finally:
        nursery.close()
        whole += tally
    with capsys.disabled():
        tell(f"{test}: {tally}")
    check_amounts(tally.trials, tally.figures, tally.faults, least)
    if rounds:
        assert sum(tally.faults.values()) == rounds * tally.trials, tally.faults


def _some_trials(
    scene: Scene,
    seed: int,
    test: str,
    nursery: Nursery,
    tally: Tally,
    rounds: int | None,
    is_over: Callable[[], bool],
) -> None:
    """On one node, made by numbers that are the same for each of its seeds: each repeats it."""
    rng = random.Random(seed // TRIALS_PER_NODE)
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
        for number in range(TRIALS_PER_NODE - seed % TRIALS_PER_NODE):
            if is_over():
                break
            trial = Trial(node, nursery, scene, seed + number, f"x{number}")
            try:
                report = trial.run(rounds or random.Random(seed + number).randint(6, 18))
            except Exception as error:
                failed = True
                trial.keep()
                command = (
                    f"PENSTOCK_SEED={seed + number} PENSTOCK_HISTORY_SECONDS=0 python -m "
                    f"pytest -m crash --timeout=0 tests/crash/test_crash_histories.py -k {test}"
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


def played() -> Iterator[Any]:
    """Scenes of their own are for many seeds, and for one that one of them has printed."""
    for scene in SCENES if SEEDS else SCENES | IN_SHORT:
        is_long = not SEEDS and scene not in IN_SHORT
        yield pytest.param(
            scene, id=scene.replace(" ", "-"), marks=[pytest.mark.slow] if is_long else []
        )


@pytest.mark.parametrize("scene", list(played()))
def test_crash_history(
    scene: str, capsys: pytest.CaptureFixture[str], whole: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`remote` ones over tcp, with the gateway among the victims; `--transport tcp` runs all so."""
    if "remote" in scene:
        monkeypatch.setenv("PENSTOCK_TEST_TRANSPORT", "tcp")
        monkeypatch.setenv("PENSTOCK_TRANSPORT", "tcp")
    name = f"test_crash_history[{scene.replace(' ', '-')}]"
    run_trials(scene, name, capsys, whole, rounds=ROUNDS.get(scene))
