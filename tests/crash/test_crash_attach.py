"""Invariant 11: attaching and crashing, again and again, leaks nothing and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from crash import attach_rounds
from crash.node_under_test import NodeUnderTest, descriptors, environment
from seeds import seed_of, tell

from penstock.client.admin.admin import TopicConfig
from penstock.testing import wait_until

ROUNDS = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "40"))
SEED = seed_of("attach rounds")
WARM_UP = 20
PARTITIONS = 4


def run_rounds(node: NodeUnderTest, first: int, rounds: int) -> list[bytes]:
    """The values that were acknowledged."""
    plan = {
        "url": node.url, "topic": "t", "first": first, "rounds": rounds, "seed": SEED + first,
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, attach_rounds.__file__, json.dumps(plan)],
        env=environment(), capture_output=True, timeout=60 + rounds, check=False,
    )  # fmt: skip
    assert child.returncode == 0, f"seed {SEED}: {child.stderr.decode()}\n{node.tail()}"
    return child.stdout.split()


def held(node: NodeUnderTest) -> dict[str, Counter[str]]:
    """The descriptors of the node and of its writers, by kind."""
    pids = {"node": node.pid, **{f"writer {pid}": pid for pid in node.writer_pids()}}
    return {
        who: Counter(name.split(":")[0] for name in descriptors(pid)) for who, pid in pids.items()
    }


def grown(before: dict[str, Counter[str]], now: dict[str, Counter[str]]) -> list[str]:
    """Who holds more of anything. A connection of ours that was just closing may have been counted
    before, so less is no finding."""
    return [who for who in now if now[who] - before.get(who, Counter())]


@pytest.mark.crash
@pytest.mark.timeout(120 + ROUNDS)
def test_invariant_11_attach_and_crash_rounds_leak_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with NodeUnderTest(writers_max=2) as node:
        with node.connect() as client:
            client.admin().create_topic("t", TopicConfig(partitions=PARTITIONS))
        acknowledged = run_rounds(node, 0, WARM_UP)
        wait_until(lambda: is_quiet(node), 45.0, lambda: f"lanes: {node.shared_memory()}")
        before = held(node)
        memory = node.shared_memory()
        acknowledged += run_rounds(node, WARM_UP, ROUNDS)
        wait_until(
            lambda: is_quiet(node) and not grown(before, held(node)),
            45.0,
            lambda: f"seed {SEED}: {before} has become {held(node)}, {node.shared_memory()}",
        )
        assert node.shared_memory() == memory
        with node.connect() as client:
            description = client.admin().describe_node()
            assert (description.clients, description.lanes) == (1, 0)
            assert sum(writer.restarts for writer in description.writers) == 0
            with client.consumer("t", follow=False) as consumer:
                found = Counter(record.value for record in consumer)
        assert not [value for value, count in found.items() if count > 1]
        assert set(acknowledged) <= set(found), f"seed {SEED}"
        assert len(acknowledged) >= ROUNDS // 10, f"seed {SEED}: next to nothing was acknowledged"
        assert node.stop() == 0
        node.check_gone()
    with capsys.disabled():
        tell(f"\nattach rounds: {ROUNDS} (seed {SEED}), {len(acknowledged)} records acknowledged")


def is_quiet(node: NodeUnderTest) -> bool:
    """Nobody is attached any more and no lane is left."""
    with node.connect() as client:
        description = client.admin().describe_node()
    return (description.clients, description.lanes) == (1, 0)
