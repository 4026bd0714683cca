"""One episode of the crash machine: traffic and faults, then peace, then the judgement."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crash.client_processes import Crew
from crash.fault_injection import END_THE_NODE, WEIGHTS, WRITERS, Faults
from crash.ledgers import ConsumerLedger, StoredLog, checksum, judge
from crash.log_files import read_log
from crash.node_under_test import NodeUnderTest, descriptors

from penstock.client.admin.admin import Admin, PartitionDescription, TopicConfig
from penstock.client.client import Client
from penstock.testing import wait_until

HEAL_TIMEOUT: Final = 30.0
"""Seconds in which whoever lives must be done once the faults are over."""
ROUNDS_MAX: Final = 80
PATIENCE: Final = 1.0
"""Seconds that a fault may wait for traffic to come back from the one before."""


@dataclass(slots=True)
class Figures:
    """What a run amounted to."""

    episodes: int = 0
    rounds: int = 0
    moving: int = 0
    """Rounds in which something was acknowledged before the next fault."""
    faults: Counter[str] = field(default_factory=Counter)
    records: int = 0
    acknowledged: int = 0
    consumed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.rounds} rounds ({self.moving} with acknowledgements before the next fault) in "
            f"{self.episodes} episodes and {self.seconds:.0f} s: {kinds}; {self.records} records "
            f"in logs, {self.acknowledged} acknowledgements and {self.consumed} reads checked"
        )


def some_topics(prefix: str, rng: random.Random) -> dict[str, TopicConfig]:
    """One to three topics, each of another durability."""
    return {
        f"{prefix}-{name}": TopicConfig(
            partitions=rng.randint(1, 3),
            segment_bytes=rng.choice([8 << 10, 64 << 10, 1 << 20, None]),
            durability=name,  # type: ignore[arg-type]
            flush_interval=0.05 if name == "interval" else None,
        )
        for name in rng.sample(["os", "fsync", "interval"], rng.randint(1, 3))
    }


def lagging(admin: Admin, topics: Iterable[str]) -> list[PartitionDescription]:
    """Partitions that sync by themselves and have not brought all to the device yet."""
    described = [admin.describe_topic(name) for name in topics]
    return [
        part
        for each in described
        for part in each.partitions
        if each.settings["durability"] != "os" and part.durable < part.log_end
    ]


class Episode:
    """See the module. `run`, or `begin` and `finish` around faults of one's own; then `close`."""

    def __init__(
        self,
        node: NodeUnderTest,
        seed: int,
        number: int,
        figures: Figures,
        topics: Mapping[str, TopicConfig] | None = None,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self._node = node
        self._rng = rng = random.Random(seed)
        self._figures = figures
        self._begun = time.monotonic()
        self._trace: list[str] = []
        prefix = f"e{number}"
        self._topics = topics or some_topics(prefix, rng)
        self._warm_up = f"{prefix}-warm-up"
        self._rounds = min(rng.randint(30, ROUNDS_MAX), rounds_max)
        spared = END_THE_NODE if rng.random() < 1 / 3 else ()
        self._kinds = [kind for kind in WEIGHTS if kind not in spared]
        self._crew = Crew(node, prefix, self._topics, rng, self._note)
        self._faults = Faults(node, self._crew, list(self._topics), rng, self._note)

    def _note(self, event: str) -> None:
        self._trace.append(f"{time.monotonic() - self._begun:8.3f}  {event}")

    def trace_text(self) -> str:
        return "\n".join(self._trace)

    # --- the run ---
    def run(self) -> None:
        self.begin()
        for _ in range(self._rounds):
            self._round()
        self.finish()

    def begin(self) -> None:
        """Topics, producers, consumers."""
        self._note(f"node {self._node.config}")
        with self._node.connect() as client:
            admin = client.admin()
            for name, config in self._topics.items():
                admin.create_topic(name, config)
            self._note(f"topics {self._topics}")
            # So that each writer runs, and what the node has open does not grow by their start.
            admin.create_topic(self._warm_up, TopicConfig(partitions=WRITERS))
            admin.delete_topic(self._warm_up)
        self._quiet_at = self._node.pid, self._held()
        self._crew.start()

    def _round(self) -> None:
        """Let time pass, in half of the rounds until something was acknowledged; then a fault."""
        rng, figures = self._rng, self._figures
        pause = rng.uniform(0.01, 0.1) if rng.random() < 0.25 else rng.uniform(0.1, 0.3)
        patience = time.monotonic() + (PATIENCE if rng.random() < 0.5 else 0.0)
        acked = self._crew.acknowledged()
        while time.monotonic() < patience and self._crew.acknowledged() == acked:
            self._faults.go_on(time.monotonic())
            time.sleep(0.005)
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            due = self._faults.next_at(deadline) - time.monotonic()
            time.sleep(max(0.0, min(left, due)))
            self._faults.go_on(time.monotonic())
        figures.moving += self._crew.acknowledged() > acked
        self.check_crew()
        kind = rng.choices(self._kinds, [WEIGHTS[kind] for kind in self._kinds])[0]
        self._note(f"{kind} {self._faults.strike(kind)}")
        figures.faults[kind] += 1
        figures.rounds += 1

    def check_crew(self) -> None:
        """Nobody may leave, or fail, on its own account."""
        self._crew.check()
        if not self._node.is_running:
            raise AssertionError("the node left on its own")

    def finish(self) -> None:
        """Heal, let everybody come to the end, judge, and see that nothing leaked."""
        self._faults.heal()
        self._note("healed")
        self.check_crew()
        for actor in self._crew.producers:
            actor.ask_to_end()
        self._crew.await_end(self._crew.producers, HEAL_TIMEOUT)
        with self._node.connect() as client:
            self._settle(client)
            folders = self._judge(client)
        pid, before = self._quiet_at
        if self._node.pid == pid:
            wait_until(
                lambda: self._held() <= before,
                5.0,
                lambda: f"descriptors of the node leak: {before} -> {self._held()}",
            )
        self._delete_topics(folders)
        text = self._node.log_path.read_text("utf-8", "replace")
        assert "Traceback" not in text, text[max(0, text.find("Traceback") - 1000) :][:5000]

    def _held(self) -> Counter[str]:
        """What the node has open, by kind: numbers in names differ from client to client."""
        return Counter(name.split(":")[0] for name in descriptors(self._node.pid))

    def _settle(self, client: Client) -> None:
        """What dead producers left in their lanes is drained; consumers reach the end (10)."""
        wait_until(
            lambda: not [name for name in self._node.shared_memory() if "-lane-" in name],
            HEAL_TIMEOUT,
            lambda: f"lanes are not drained: {self._node.shared_memory()}",
        )
        with client.consumer(*self._topics) as consumer:
            ends = [[*name, end] for name, end in consumer.end_offsets().items()]
        self._note(f"ends {ends}")
        for actor in self._crew.consumers:
            actor.ask_to_end(until=ends)
        self._crew.await_end(self._crew.consumers, HEAL_TIMEOUT)

    # --- the judgement ---
    def _judge(self, client: Client) -> list[Path]:
        """Everything that was written down against the files; the partitions' folders."""
        folders, logs = [], []
        admin = client.admin()
        wait_until(
            lambda: not lagging(admin, self._topics),
            5.0,
            lambda: f"{lagging(admin, self._topics)} reach the device",
        )
        for name in self._topics:
            described = admin.describe_topic(name)
            for part in described.partitions:
                folder = self._node.data / f"{described.topic_id}-{part.partition}"
                log = read_log(folder, name, part.partition)
                end = len(log.records)
                if not part.durable <= part.log_end == part.high_watermark == end:
                    raise AssertionError(f"{name}: {part} but {end} records are in its files")
                folders.append(folder)
                logs.append(log)
        late = self._read_again(client, logs)
        verdict = judge(logs, self._crew.producer_ledgers(), [*self._crew.consumer_ledgers(), late])
        if verdict.problems:
            raise AssertionError(str(verdict))
        self._figures.records += verdict.records
        self._figures.acknowledged += verdict.acknowledged
        self._figures.consumed += verdict.consumed
        self._note(f"{verdict.records} records as they must be")
        return folders

    def _read_again(self, client: Client, logs: list[StoredLog]) -> ConsumerLedger:
        """A late reader, through the client, from the beginning."""
        ledger = ConsumerLedger("late reader", {log.name: 0 for log in logs})
        with client.consumer(*self._topics, follow=False) as consumer:
            for batch in consumer.batches():
                for chunk in batch.chunks:
                    total = 0
                    for key, value in zip(chunk.keys, chunk.values, strict=True):
                        total = checksum(key, value, total)
                    first = int(chunk.offsets[0])
                    ledger.saw.append(
                        (chunk.topic, chunk.partition, first, first + len(chunk), total)
                    )
        ledger.finished = True
        return ledger

    def _delete_topics(self, folders: list[Path]) -> None:
        with self._node.connect() as client:
            admin = client.admin()
            for name in {*self._topics, *self._faults.passing} & set(admin.list_topics()):
                admin.delete_topic(name)
        left = [folder for folder in folders if folder.exists()]
        assert not left, f"deleted topics leave {left}"
        for actor in self._crew.all:
            actor.forget()

    def close(self) -> None:
        """Nobody of this episode lives on, whatever became of it."""
        self._faults.close()
        self._crew.close()
