"""The crash machine: a node, its clients, and faults at random moments; then everything is checked.

    episode   topics, producers, consumers -> rounds of faults while traffic flows -> heal -> judge
    round     one fault (a kill -9, a SIGSTOP until some later moment, a restart) and a pause

Everything random is drawn from one seed. The moments are the machine's own, so a seed brings back
the plan of an episode and not each interleaving; the trace says what happened when.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash.cargo import Cargo
from crash.crew import Actor
from crash.ground import READY_TIMEOUT, NodeUnderTest, descriptors, wait_until
from crash.ledger import ConsumerLedger, ProducerLedger, StoredLog, checksum, judge
from crash.reading import read_log

from penstock.admin import TopicConfig
from penstock.client import Client
from penstock.logcheck import check_partition, find_partitions

WRITERS = 2
HEAL_TIMEOUT = 30.0
"""Seconds in which whoever lives must be done once the faults are over."""
PATIENCE = 1.0
"""Seconds that a fault may wait for traffic to come back from the one before."""
EPISODES_PER_NODE = 3
"""After so many the node is stopped cleanly, looked at for leaks, and started on its old folder."""

FAULTS: dict[str, float] = {
    "kill writer": 44,
    "stop writer": 11,
    "kill all writers": 4,
    "kill producer": 11,
    "stop producer": 5,
    "kill consumer": 6,
    "stop consumer": 3,
    "kill writer and producer": 4,
    "kill node": 5,
    "kill node and writers": 2,
    "stop node": 3,
    "restart node": 1.7,
    "stall writer": 0.3,
}
OF_THE_NODE = ("kill node", "kill node and writers", "restart node")


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


class Broken(AssertionError):
    """An episode in which a promise was not kept."""


class Machine:
    """Runs episodes on one data folder. `close` removes it, unless an episode failed."""

    def __init__(self, seed: int, figures: Figures) -> None:
        self.seed = seed
        self.figures = figures
        self.failed = False
        rng = random.Random(seed)
        self.node = NodeUnderTest(
            writers_max=WRITERS,
            lane_capacity=rng.choice([64 << 10, 256 << 10, 4 << 20]),
            restart_backoff=0.001,
            restart_backoff_max=0.02,
            writer_stall_timeout=1.0,
        )
        self._count = 0

    def run_episode(self) -> None:
        """One episode, on a node that is running or started for it."""
        seed = self.seed + self._count
        episode = Episode(self.node, seed, self._count, self.figures)
        try:
            if not self.node.is_running:
                self.node.start()
            episode.run()
            self._count += 1
            if self._count % EPISODES_PER_NODE == 0:
                self._end_node()
        except Exception as error:
            self.failed = True
            kept = self._keep()
            raise Broken(
                f"{error}\n--- seed {seed} (PENSTOCK_CRASH_SEED={seed}), data kept in {kept}\n"
                f"--- trace\n{episode.trace_text()}\n--- node\n{self.node.tail()}"
            ) from error
        finally:
            episode.close()
        self.figures.episodes += 1

    def _end_node(self) -> None:
        status = self.node.stop()
        assert status == 0, f"the node ended with {status}"
        self.node.check_gone()
        for partition in find_partitions(str(self.node.data)):
            checked = check_partition(partition)
            assert not checked.errors, checked.errors

    def _keep(self) -> Path:
        """The shared memory goes with the processes: a copy of it stays beside the data."""
        folder = self.node.folder / "shm"
        folder.mkdir(exist_ok=True)
        for name in self.node.shared_memory():
            with contextlib.suppress(OSError):
                shutil.copy("/dev/shm" + name, folder)
        return self.node.folder

    def close(self) -> None:
        if self.node.is_running and not self.failed:
            self._end_node()
        self.node.clear(keep=self.failed)


class Episode:
    """See the module."""

    def __init__(
        self,
        node: NodeUnderTest,
        seed: int,
        number: int,
        figures: Figures,
        topics: Mapping[str, TopicConfig] | None = None,
    ) -> None:
        self._node = node
        self._rng = rng = random.Random(seed)
        self._figures = figures
        self._prefix = f"e{number}"
        self._begun = time.monotonic()
        self._trace: list[str] = []
        self._topics = topics or {
            f"{self._prefix}-{name}": TopicConfig(
                partitions=rng.randint(1, 3),
                segment_bytes=rng.choice([8 << 10, 64 << 10, 1 << 20, None]),
                durability=name,  # type: ignore[arg-type]
                flush_interval=0.05 if name == "interval" else None,
            )
            for name in rng.sample(["os", "fsync", "interval"], rng.randint(1, 3))
        }
        self._rounds = rng.randint(25, 60)
        self._node_lives = rng.random() < 1 / 3
        self._producers: list[Actor] = []
        self._consumers: list[Actor] = []
        self._all: list[Actor] = []
        self._stopped: list[tuple[float, Callable[[], None]]] = []
        self._ready: tuple[int, float] | None = None

    # --- the trace ---
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
        with self._node.connect() as client:
            admin = client.admin()
            for name, config in self._topics.items():
                admin.create_topic(name, config)
            self._note(f"topics {self._topics}")
        self._quiet_at = self._node.pid, self._quiet_descriptors()
        self._start_crew()

    def finish(self) -> None:
        """Heal, let everybody come to the end, judge, and see that nothing leaked."""
        self._heal()
        with self._node.connect() as client:
            self._settle(client)
            folders = self._judge(client)
        pid, before = self._quiet_at
        if self._node.pid == pid:
            wait_until(
                lambda: self._quiet_descriptors() <= before,
                5.0,
                lambda: f"descriptors of the node leak: {before} -> {self._quiet_descriptors()}",
            )
        self._delete_topics(folders)
        text = self._node.log_path.read_text("utf-8", "replace")
        assert "Traceback" not in text, text[max(0, text.find("Traceback") - 1000) :][:5000]

    def _quiet_descriptors(self) -> Counter[str]:
        """What the node has open, by kind: numbers in names differ from client to client."""
        return Counter(name.split(":")[0] for name in descriptors(self._node.pid))

    # --- the crew ---
    def _start_crew(self) -> None:
        rng = self._rng
        for number in range(rng.randint(1, 3)):
            options = {
                "linger": rng.choice([0.0, 0.001, 0.005, 0.02]),
                "acks": rng.choice([0, 1, 1, "all"]),
                "compression": rng.choice(["none", "lz4"]),
                "batch_bytes": rng.choice([1 << 10, 8 << 10, 64 << 10]),
            }
            if options["acks"] == 1 and rng.random() < 0.2:
                options["durability"] = "fsynced"
            plan = {
                "role": "producer",
                "name": f"{self._prefix}p{number}",
                "url": self._node.url,
                "topics": [(name, config.partitions) for name, config in self._topics.items()],
                "keys": rng.choice([1, 5, 40]),
                "options": options,
                "burst": rng.choice([1, 20, 100]),
                "batched": rng.choice([0.0, 0.0, 0.3]),
                "window": rng.choice([0, 50, 1000]),
                "pause": rng.choice([0.002, 0.01]),
            }
            self._note(f"producer {number}: {options} {plan['keys']} keys, burst {plan['burst']}")
            self._producers.append(self._new_producer(plan, 0))
        for number in range(rng.randint(1, 2)):
            plan = {"role": "consumer", "name": f"{self._prefix}c{number}", "url": self._node.url}
            starts = {(n, k): 0 for n, c in self._topics.items() for k in range(c.partitions)}
            self._consumers.append(self._new_consumer(plan, 0, starts))

    def _new_producer(self, plan: dict[str, Any], incarnation: int) -> Actor:
        who = f"{plan['name']}.{incarnation}"
        plan = {**plan, "who": who, "incarnation": incarnation, "seed": self._rng.random()}
        cargo = Cargo(who, tuple(plan["topics"]), plan["keys"])
        return self._hire(plan, ProducerLedger(cargo))

    def _new_consumer(
        self, plan: dict[str, Any], incarnation: int, starts: dict[tuple[str, int], int]
    ) -> Actor:
        who = f"{plan['name']}.{incarnation}"
        plan = {
            **plan, "who": who, "incarnation": incarnation, "seed": self._rng.random(),
            "starts": [[*name, at] for name, at in starts.items()],
        }  # fmt: skip
        return self._hire(plan, ConsumerLedger(who, starts))

    def _hire(self, plan: dict[str, Any], ledger: ProducerLedger | ConsumerLedger) -> Actor:
        actor = Actor(plan, ledger, self._node.folder)
        self._all.append(actor)
        return actor

    # --- faults ---
    def _round(self) -> None:
        """Let time pass, in half of the rounds until something was acknowledged; then a fault."""
        rng = self._rng
        pause = rng.uniform(0.01, 0.1) if rng.random() < 0.25 else rng.uniform(0.1, 0.3)
        patience = time.monotonic() + (PATIENCE if rng.random() < 0.5 else 0.0)
        acked = self._acknowledged()
        while time.monotonic() < patience and self._acknowledged() == acked:
            self._go_on(time.monotonic())
            time.sleep(0.005)
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            due = min((at for at, _ in self._stopped), default=deadline)
            time.sleep(max(0.0, min(left, due - time.monotonic())))
            self._go_on(time.monotonic())
        self._figures.moving += self._acknowledged() > acked
        self.check_crew()
        kinds = [kind for kind in FAULTS if not (self._node_lives and kind in OF_THE_NODE)]
        kind = rng.choices(kinds, [FAULTS[kind] for kind in kinds])[0]
        done = getattr(self, "_" + kind.replace(" ", "_"))()
        self._note(f"{kind} {done}")
        self._figures.faults[kind] += 1
        self._figures.rounds += 1

    def _acknowledged(self) -> int:
        ledgers = (actor.ledger for actor in self._producers)
        return sum(len(each.acked) for each in ledgers if isinstance(each, ProducerLedger))

    def check_crew(self) -> None:
        """Nobody may leave, or fail, on its own account."""
        for actor in (*self._producers, *self._consumers):
            status = actor.process.poll()
            if status is not None:
                raise AssertionError(f"{actor.who} left with {status}:\n{actor.errors()}")
        if not self._node.is_running:
            raise AssertionError("the node left on its own")

    def _go_on(self, now: float) -> None:
        """Continue what was stopped for long enough, and note a node that has become ready."""
        for entry in [entry for entry in self._stopped if entry[0] <= now]:
            self._stopped.remove(entry)
            entry[1]()
        self._look_for_ready(0.0)

    def _look_for_ready(self, timeout: float) -> bool:
        if self._ready is None:
            return True
        fd, since = self._ready
        readable, _, _ = select.select([fd], [], [], timeout)
        if readable:
            said = os.read(fd, 64)
            os.close(fd)
            self._ready = None
            if not said:
                raise AssertionError("the node ended before it admitted clients")
            self._note(f"node {self._node.pid} ready after {time.monotonic() - since:.3f} s")
        return bool(readable)

    def _stop_for_a_while(self, pid: int, longest: float = 0.3) -> str:
        bound = self._rng.uniform(0.005, longest)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._stopped.append((time.monotonic() + bound, go_on))
        return f"{pid} for {bound:.3f} s"

    def _a_writer(self) -> int | None:
        return self._node.writer_pid(self._rng.randrange(WRITERS))

    def _kill_writer(self) -> str:
        pid = self._a_writer()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return str(pid)

    def _kill_all_writers(self) -> str:
        pids = self._node.writer_pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return str(pids)

    def _stop_writer(self) -> str:
        pid = self._a_writer()
        return "nobody" if pid is None else self._stop_for_a_while(pid)

    def _stall_writer(self) -> str:
        """Stopped for so long that the node has to replace it."""
        pid = self._a_writer()
        if pid is None or self._ready is not None:
            return "nobody"
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: self._node.writer_pid(0) != pid and self._node.writer_pid(1) != pid,
                   10.0, f"the node replaces its stalled writer {pid}")  # fmt: skip
        return str(pid)

    def _kill_producer(self) -> str:
        index = self._rng.randrange(len(self._producers))
        old = self._producers[index]
        old.kill()
        plan = {key: value for key, value in old.plan.items() if key not in ("who", "seed")}
        self._producers[index] = self._new_producer(plan, plan["incarnation"] + 1)
        return old.who

    def _stop_producer(self) -> str:
        return self._stop_for_a_while(self._rng.choice(self._producers).pid)

    def _kill_writer_and_producer(self) -> str:
        return f"{self._kill_writer()} {self._kill_producer()}"

    def _kill_consumer(self) -> str:
        index = self._rng.randrange(len(self._consumers))
        old = self._consumers[index]
        old.kill()
        assert isinstance(old.ledger, ConsumerLedger)
        starts = old.ledger.positions()
        if self._rng.random() < 0.3:
            starts = {name: self._rng.randint(0, at) for name, at in starts.items()}
        plan = {key: value for key, value in old.plan.items() if key not in ("who", "seed")}
        self._consumers[index] = self._new_consumer(plan, plan["incarnation"] + 1, starts)
        return old.who

    def _stop_consumer(self) -> str:
        return self._stop_for_a_while(self._rng.choice(self._consumers).pid)

    def _stop_node(self) -> str:
        return self._stop_for_a_while(self._node.pid)

    def _launch(self) -> None:
        if self._ready is not None:
            os.close(self._ready[0])
        self._ready = (self._node.launch(), time.monotonic())

    def _kill_node(self) -> str:
        pid = self._node.pid
        self._node.kill()
        self._launch()
        return str(pid)

    def _kill_node_and_writers(self) -> str:
        pids = self._node.writer_pids()
        self._node.signal(signal.SIGSTOP)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"{self._kill_node()} {pids}"

    def _restart_node(self) -> str:
        """A clean stop, its clients living on."""
        if self._ready is not None:
            return "nobody"
        pid = self._node.pid
        self._resume_everything()
        status = self._node.stop()
        assert status == 0, f"the node ended with {status}"
        self._launch()
        return str(pid)

    # --- afterwards ---
    def _resume_everything(self) -> None:
        self._go_on(float("inf"))

    def _heal(self) -> None:
        self._resume_everything()
        if not self._look_for_ready(READY_TIMEOUT):
            raise AssertionError(f"the node is not ready after {READY_TIMEOUT} s")
        self._note("healed")
        self.check_crew()
        for actor in self._producers:
            actor.ask_to_end()
        self._await_end(self._producers)

    def _await_end(self, actors: list[Actor]) -> None:
        deadline = time.monotonic() + HEAL_TIMEOUT
        for actor in actors:
            if not actor.hear_out(max(0.1, deadline - time.monotonic())):
                raise AssertionError(
                    f"{actor.who} is not done {HEAL_TIMEOUT} s after the last fault; it stands at\n"
                    f"{actor.stacks()}"
                )
            if actor.process.returncode:
                raise AssertionError(f"{actor.who} failed:\n{actor.errors()}")
            self._note(f"{actor.who} is done")

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
        for actor in self._consumers:
            actor.ask_to_end(until=ends)
        self._await_end(self._consumers)

    def _judge(self, client: Client) -> list[Path]:
        folders, logs = [], []
        admin = client.admin()
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
        reader = self._read_again(client, logs)
        ledgers = [actor.ledger for actor in self._all]
        verdict = judge(
            logs,
            [ledger for ledger in ledgers if isinstance(ledger, ProducerLedger)],
            [*(each for each in ledgers if isinstance(each, ConsumerLedger)), reader],
        )
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
            for name in self._topics:
                client.admin().delete_topic(name)
        left = [folder for folder in folders if folder.exists()]
        assert not left, f"deleted topics leave {left}"
        for actor in self._all:
            actor.forget()

    def close(self) -> None:
        """Nobody of this episode lives on, whatever became of it."""
        if self._ready is not None:
            os.close(self._ready[0])
            self._ready = None
        for actor in self._all:
            if actor.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    actor.signal(signal.SIGCONT)
                actor.kill()
