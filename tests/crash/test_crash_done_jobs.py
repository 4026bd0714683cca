"""Exactly-once jobs under kill -9: of workers at any moment, and of the node, its writers and its
gateway. Each job has one output for readers of committed records.

By default some rounds; PENSTOCK_CRASH_ROUNDS asks for more, PENSTOCK_SEED=n begins with a seed.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from crash.node_under_test import NodeUnderTest
from crash.process_pool import Nursery
from job_trial import JobTrial
from seeds import seed_of, tell

ASKED = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0"))
FEW = 8
OTHERS_EVERY = 25 if ASKED > 100 else 4
"""Rounds from one kill of the node, its writers or its gateway to the next."""
ROUNDS_PER_NODE = 500
"""A node and its topics are new after so many."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0 if ASKED else 120)]


def killed(pids: list[int | None]) -> None:
    for pid in pids:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def restarted(node: NodeUnderTest) -> None:
    node.kill()
    node.start()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_job_has_one_output_whoever_is_killed(transport, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_TEST_TRANSPORT", transport)
    seed, begun = seed_of(f"done jobs by {transport}"), time.monotonic()
    nursery, left, number = Nursery(), ASKED or FEW, 0
    struck: Counter[str] = Counter()
    told: Counter[str] = Counter()
    try:
        while left > 0:
            node = NodeUnderTest(
                writers_max=2, restart_backoff=0.001, restart_backoff_max=0.02, stall_timeout=0.3,
                client_heartbeat=0.2, client_silence_max=1.0,
            )  # fmt: skip
            with node:
                trial = JobTrial(
                    node,
                    nursery,
                    seed + number,
                    f"t{number}",
                    others_every=25 if ASKED > 100 else 4,
                )
                others = [("node", lambda node=node: restarted(node))]
                if transport == "tcp":
                    others.append(("gateway", lambda node=node: killed([node.gateway_pid()])))
                others.append(("writer", lambda node=node: killed(node.writer_pids()[:1])))
                try:
                    for _ in range(min(left, ROUNDS_PER_NODE)):
                        trial.round(others)
                    outcomes = trial.end()
                except Exception as error:
                    raise AssertionError(f"seed {seed + number}: {error}\n{node.tail()}") from error
                finally:
                    trial.close()
            struck += trial.struck
            told += outcomes
            left, number = left - ROUNDS_PER_NODE, number + 1
            with capsys.disabled():
                took = time.monotonic() - begun
                tell(f"\njobs by {transport}: {dict(struck)}; {dict(told)} in {took:.0f} s")
    finally:
        nursery.close()
    assert min(struck["kill"], struck["node"], told["committed"]) > 0
