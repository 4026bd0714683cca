"""kill -9 of the writer at every named step of its work, while traffic flows (see `steps`)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from crash import steps
from crash.episode import Episode, Figures
from crash.ground import NodeUnderTest, wait_until
from crash.steps import STEPS, StepPlan

from penstock.admin import TopicConfig

pytestmark = pytest.mark.crash

SEED = 4
STEP_TIMEOUT = 10.0
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
    plan = StepPlan(tmp_path / "steps")
    plan.write(list(STEPS))
    monkeypatch.setenv(steps.PLAN_VARIABLE, str(tmp_path / "steps"))
    node = NodeUnderTest(
        tmp_path,
        writers_max=1,
        restart_backoff=0.001,
        restart_backoff_max=0.01,
        writer_command=[sys.executable, steps.__file__],
    )
    episode = Episode(node, SEED, 0, Figures(), TOPICS)
    try:
        node.start()
        episode.begin()
        for number, step in enumerate(STEPS):
            wait_until(
                partial(plan.was_hit, number), STEP_TIMEOUT, f"a writer dies at step {step!r}"
            )
            episode.check_crew()
        episode.finish()
        assert plan.hit() == list(STEPS)
        assert node.stop() == 0
        node.check_gone()
    except BaseException:
        with capsys.disabled():
            print(episode.trace_text(), node.tail(), sep="\n")
        raise
    finally:
        episode.close()
        node.clear()
