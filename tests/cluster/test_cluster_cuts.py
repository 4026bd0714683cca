"""Three brokers on hosts of their own (network namespaces), and cuts between them in the middle of
traffic: one way and both, of the leader, of the controller, of a follower. Histories are judged.

Each trial is a seed: `PENSTOCK_SEED=n` begins with one, `PENSTOCK_CUTS_SECONDS` is how long it
goes on. By default one trial with a few cuts runs, if this user may make namespaces.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

import pytest
from cluster_trial import EVERYTHING, BrokersTrial, Misfortune
from cluster_under_test import ClusterUnderTest
from crash.history_trial import check_amounts
from crash.process_pool import Nursery
from network_namespaces import OUTSIDE, ManyHosts
from seeds import seed_of, tell

SECONDS = float(os.environ.get("PENSTOCK_CUTS_SECONDS", "0"))
WEIGHTS: dict[str, float] = {
    "silence leader": 8,
    "deafen leader": 8,
    "isolate leader": 8,
    "silence controller": 6,
    "deafen controller": 6,
    "isolate controller": 5,
    "cut a pair": 5,
    "cut clients from leader": 4,
    "cut answers of leader": 4,
    "kill leader": 3,
    "kill consumer": 3,
}

pytestmark = [pytest.mark.crash, pytest.mark.timeout(SECONDS * 2 + 240)]


class Cuts(Misfortune):
    """Packets are lost without a word; after some seconds the network is whole again."""

    hosts: ManyHosts

    def _for_a_while(self, what: str) -> str:
        return f"{what} {self._later(4.0, self.hosts.heal)}"

    def heal(self) -> None:
        self.hosts.heal()
        super().heal()

    def _others(self, number: int) -> list[int]:
        return [each for each in self.hosts.names if each != number]

    def _silence(self, number: int) -> str:
        """The others do not hear it; it hears them."""
        for other in self._others(number):
            self.hosts.cut(number, other)
        return self._for_a_while(f"{number} to all brokers")

    def _deafen(self, number: int) -> str:
        for other in self._others(number):
            self.hosts.cut(other, number)
        return self._for_a_while(f"all brokers to {number}")

    def _isolate(self, number: int) -> str:
        """From the brokers; clients still reach it, and it them."""
        self.hosts.isolate(number)
        return self._for_a_while(f"{number} and the others")

    def _silence_leader(self) -> str:
        return self._silence(self._leader().number)

    def _silence_controller(self) -> str:
        return self._silence(self._controller().number)

    def _deafen_leader(self) -> str:
        return self._deafen(self._leader().number)

    def _deafen_controller(self) -> str:
        return self._deafen(self._controller().number)

    def _isolate_leader(self) -> str:
        return self._isolate(self._leader().number)

    def _isolate_controller(self) -> str:
        return self._isolate(self._controller().number)

    def _cut_a_pair(self) -> str:
        """Both hear the third one."""
        self.go_on(float("inf"))
        one, other = self._rng.sample(list(self.hosts.names), 2)
        self.hosts.isolate(one, [other])
        return self._for_a_while(f"{one} and {other}")

    def _cut_clients_from_leader(self) -> str:
        number = self._leader().number
        self.hosts.cut(OUTSIDE, number)
        return self._for_a_while(f"clients to {number}")

    def _cut_answers_of_leader(self) -> str:
        number = self._leader().number
        self.hosts.cut(number, OUTSIDE)
        return self._for_a_while(f"{number} to clients")


class CutsTrial(BrokersTrial):
    def __init__(self, hosts: ManyHosts, *args: Any) -> None:
        self._hosts = hosts
        super().__init__(*args)

    def _make_faults(self, args: tuple[Any, ...]) -> Cuts:
        found = Cuts(self, *args)
        found.hosts = self._hosts
        return found

    def weights(self) -> dict[str, float]:
        return WEIGHTS


def test_histories_of_brokers_between_which_packets_are_lost(capsys):
    first = seed_of("cuts between brokers")
    begun, trials = time.monotonic(), 0
    faults: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    nursery = Nursery()
    try:
        with (
            ManyHosts() as hosts,
            ClusterUnderTest(
                hosts=hosts.addresses,
                before=[hosts.on(number) for number in hosts.names],
                options={"insecure": True},
            ) as ground,
        ):
            while not trials or time.monotonic() - begun < SECONDS:
                prefix = f"c{trials}"
                one_trial(hosts, ground, nursery, first + trials, prefix, faults, figures)
                trials += 1
    finally:
        nursery.close()
    with capsys.disabled():
        struck = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
        tell(f"\ncuts: {trials} trials from {first} in {time.monotonic() - begun:.0f} s; {struck}")
    check_amounts(trials, figures, faults)


def one_trial(hosts, ground, nursery, seed, prefix, faults, figures):
    trial = CutsTrial(hosts, ground, nursery, EVERYTHING, seed, prefix)
    try:
        report = trial.run(random.Random(seed).randint(3, 5))
    except Exception as error:
        trial.keep()
        raise AssertionError(
            f"{error}\n--- seed {seed}: PENSTOCK_SEED={seed} python -m pytest -m crash "
            f"tests/cluster/test_cluster_cuts.py\n--- kept in {ground.keep()}\n"
            f"--- trace\n{trial.trace_text()}\n--- brokers\n{ground.tail()}"
        ) from error
    finally:
        hosts.heal()
        trial.close()
    faults += trial.tally
    figures.update(report.figures)
