"""Who plays in a trial: writers, readers, members and jobs, each replaced when it dies.

Owns the processes of one trial and what their plans have in common. It speaks as `faults` wants
its crew to, so the crash machine's faults strike these as well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash.history_processes import isolated
from crash.process_pool import Hand, Nursery
from histories.events import SHARED

MEMBERS_MAX = 4


@dataclass(frozen=True, slots=True)
class Scene:
    """What a trial is about. Guarantees of groups; "" stands for readers without one."""

    guarantees: tuple[str, ...] = ()
    transactors: int = 0
    readers: tuple[str, ...] = ("read_uncommitted",)
    kinds: tuple[str, ...] = ()
    """Faults that strike; none given: all of them."""
    pauses: float = 1.0
    """How much longer than usual the pauses between faults are."""
    url: str = ""
    """Where they connect, if not as the trial does, and how (`connect`)."""
    connect: dict[str, Any] = field(default_factory=dict)
    producing: dict[str, Any] = field(default_factory=dict)
    """Options that all producers outside of transactions have, whatever the dice say."""
    orders: tuple[str | None, ...] = (None,)
    """Of its share group: one of these."""


class Roster:
    """See the module."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        url: str,
        prefix: str,
        scene: Scene,
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self._nursery = nursery
        self._folder = folder
        self._url = scene.url or url
        self._is_remote = self._url.startswith("tcp:")
        self._prefix = prefix
        self._scene = scene
        self._rng = rng
        self._note = note
        self._count = 0
        self.inputs = [f"{prefix}-in", f"{prefix}-also"]
        self.outputs = [f"{prefix}-out"]
        self.dead_letters = [f"{prefix}-dead"] if SHARED in scene.guarantees else []
        """Topics of share groups: what cannot be done goes there."""
        self.max_deliveries = rng.choice([None, 3, 5]) if self.dead_letters else None
        self._order = rng.choice(scene.orders) if self.dead_letters else None
        self.producers: list[Hand] = []
        self.readers: list[Hand] = []
        self.members: dict[str, list[Hand]] = {}
        self.isolation: dict[str, str] = {}
        """Of each group; its members have the same."""
        self.all: list[Hand] = []

    # --- who comes ---
    def start(self) -> None:
        rng = self._rng
        for number in range(rng.randint(1, 2)):
            acks = rng.choice([0, 1, 1, "all"])
            options = {
                "linger": rng.choice([0.0, 0.002, 0.01]),
                "acks": acks,
                "idempotent": rng.random() < 0.7,
                "batch_bytes": rng.choice([1 << 10, 64 << 10]),
                **self._scene.producing,
            }
            plan = {
                "role": "produce", "name": f"p{number}", "topics": self.inputs,
                "options": options, "burst": rng.choice([1, 5, 40]),
                "window": rng.choice([0, 20, 400]), "pause": rng.choice([0.005, 0.03]),
            }  # fmt: skip
            self.producers.append(self._hire(plan))
        for number in range(self._scene.transactors):
            plan = {
                "role": "transact", "name": f"t{number}", "topics": self.inputs,
                "options": self._transactional(), "burst": rng.choice([1, 5]),
                "transactional_id": f"{self._prefix}-t{number}",
                "suicide": 0.02, "pause": rng.choice([0.005, 0.03]),
            }  # fmt: skip
            self.producers.append(self._hire(plan))
        for number, isolation in enumerate(self._scene.readers):
            self.readers.append(self._hire(self._reader(f"r{number}", isolation)))
        for guarantee in self._scene.guarantees:
            always = guarantee in ("exactly-once", SHARED) or (
                self._scene.transactors and rng.random() < 0.5
            )
            self.isolation[guarantee] = "read_committed" if always else "read_uncommitted"
            self.members[guarantee] = [
                self._hire(self._member(guarantee)) for _ in range(rng.randint(1, 3))
            ]

    def _reader(self, name: str, isolation: str) -> dict[str, Any]:
        return {
            "role": "read", "name": name, "topics": self.inputs, "isolation": isolation,
            "options": isolated(isolation),
        }  # fmt: skip

    def group(self, guarantee: str) -> str:
        return f"{self._prefix}-{guarantee}"

    def topics_of(self, guarantee: str) -> list[str]:
        return self.inputs[:1] if guarantee == "exactly-once" else self.inputs

    def _member(self, guarantee: str) -> dict[str, Any]:
        rng = self._rng
        if guarantee == SHARED:
            return self._worker()
        once = guarantee == "exactly-once"
        slot = f"{guarantee}-{self._count}"
        plan: dict[str, Any] = {
            "role": "job" if once else "member",
            "name": slot,
            "group": self.group(guarantee),
            "guarantee": guarantee,
            "topics": self.topics_of(guarantee),
            "isolation": self.isolation[guarantee],
            "suicide": rng.choice([0.0, 0.01, 0.05]),
            "pause": rng.choice([0.0, 0.005, 0.02]),
            # Of a remote member that was killed nobody hears before its session is over.
            "options": {"session_timeout": rng.choice([0.5, 5.0 if self._is_remote else 30.0])},
        }
        if rng.random() < 0.3:
            plan["options"]["instance_id"] = slot
        if guarantee == "at-least-once":
            plan["options"]["commit_interval"] = rng.choice([0.005, 0.05, 1.0])
        if once:
            plan["outputs"] = self.outputs
            plan["transactional_id"] = f"{self._prefix}-{slot}"
            # The member's own `options` are its consumer's; its producer has these.
            plan["producer_options"] = self._transactional()
        return plan

    def _worker(self) -> dict[str, Any]:
        rng = self._rng
        return {
            "role": "work",
            "name": f"{SHARED}-{self._count}",
            "group": self.group(SHARED),
            "guarantee": SHARED,
            "topics": self.inputs,
            "isolation": "read_committed",
            "suicide": rng.choice([0.0, 0.003, 0.01]),
            "pause": rng.choice([0.0, 0.005, 0.02]),
            "options": {
                "max_deliveries": self.max_deliveries,
                "backoff": (0.01, 0.1),
                "dead_letters": self.dead_letters[0],
                "order": self._order,
                "max_records": rng.choice([5, 20, 60]),
                "ack_interval": rng.choice([0.0, 0.005, 0.05]),
                "session_timeout": rng.choice([0.3, 1.5]),
            },
        }

    def finish_jobs(self) -> None:
        """A busy machine leaves many: one more worker does nothing else, and who replaces another
        one no longer kills itself."""
        for hand in self.members[SHARED]:
            hand.plan["suicide"] = 0.0
        plan = {**self._worker(), "finishes": True}
        plan["options"]["max_records"] = 500
        self.members[SHARED].append(self._hire(plan))

    def _transactional(self) -> dict[str, Any]:
        """What a dead one left open ends well before a trial gives up on it."""
        rng = self._rng
        return {
            "linger": rng.choice([0.0, 0.002]),
            "transaction_timeout": rng.choice([0.5, 2.0]),
            "transaction_durability": rng.choice(["appended", "appended", "fsynced"]),
        }

    def _hire(self, plan: dict[str, Any]) -> Hand:
        self._count += 1
        who = f"{self._prefix}{plan['name']}.{self._count}"
        hand = self._nursery.bear(
            {
                **plan,
                "who": who,
                "writer": self._count,
                "url": self._url,
                "connect": self._scene.connect,
                "seed": self._rng.random(),
                "events": str(self._folder / f"{who}.jsonl"),
                "errors": str(self._folder / f"{who}.err"),
            }
        )
        self.all.append(hand)
        return hand

    # --- who goes, as `faults` asks for it ---
    @property
    def consumers(self) -> list[Hand]:
        """Everybody who reads, with or without a group."""
        return [*self.readers, *(hand for each in self.members.values() for hand in each)]

    def kill_a_producer(self) -> str:
        return self._replace(self.producers, self._rng.randrange(len(self.producers)))

    def kill_a_consumer(self) -> str:
        troop = self._rng.choice([each for each in (self.readers, *self.members.values()) if each])
        return self._replace(troop, self._rng.randrange(len(troop)))

    def _replace(self, troop: list[Hand], index: int) -> str:
        """kill -9, and another one of the same plan in its place."""
        old = troop[index]
        old.kill()
        troop[index] = self._hire(old.plan)
        return old.who

    def join(self) -> str:
        """One more member, or for a transactor another one that takes its id from it."""
        rng = self._rng
        transactors = [i for i, hand in enumerate(self.producers) if self._transacts(hand)]
        if transactors and (not self.members or rng.random() < 0.2):
            index = rng.choice(transactors)
            old = self.producers[index]
            self.producers[index] = self._hire(old.plan)
            old.ask_to_end()
            return f"{self.producers[index].who} takes over from {old.who}"
        troops = [(g, each) for g, each in self.members.items() if len(each) < MEMBERS_MAX]
        if not troops:
            return "nobody"
        guarantee, troop = rng.choice(troops)
        troop.append(self._hire(self._member(guarantee)))
        return troop[-1].who

    @staticmethod
    def _transacts(hand: Hand) -> bool:
        return bool(hand.plan["role"] == "transact")

    def leave(self) -> str:
        """A member ends in good order."""
        troops = [each for each in self.members.values() if len(each) > 1]
        if not troops:
            return "nobody"
        troop = self._rng.choice(troops)
        hand = troop.pop(self._rng.randrange(len(troop)))
        hand.ask_to_end()
        return hand.who

    # --- what they say ---
    def check(self) -> None:
        """Who killed itself is replaced; nobody else may leave, or fail, on its own account."""
        for troop in (self.producers, self.readers, *self.members.values()):
            for index, hand in enumerate(troop):
                words = "" if hand.is_running() else hand.last_words()
                if hand.is_running() or (hand.asked and words):
                    continue
                if words != "dying":
                    raise AssertionError(f"{hand.who} left on its own:\n{hand.errors()}")
                self._note(f"{hand.who} killed itself")
                hand.killed = True
                troop[index] = self._hire(hand.plan)

    def acknowledged(self) -> int:
        """Grows while writers get on."""
        return sum(hand.path.stat().st_size for hand in self.producers)

    # --- the end ---
    def end(self, hands: list[Hand], timeout: float) -> None:
        """They are asked to end, and each does: in time and in good order, or by its own hand."""
        for hand in hands:
            hand.ask_to_end()
        deadline = time.monotonic() + timeout
        for hand in hands:
            if not hand.wait(max(0.1, deadline - time.monotonic())):
                raise AssertionError(
                    f"{hand.who} is not done {timeout} s after the last fault; it stands at\n"
                    f"{hand.stacks()}"
                )
            if not hand.last_words():
                raise AssertionError(f"{hand.who} failed:\n{hand.errors()}")

    def leavers(self) -> list[Hand]:
        """Who was asked to end on the way, and may still be at it."""
        current = {id(hand) for hand in (*self.producers, *self.consumers)}
        return [hand for hand in self.all if id(hand) not in current and not hand.killed]

    def histories(self) -> dict[str, list[bytes]]:
        return {hand.who: hand.lines() for hand in self.all}

    def forget(self) -> None:
        """Remove what they wrote: it did what it had to."""
        for hand in self.all:
            hand.path.unlink(missing_ok=True)
            Path(hand.plan["errors"]).unlink(missing_ok=True)
