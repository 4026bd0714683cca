"""Leaders come back by themselves on three real brokers, and nobody loses a record by it."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any
from urllib.request import urlopen

import pytest
from cluster_trial import EVERYTHING, BrokersTrial, Misfortune
from cluster_under_test import ClusterUnderTest, bounce
from crash.history_trial import Upheaval, check_amounts
from crash.process_pool import Nursery
from seeds import seed_of, tell

from penstock.core.errors import PenstockError
from penstock.testing import wait_until

OPTIONS = {"leader_balance_interval": 1.0, "metrics": "127.0.0.1:0"}
WANTED = os.environ.get("PENSTOCK_CLUSTER", "")
STEPS = ["bounce leader", "see leaders back", "crash controller", "see leaders back"]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


class AndBack(Misfortune):
    """Misfortunes, and a look whether all is led again by whoever comes first."""

    def _see_leaders_back(self) -> str:
        cluster = self._ground.cluster

        def strays() -> object:
            try:
                placed = cluster.look(*self._topics).partitions
            except PenstockError as error:
                return error
            return {name: it for name, it in placed.items() if it.leader != it.replicas[0]}

        wait_until(lambda: not strays(), 30, lambda: f"leaders are back: {strays()}")
        return "all of them"


class BalancedTrial(BrokersTrial):
    def _make_faults(self, args: tuple[Any, ...]) -> Upheaval:
        return AndBack(self, *args)


@pytest.mark.setting("node.leader_balance_interval")
def test_leaders_come_back_in_the_middle_of_traffic(capsys):
    seed = seed_of("leaders that come back")
    nursery = Nursery()
    try:
        with ClusterUnderTest(options=OPTIONS) as ground:
            trial = BalancedTrial(ground, nursery, EVERYTHING, seed, "back")
            try:
                report = trial.play(STEPS * 2 if WANTED == "all" else STEPS)
            except Exception as error:
                trial.keep()
                raise AssertionError(
                    f"{error}\n--- seed {seed}, kept in {ground.keep()}\n--- trace\n"
                    f"{trial.trace_text()}\n--- brokers\n{ground.tail()}"
                ) from error
            finally:
                trial.close()
            logs = "\n".join(each.log_tail(100_000) for each in ground.cluster.brokers)
            assert "partitions that their first replica leads again: " in logs
            assert seen_back(ground) > 0, "the controller of now saw the last ones back"
    finally:
        nursery.close()
    with capsys.disabled():
        tell(f"\nleaders that come back, seed {seed}: {report.figures}")
    check_amounts(1, report.figures, trial.tally)


def seen_back(ground: ClusterUnderTest) -> int:
    """As `balanced`; a controller that was elected after the last ones came back sees more."""
    for _ in range(3):
        if found := balanced(ground):
            return found
        controller = ground.controller()
        other = next(each for each in ground.cluster.brokers if each is not controller)
        bounce(ground, other, clean=True)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: balanced(ground), 30)
    return balanced(ground)


def balanced(ground: ClusterUnderTest) -> int:
    """Partitions that the controller of now has moved, as it serves that."""
    with ground.controller().connect() as client, client.admin() as admin:
        place = admin.describe_node().metrics
    with urlopen(f"http://{place}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.search(r'^penstock_controller_events_total{event="balanced"} (\d+)', text, re.M)
    assert found, text
    return int(found[1])
