"""A trial whose clients are on another host: the faults of the network come to those of processes.

Some trials have a line between the hosts that is a little rough from beginning to end. Each fault
of the network ends after a while. After some of them the trial waits until every producer has an
answer to something again, and notes how long that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
from crash.history_trial import HEAL_TIMEOUT, Trial, Upheaval
from crash.node_under_test import NodeUnderTest
from crash.participants import Scene
from crash.process_pool import Hand, Nursery
from lossy_link import Roughness
from two_network_namespaces import CLIENT, NODE, Hosts

from penstock.testing import wait_until

WAITED_FOR: Final = 0.6
"""The share of healed faults after which recovery is waited for."""
ROUGH_TRIALS: Final = 0.5
"""The share of trials on a line that is rough all the time."""


class Trouble(Upheaval):
    """Faults of the network, the gateway and processes at both ends."""

    def __init__(self, trial: FarTrial, hosts: Hosts, node: NodeUnderTest, *rest: Any) -> None:
        super().__init__(trial, node, *rest)
        self._far = trial
        self._hosts = hosts
        self._over: list[tuple[float, str, Callable[[], object]]] = []
        self._always = Roughness()

    def begin(self) -> str:
        """How the line is between faults."""
        rng = self._rng
        if self._hosts.line and rng.random() < ROUGH_TRIALS:
            self._always = Roughness(
                lost=rng.uniform(0.005, 0.05), bursts=0.001, burst_max=0.2,
                twice=0.02, late=0.1, late_max=0.01, delay=rng.choice([0.0, 0.005]),
            )  # fmt: skip
        self._go_back()
        return str(self._always)

    def _go_back(self) -> None:
        """To what the line is between faults."""
        if self._always == Roughness():
            self._hosts.smooth()
        else:
            self._hosts.rough(self._always, self._rng.randrange(1 << 32))

    def go_on_with_processes(self, now: float) -> None:
        """Those who were stopped, the node among them: faults of the network stay as they are."""
        super().go_on(now)

    def go_on(self, now: float) -> None:
        super().go_on(now)
        for entry in [entry for entry in self._over if entry[0] <= now]:
            self._over.remove(entry)
            entry[2]()
            self._far.healed(entry[1], wait=now != float("inf") and not self._over)

    def next_at(self, latest: float) -> float:
        return min([super().next_at(latest), *(entry[0] for entry in self._over)])

    def heal(self) -> None:
        super().heal()
        self._hosts.heal()
        self._far.healed("everything", wait=True, always=True)

    def _for_a_while(self, kind: str, undo: Callable[[], object], longest: float = 2.5) -> str:
        bound = self._rng.uniform(0.1, longest)
        self._over.append((time.monotonic() + bound, kind, undo))
        return f"for {bound:.3f} s"

    # --- the network ---
    def _cut_requests(self) -> str:
        self._hosts.silence(CLIENT)
        return self._for_a_while("cut requests", lambda: self._hosts.restore(CLIENT))

    def _cut_answers(self) -> str:
        self._hosts.silence(NODE)
        return self._for_a_while("cut answers", lambda: self._hosts.restore(NODE))

    def _unplug(self) -> str:
        self._hosts.unplug()
        return self._for_a_while("unplug", self._hosts.plug)

    def _unplug_and_kill_a_client(self) -> str:
        """The gateway keeps half a connection: nobody tells it of the end."""
        return f"{self._unplug()}, {self._kill_producer()}, {self._kill_consumer()}"

    def _slow(self) -> str:
        if not self._hosts.slow():
            return "not in this kernel"
        return self._for_a_while("slow", self._hosts.fast)

    def _rough(self, kind: str, roughness: Roughness) -> str:
        self._hosts.rough(roughness, self._rng.randrange(1 << 32))
        return f"{self._for_a_while(kind, self._go_back)}: {roughness}"

    def _lose_packets(self) -> str:
        share = self._rng.choice([0.01, 0.05, 0.15, 0.3])
        return self._rough("lose packets", Roughness(lost=share))

    def _lose_bursts(self) -> str:
        bursts, longest = self._rng.uniform(0.002, 0.02), self._rng.uniform(0.05, 0.5)
        return self._rough("lose bursts", Roughness(bursts=bursts, burst_max=longest))

    def _double_packets(self) -> str:
        share = self._rng.uniform(0.05, 0.5)
        return self._rough("double packets", Roughness(twice=share, late=0.5, late_max=0.02))

    def _reorder_packets(self) -> str:
        share, latest = self._rng.uniform(0.05, 0.5), self._rng.uniform(0.005, 0.1)
        return self._rough("reorder packets", Roughness(late=share, late_max=latest))

    def _rough_line(self) -> str:
        """All of it, from afar."""
        everything = Roughness(
            lost=0.03, bursts=0.002, burst_max=0.2, twice=0.05, late=0.2, late_max=0.03, delay=0.02
        )
        return self._rough("rough line", everything)

    def _kill_gateway_in_a_cut(self) -> str:
        """Clients keep half a connection to a process that is dead."""
        return f"{self._cut_answers()}, {self._kill_gateway()}"


class FarTrial(Trial):
    """See the module."""

    _WEIGHTS: ClassVar[dict[str, float]] = {
        "cut requests": 12,
        "cut answers": 12,
        "unplug": 10,
        "unplug and kill a client": 6,
        "slow": 8,
        "kill gateway": 14,
        "stop gateway": 6,
        "kill gateway in a cut": 6,
        "kill node": 6,
        "kill writer": 6,
        "kill producer": 6,
        "kill consumer": 8,
        "stop consumer": 5,
        "join": 3,
        "leave": 3,
    }
    _ROUGH_WEIGHTS: ClassVar[dict[str, float]] = {
        "lose packets": 9,
        "lose bursts": 7,
        "double packets": 5,
        "reorder packets": 7,
        "rough line": 8,
    }

    patience: ClassVar[float] = 3.0

    def __init__(
        self,
        hosts: Hosts,
        node: NodeUnderTest,
        nursery: Nursery,
        scene: Scene,
        seed: int,
        prefix: str,
    ) -> None:
        self._hosts = hosts
        self.recoveries: dict[str, list[float]] = {}
        super().__init__(node, nursery, scene, seed, prefix)

    def weights(self) -> dict[str, float]:
        return self._WEIGHTS | (self._ROUGH_WEIGHTS if self._hosts.line else {})

    def _begin(self) -> None:
        assert isinstance(self._faults, Trouble)
        self._note(f"the line: {self._faults.begin()}")
        super()._begin()

    def _make_faults(self, args: tuple[Any, ...]) -> Upheaval:
        return Trouble(self, self._hosts, *args)

    def healed(self, kind: str, *, wait: bool, always: bool = False) -> None:
        """A fault is over: sometimes recovery is waited for."""
        since = time.monotonic_ns()
        self._note(f"over: {kind}")
        if not wait or (not always and self._rng.random() > WAITED_FOR):
            return
        wait_until(
            lambda: self._are_answered(since),
            HEAL_TIMEOUT,
            lambda: (
                "producers get answers again"
                + "".join(f"\n{hand.who}: {hand.stacks()}" for hand in self._producers())
            ),
        )
        took = (time.monotonic_ns() - since) / 1e9
        self.recoveries.setdefault(kind, []).append(took)
        self._note(f"recovered from {kind} in {took:.3f} s")

    def _producers(self) -> list[Hand]:
        return [hand for hand in self.roster.producers if hand.plan["role"] == "produce"]

    def _are_answered(self, since: int) -> bool:
        assert isinstance(self._faults, Trouble)
        self._faults.go_on_with_processes(time.monotonic())
        return all(self._answered_at(hand) > since for hand in self._producers())

    @staticmethod
    def _answered_at(hand: Hand) -> int:
        """When it was last told that something is appended; 0: never."""
        with hand.path.open("rb") as file:
            file.seek(max(0, hand.path.stat().st_size - (64 << 10)))
            lines = file.read().split(b"\n")
        for line in reversed(lines):
            if line.startswith(b'{"e": "acks"') and line.endswith(b"}"):
                return int(msgspec.json.decode(line)["t"])
        return 0
