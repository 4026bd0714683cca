"""kill -9 of the node and of the writer of the coordinator's log, between decisions and answers.

What was answered is there after it, what was not can be asked again, and no step leaves a claim
granted twice or a transaction half done (rules 17 to 19).
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import steps
from crash.coordinator_workload import Work
from crash.node_steps import COORDINATING, LOADING
from crash.node_under_test import NodeUnderTest
from crash.steps import StepPlan
from seeds import seed_of, tell

from penstock.client.admin.admin import TopicConfig
from penstock.ipc import paths
from penstock.logcheck import check_partition, find_partitions
from penstock.testing import wait_until

pytestmark = pytest.mark.crash

SEED = seed_of("crashes of the coordinator")
WRITER_STEPS = [
    "frame half read",
    "frames read",
    "before writing the log",
    "half-way writing the log",
    "after writing the log",
    "segment half published",
    "segment published",
    "log end published alone",
    "ends published",
    "acks written",
    "acks published",
    "head sequence published",
    "head published",
    "before fdatasync of a log",
    "after fdatasync of a log",
    "durable published",
]
ROUNDS_MAX = 400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeUnderTest]:
    node = NodeUnderTest(tmp_path, writers_max=1)
    try:
        yield node
    finally:
        node.clear()


def begin(node: NodeUnderTest) -> Work:
    node.start()
    with node.connect() as client:
        client.admin().create_topic("orders", TopicConfig(partitions=2))
    work = Work(lambda: paths.socket_in(node.data))
    work.round()
    return work


def check_end(node: NodeUnderTest, work: Work) -> None:
    work.round()
    work.check()
    work.close()
    assert node.stop() == 0
    for partition in find_partitions(str(node.data)):
        assert not check_partition(partition).errors


def work_until_it_dies(node: NodeUnderTest, work: Work) -> None:
    """Requests that find nobody are repeated: the next node is started for them as it dies."""

    def watch() -> None:
        if node.process.poll() is not None:
            assert node.process.returncode == -signal.SIGKILL, node.tail()
            node.config.pop("step", None)
            node.start()

    work.meanwhile = watch
    before = node.starts
    for _ in range(ROUNDS_MAX):
        work.round()
        watch()
        if node.starts > before:
            return
    raise AssertionError(f"the node did not die in {ROUNDS_MAX} rounds")


@pytest.mark.rule(17)
@pytest.mark.timeout(240)
def test_rule_17_crash_of_the_node_between_decision_and_answer(
    node: NodeUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    work = begin(node)
    for step in COORDINATING:
        node.kill()
        skip = random.Random(f"{SEED} {step}").randrange(12)
        with capsys.disabled():
            tell(f"\n{step}: seed {SEED}, skips {skip}")
        node.config["step"] = [step, skip]
        node.start()
        work_until_it_dies(node, work)
    check_end(node, work)


@pytest.mark.rule(17)
@pytest.mark.timeout(240)
def test_rule_17_crash_of_the_node_while_it_loads(node: NodeUnderTest) -> None:
    work = begin(node)
    for step in LOADING:
        node.kill()
        node.config["step"] = [step, 0]
        os.close(node.launch())
        dying = node.process
        wait_until(lambda: dying.poll() is not None, 45.0, f"it dies {step}")  # noqa: B023
        assert dying.returncode == -signal.SIGKILL, node.tail()
        del node.config["step"]
        node.start()
        work.round()
    check_end(node, work)


@pytest.mark.rule(17)
@pytest.mark.timeout(120)
def test_rule_17_crash_of_its_writer_at_each_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = StepPlan(tmp_path / "steps")
    plan.write([])
    monkeypatch.setenv(steps.PLAN_VARIABLE, str(tmp_path / "steps"))
    node = NodeUnderTest(
        tmp_path,
        writers_max=1,
        restart_backoff=0.001,
        restart_backoff_max=0.01,
        writer_command=[sys.executable, steps.__file__],
    )
    try:
        work = begin(node)
        plan.write(WRITER_STEPS)
        os.kill(node.writer_pids()[0], signal.SIGKILL)  # its successors have the plan
        for number, step in enumerate(WRITER_STEPS):
            for _ in range(ROUNDS_MAX):
                if plan.was_hit(number):
                    break
                work.round()
            assert plan.was_hit(number), f"no writer died at step {step!r}"
        assert node.is_running
        check_end(node, work)
    finally:
        node.clear()
