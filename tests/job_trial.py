"""Workers that make outputs of jobs in transactions, killed at random with what is around them:
each job has one output in the end, for readers of committed records.

Owns the workers and the judgement; what else is struck its user says.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from crash.job_processes import outcomes
from crash.process_pool import Hand, Nursery

from penstock.client.admin.share_groups import ShareGroupDescription
from penstock.core import errors as er
from penstock.testing import wait_until

JOBS_A_ROUND = 10
WITHIN = 60.0


class JobTrial:
    """On a ground that is there. `prefix` makes its names its own. `patience`: seconds for which a
    worker is let alone until it has told as much as is wanted."""

    def __init__(
        self, ground: Any, nursery: Nursery, seed: int, prefix: str, *, slots: int = 3,
        session_timeout: float = 0.3, others_every: int = 25, patience: float = 0.3,
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.ground = ground
        self._nursery = nursery
        self._prefix = prefix
        self._session_timeout = session_timeout
        self._others_every = others_every
        self._patience = patience
        self._rounds = 0
        self.jobs, self.outputs = f"{prefix}.jobs", f"{prefix}.outputs"
        self.group = f"{prefix}.makers"
        self._client = ground.connect()
        for topic in (self.jobs, self.outputs):
            self._client.admin().create_topic(topic, 2)
        self._producer = self._client.producer(acks="all", timeout=WITHIN, delivery_timeout=WITHIN)
        self._made = 0
        self._born = 0
        self._stopped: list[tuple[float, Hand]] = []
        self.hands: list[Hand] = []
        self.slots: list[Hand] = [self._bear(slot) for slot in range(slots)]
        self.struck: Counter[str] = Counter()

    def _bear(self, slot: int, alias: str = "") -> Hand:
        """`alias`: it leaves the transactional id of the slot to who was there before."""
        self._born += 1
        path = self.ground.folder / f"{self._prefix}-{self._born}"
        hand = self._nursery.bear(
            {
                "role": "make", "who": f"{self._prefix}-{self._born}", "url": self.ground.url,
                "connect": {"transport": "tcp"} if self.ground.transport == "tcp" else {},
                "seed": self.rng.randrange(1 << 32), "writer": 0, "events": f"{path}.events",
                "errors": f"{path}.errors", "maker": f"{self._prefix}-maker-{slot}{alias}",
                "jobs": self.jobs, "outputs": self.outputs, "group": self.group,
                "session_timeout": self._session_timeout,
            }
        )  # fmt: skip
        self.hands.append(hand)
        return hand

    def _feed(self, count: int) -> None:
        values = [b"%d" % number for number in range(self._made, self._made + count)]
        self._producer.send_batch(self.jobs, values, keys=values)
        self._made += count

    def round(self, others: Sequence[tuple[str, Callable[[], object]]] = ()) -> None:
        """One victim: a worker, or in each `_others_every`th round one of the `others`, in turn."""
        self._rounds += 1
        self._feed(self.rng.randrange(2 * JOBS_A_ROUND))
        slot = self.rng.randrange(len(self.slots))
        hand = self.slots[slot]
        wanted = self.rng.choice([0, 1, 2, 3, 5])
        until = time.monotonic() + self._patience
        while len(hand.lines()) < wanted and hand.is_running() and time.monotonic() < until:
            time.sleep(0.001)  # it may have no job, which is as good a moment as any
        time.sleep(self.rng.random() * 0.01)  # anywhere within the next transaction
        turn, rest = divmod(self._rounds, self._others_every)
        if others and not rest:
            name, strike = others[turn % len(others) - 1]
            self.struck[name] += 1
            strike()
            return
        if self.rng.random() < 0.1:
            self.struck["stop"] += 1
            hand.signal(signal.SIGSTOP)
            self._stopped.append((time.monotonic() + self.rng.random() * 1.5, hand))
            alias = self.rng.choice(["", f"-{self._born}"])  # fenced, or with jobs of others
        else:
            self.struck["kill"] += hand.is_running()
            hand.kill()
            alias = ""
        self.slots[slot] = self._bear(slot, alias)
        self._go_on(time.monotonic())

    def _go_on(self, now: float) -> None:
        for entry in [entry for entry in self._stopped if entry[0] <= now]:
            self._stopped.remove(entry)
            entry[1].signal(signal.SIGCONT)

    # --- the judgement ---
    def end(self) -> Counter[str]:
        """Let everything be worked off, and judge. What workers told of their transactions."""
        self._go_on(float("inf"))
        self._producer.flush(WITHIN)
        while left := self._left():
            wait_until(partial(self._has_moved, left), WITHIN, self._where_it_stands)
        for hand in self.hands:
            if hand.is_running():
                hand.signal(signal.SIGTERM)
        for hand in self.hands:
            assert hand.wait(WITHIN), f"{hand.who} does not end\n{hand.stacks()}"
        wait_until(self._nothing_open, WITHIN, lambda: f"{self._transactions()}")
        wanted = Counter(self._read(self.jobs))
        assert len(wanted) == wanted.total() == self._made
        found = Counter(self._read(self.outputs))
        wrong = {value: found[value] for value in wanted | found if found[value] != 1}
        assert not wrong, f"outputs of jobs that have not exactly one: {wrong}"
        told: Counter[str] = Counter()
        for hand in self.hands:
            told += outcomes(hand.lines())
            assert hand.killed or hand.last_words(), f"{hand.who}: {hand.errors()}"
        return told

    def _described(self) -> ShareGroupDescription:
        found: ShareGroupDescription = self._client.admin().describe_share_group(self.group)
        return found

    def _left(self) -> int:
        """Jobs that are not done; -1: nobody says so."""
        self._keep_slots()
        try:
            return self._made - sum(it.floor for it in self._described().partitions)
        except er.PenstockError as error:
            if not error.retriable:
                raise
            return -1

    def _has_moved(self, left: int) -> bool:
        return self._left() != left

    def _where_it_stands(self) -> str:
        running = [hand for hand in self.hands if hand.is_running()]
        stacks = "\n".join(f"{hand.who} {hand.lines()[-3:]}\n{hand.stacks()}" for hand in running)
        return f"{self._described()}\n{stacks}"

    def _keep_slots(self) -> None:
        """Workers that ended by their own hand have successors."""
        for slot, hand in enumerate(self.slots):
            if not hand.is_running():
                self.slots[slot] = self._bear(slot)

    def _transactions(self) -> Any:
        found = self._client.admin().list_transactions()
        return [it for it in found if it.transactional_id.startswith(f"{self._prefix}-")]

    def _nothing_open(self) -> bool:
        return all(each.state == "ready" for each in self._transactions())

    def _read(self, topic: str) -> list[bytes]:
        with self._client.consumer(topic, isolation="read_committed", follow=False) as reader:
            return [record.value or b"" for record in reader]

    def close(self) -> None:
        self._go_on(float("inf"))
        for hand in self.hands:
            if hand.is_running():
                hand.kill()
        self._client.close()
