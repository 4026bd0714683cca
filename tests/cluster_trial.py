"""A trial whose faults are those of brokers: histories of everybody who writes and reads, judged.

Everybody writes with acks="all": what was acknowledged stands on at least two of three brokers, so
nothing that one of them suffers may lose it. Faults either strike at random, one at a time, or as a
test says (`play`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from cluster_under_test import ClusterUnderTest, bounce
from crash.history_trial import Trial, Upheaval
from crash.participants import Scene
from crash.process_pool import Nursery
from histories.checker import Report
from histories.events import SHARED

from penstock.client.admin.admin import TopicConfig
from penstock.testing.cluster import ClusterBroker

SAFE: dict[str, Any] = {"acks": "all", "idempotent": True}
EVERYTHING = Scene(
    ("at-least-once", "at-most-once", "exactly-once"),
    transactors=1,
    readers=("read_committed",),
    producing=SAFE,
)
"""All three guarantees at once, and transactions."""
WITH_SHARES = replace(EVERYTHING, guarantees=(*EVERYTHING.guarantees, SHARED))
"""A share group beside them."""


class Misfortune(Upheaval):
    """What befalls brokers, whole or in part, and their clients."""

    def __init__(self, trial: BrokersTrial, ground: ClusterUnderTest, *rest: Any) -> None:
        super().__init__(trial, ground, *rest)
        self._ground = ground
        self._over: list[tuple[float, Callable[[], object]]] = []

    # --- what is under way ---
    def go_on(self, now: float) -> None:
        super().go_on(now)
        for entry in [entry for entry in self._over if entry[0] <= now]:
            self._over.remove(entry)
            entry[1]()

    def next_at(self, latest: float) -> float:
        return min([super().next_at(latest), *(entry[0] for entry in self._over)])

    def heal(self) -> None:
        super().heal()
        self._ground.heal()

    def _later(self, longest: float, undo: Callable[[], object]) -> str:
        bound = self._rng.uniform(0.1, longest)
        self._over.append((time.monotonic() + bound, undo))
        return f"for {bound:.3f} s"

    # --- who ---
    def _leader(self) -> ClusterBroker:
        """Of one of the partitions that are written to, once nobody is away."""
        self.go_on(float("inf"))
        return self._ground.leader(self._rng.choice(self._topics))

    def _controller(self) -> ClusterBroker:
        self.go_on(float("inf"))
        return self._ground.controller()

    def _anyone(self) -> ClusterBroker:
        self.go_on(float("inf"))
        return self._rng.choice(self._ground.present())

    # --- whole brokers ---
    def _goes(self, broker: ClusterBroker, clean: bool, longest: float = 2.0) -> str:
        self._ground.leaves(broker, clean=clean)
        return f"{broker.number} {self._later(longest, lambda: self._ground.returns(broker))}"

    def _kill_leader(self) -> str:
        return self._goes(self._leader(), clean=False)

    def _kill_controller(self) -> str:
        return self._goes(self._controller(), clean=False)

    def _stop_leader(self) -> str:
        return self._goes(self._leader(), clean=True)

    def _stop_controller(self) -> str:
        return self._goes(self._controller(), clean=True)

    def _bounce(self, broker: ClusterBroker, clean: bool) -> str:
        return f"{broker.number} in {bounce(self._ground, broker, clean=clean):.3f} s"

    def _bounce_leader(self) -> str:
        return self._bounce(self._leader(), clean=True)

    def _bounce_controller(self) -> str:
        return self._bounce(self._controller(), clean=True)

    def _crash_leader(self) -> str:
        return self._bounce(self._leader(), clean=False)

    def _crash_controller(self) -> str:
        return self._bounce(self._controller(), clean=False)

    def _kill_all_brokers(self) -> str:
        """At once, and started again together."""
        self.go_on(float("inf"))
        brokers = self._ground.cluster.brokers
        self._rng.shuffle(brokers)
        for each in brokers:
            self._ground.leaves(each, clean=False)
        self._ground.returns(*brokers)
        return "and started again"

    def _kill_two_brokers(self) -> str:
        """Most of them: nothing is decided and nothing committed until one is back."""
        self.go_on(float("inf"))
        pair = self._rng.sample(self._ground.present(), 2)
        for each in pair:
            self._ground.leaves(each, clean=False)
        later = self._later(1.0, lambda: self._ground.returns(*pair))
        return f"{[each.number for each in pair]} {later}"

    def _pauses(self, broker: ClusterBroker, longest: float) -> str:
        broker.pause()
        self._ground.away[broker.number] = "paused"

        def wake() -> None:
            broker.resume()
            self._ground.away.pop(broker.number, None)

        return f"{broker.number} {self._later(longest, wake)}"

    def _pause_leader(self) -> str:
        """SIGSTOP to all of it, mostly for longer than its lease: it wakes deposed."""
        return self._pauses(self._leader(), 4.0)

    def _pause_controller(self) -> str:
        return self._pauses(self._controller(), 4.0)

    # --- parts of a broker ---
    def _part(self, kind: str) -> str:
        broker = self._leader()
        pids = broker.processes(kind)
        broker.kill(kind)
        return f"{broker.number}: {pids}"

    def _kill_writers(self) -> str:
        return self._part("writer")

    def _kill_gateway(self) -> str:
        return self._part("gateway")

    def _kill_replicator(self) -> str:
        return self._part("replicator")

    def _kill_node(self) -> str:
        """Its node process alone: the others see it and leave."""
        broker = self._leader()
        self._ground.away[broker.number] = "killed"
        broker.node.kill()
        self._ground.returns(broker)
        return str(broker.number)


WEIGHTS: dict[str, float] = {
    "kill leader": 10,
    "kill controller": 8,
    "stop leader": 6,
    "stop controller": 4,
    "kill node": 4,
    "kill two brokers": 3,
    "kill all brokers": 2,
    "pause leader": 7,
    "pause controller": 5,
    "kill writers": 6,
    "kill gateway": 5,
    "kill replicator": 8,
    "kill producer": 4,
    "kill consumer": 6,
    "stop consumer": 4,
    "join": 3,
    "leave": 3,
    "add partitions": 1,
    "reset offsets": 1,
}


class BrokersTrial(Trial):
    """See the module."""

    patience: ClassVar[float] = 4.0

    def __init__(
        self, ground: ClusterUnderTest, nursery: Nursery, scene: Scene, seed: int, prefix: str
    ) -> None:
        super().__init__(ground, nursery, scene, seed, prefix)

    def _make_faults(self, args: tuple[Any, ...]) -> Upheaval:
        return Misfortune(self, *args)

    def weights(self) -> dict[str, float]:
        return WEIGHTS

    def _topic_config(self, rng: random.Random) -> TopicConfig:
        return TopicConfig(
            partitions=3,
            segment_bytes=rng.choice([8 << 10, 1 << 20]),
            durability=rng.choice(["os", "os", "fsync"]),
            replication_factor=3,
            min_insync_replicas=2,
        )

    def play(self, faults: Sequence[str], pause: float = 0.5) -> Report:
        """These faults in this order, with traffic before, between and after them."""
        self._begin()
        for kind in faults:
            self._go_on_for(pause)
            self._check()
            self._note(f"{kind} {self._faults.strike(kind)}")
            self.tally[kind] += 1
        self._go_on_for(pause)
        return self._conclude()
