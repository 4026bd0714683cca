"""kill -9 of the writer at every named step of its work, while traffic flows (see `steps`)."""

from __future__ import annotations

import os
import random
import sys
from functools import partial
from pathlib import Path

import pytest
from crash import steps
from crash.crash_episode import Episode, Figures
from crash.node_under_test import NodeUnderTest
from crash.steps import STEPS, StepPlan
from seeds import seed_of, tell

from penstock.client.admin.admin import TopicConfig
from penstock.testing import wait_until

pytestmark = pytest.mark.crash

SEED = seed_of("storage calls")
CALLS = min(int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "15")), 500)
STEP_TIMEOUT = 45.0
TOPICS = {
    # Small segments: rolls and snapshots come every few batches. Those of the first topic are just
    # large enough for entries in their indexes.
    "steps-os": TopicConfig(partitions=2, segment_bytes=65536),
    "steps-fsync": TopicConfig(partitions=1, segment_bytes=8192, durability="fsync"),
    "steps-interval": TopicConfig(
        partitions=1, segment_bytes=8192, durability="interval", flush_interval=0.02
    ),
}


@pytest.mark.timeout(180)
def test_crash_of_the_writer_at_each_step_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    crash_at(list(STEPS), 4, monkeypatch, capsys, tmp_path)


@pytest.mark.timeout(180 + 2 * CALLS)
def test_crash_of_the_writer_at_calls_of_its_storage_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first calls are those of the recovery from the crash before."""
    with capsys.disabled():
        tell(f"\ncrash at calls of the storage: seed {SEED}")
    rng = random.Random(SEED)
    numbers = [rng.choice([rng.randint(1, 25), rng.randint(1, 200)]) for _ in range(CALLS)]
    crash_at([f"storage call {n}" for n in numbers], SEED, monkeypatch, capsys, tmp_path)


def crash_at(
    wanted: list[str],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> None:
    """Traffic, while one writer after the other dies at the next of these steps."""
    plan = StepPlan(folder / "steps")
    plan.write(wanted)
    monkeypatch.setenv(steps.PLAN_VARIABLE, str(folder / "steps"))
    node = NodeUnderTest(
        folder,
        writers_max=1,
        restart_backoff=0.001,
        restart_backoff_max=0.01,
        writer_command=[sys.executable, steps.__file__],
    )
    figures = Figures()
    episode = Episode(node, seed, 0, figures, TOPICS)
    try:
        node.start()
        episode.begin()
        for number, step in enumerate(wanted):
            wait_until(
                partial(plan.was_hit, number), STEP_TIMEOUT, f"a writer dies at step {step!r}"
            )
            episode.check_crew()
        episode.finish()
        assert plan.hit() == wanted
        assert min(figures.acknowledged, figures.consumed) >= len(wanted), figures
        assert node.stop() == 0
        node.check_gone()
    except BaseException:
        with capsys.disabled():
            tell(episode.trace_text(), node.tail(), sep="\n")
        raise
    finally:
        episode.close()
        node.clear()
