"""The replication factor of topics changes while they are written and read, on three real brokers.

Everything lies on one broker alone, grows to three, and that broker is killed and left out when it
shrinks to two: whatever was acknowledged in its time has to come from the others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from cli_runner import run_cli
from cluster_trial import EVERYTHING, BrokersTrial, Misfortune
from cluster_under_test import ClusterUnderTest
from crash.history_trial import Upheaval, check_amounts
from crash.process_pool import Nursery
from seeds import seed_of, tell

from penstock.client.admin.admin import PartitionPlace, TopicConfig
from penstock.testing import wait_until
from penstock.testing.cluster import ClusterBroker

SECONDS = 60.0

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]


class Resizing(Misfortune):
    """What an operator orders by the command line, and the death of who had everything."""

    def _old(self) -> ClusterBroker:
        return self._ground.cluster.brokers[0]

    def _rest(self) -> list[int]:
        return [each.number for each in self._ground.cluster.brokers[1:]]

    def _order(self, *words: str) -> None:
        done = run_cli("cluster", "reassign", *words, "-b", self._ground.url)
        assert done.code == 0, done.err

    def _places(self, topic: str) -> list[PartitionPlace]:
        with self._ground.connect() as client, client.admin() as admin:
            return admin.describe_partitions(topic)

    def _await(self, topic: str, replicas: set[int]) -> None:
        """All of its partitions lie there, and all are in sync."""

        def is_so() -> bool:
            return all(
                set(it.replicas) == set(it.isr) == replicas and not it.target
                for it in self._places(topic)
            )

        wait_until(is_so, SECONDS, lambda: f"{replicas}: {self._places(topic)}")

    def _shows(self, topic: str, factor: int) -> None:
        with self._ground.connect() as client, client.admin() as admin:
            wait_until(
                lambda: admin.describe_topic(topic).settings["replication_factor"] == factor,
                SECONDS,
                f"{topic} shows {factor}",
            )

    def _all(self) -> list[str]:
        return self._trial.topics

    # --- the steps ---
    def _gather(self) -> str:
        """To one broker."""
        for topic in self._all():
            self._order(topic, "all", str(self._old().number))
        for topic in self._all():
            self._await(topic, {self._old().number})
        return f"at {self._old().number}"

    def _grow(self) -> str:
        for topic in self._all():
            self._order(topic, "--replication-factor", "3")
        for topic in self._all():
            self._await(topic, {1, 2, 3})
            self._shows(topic, 3)
            with self._ground.connect() as client, client.admin() as admin:
                admin.alter_topic(topic, min_insync_replicas=2)
        return "to three"

    def _kill_old(self) -> str:
        self._ground.leaves(self._old(), clean=False)
        return str(self._old().number)

    def _shrink(self) -> str:
        topic = self._all()[0]
        done = run_cli(
            "cluster", "reassign", topic, "--replication-factor", "1", "-b", self._ground.url
        )
        assert done.code != 0
        assert "min_insync_replicas=2" in done.err
        for topic in self._all():
            self._order(topic, "all", ",".join(map(str, self._rest())))
        for topic in self._all():
            self._await(topic, set(self._rest()))
            self._shows(topic, 2)
        return f"to {self._rest()}"

    def _bring_back(self) -> str:
        """It has nothing of these topics to say any more."""
        self._ground.returns(self._old())
        return str(self._old().number)


class ResizingTrial(BrokersTrial):
    def _make_faults(self, args: tuple[Any, ...]) -> Upheaval:
        return Resizing(self, *args)

    def _topic_config(self, rng: random.Random) -> TopicConfig:
        return TopicConfig(
            partitions=3,
            segment_bytes=rng.choice([8 << 10, 1 << 20]),
            replication_factor=1,
            min_insync_replicas=1,
        )


def test_nothing_is_lost_while_a_topic_grows_from_one_replica_to_three_and_shrinks(capsys):
    seed = seed_of("replication factor")
    nursery = Nursery()
    try:
        with ClusterUnderTest() as ground:
            trial = ResizingTrial(ground, nursery, EVERYTHING, seed, "size")
            try:
                report = trial.play(["gather", "grow", "kill old", "shrink", "bring back"])
            except Exception as error:
                trial.keep()
                raise AssertionError(
                    f"{error}\n--- seed {seed}, kept in {ground.keep()}\n--- trace\n"
                    f"{trial.trace_text()}\n--- brokers\n{ground.tail()}"
                ) from error
            finally:
                trial.close()
    finally:
        nursery.close()
    with capsys.disabled():
        tell(f"\nfactors 1 to 3 to 2, seed {seed}: {report.figures}")
    check_amounts(1, report.figures, trial.tally)
