"""kill -9 of a producer at each step of a frame: visible only whole (invariant 8), then kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from crash import producer_steps
from crash.node_under_test import NodeUnderTest, environment
from crash.producer_steps import BEFORE, INVISIBLE, VISIBLE

from penstock.testing import wait_until

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def node() -> Iterator[NodeUnderTest]:
    with NodeUnderTest(writers_max=1) as node:
        yield node
        assert node.stop() == 0
        node.check_gone()


def values_after_death_at(node: NodeUnderTest, step: str) -> list[bytes | None]:
    topic = step.replace(" ", "-")
    with node.connect() as client:
        client.admin().create_topic(topic)
        plan = json.dumps({"url": node.url, "topic": topic, "step": step})
        child = subprocess.run(
            [sys.executable, producer_steps.__file__, plan],
            env=environment(), capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        # Its lane goes once the writer has drained what was published.
        wait_until(
            lambda: not [name for name in node.shared_memory() if "-lane-" in name],
            10.0,
            lambda: f"lanes are left: {node.shared_memory()}",
        )
        with client.consumer(topic, follow=False) as consumer:
            return [record.value for record in consumer]


BEFORE_IT = [b"before-%d" % number for number in range(BEFORE)]


@pytest.mark.parametrize("step", INVISIBLE)
def test_crash_of_a_producer_before_its_tail_moves_leaves_nothing(
    node: NodeUnderTest, step: str
) -> None:
    assert values_after_death_at(node, step) == BEFORE_IT


@pytest.mark.parametrize("step", VISIBLE)
def test_crash_of_a_producer_after_its_tail_moved_loses_nothing(
    node: NodeUnderTest, step: str
) -> None:
    assert values_after_death_at(node, step) == [*BEFORE_IT, b"at-the-step" * 100]
