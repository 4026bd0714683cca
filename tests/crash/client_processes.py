"""Producer and consumer processes as the crash machine holds them: started, replaced, heard out."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crash.ledgers import ConsumerLedger, ProducerLedger, whole_lines
from crash.node_under_test import NodeUnderTest, environment
from crash.record_contents import Cargo

from penstock.client.admin.admin import TopicConfig

ACTORS_MAIN = str(Path(__file__).with_name("crash_clients.py"))


class Actor:
    """One process and its ledger. What it wrote before its death is read to the end."""

    def __init__(
        self, plan: dict[str, Any], ledger: ProducerLedger | ConsumerLedger, folder: Path
    ) -> None:
        self.who: str = plan["who"]
        self.plan = plan
        self.ledger = ledger
        self.killed = False
        self._record = folder / f"{self.who}.jsonl"
        self._stderr = folder / f"{self.who}.err"
        with self._stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, ACTORS_MAIN, json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
            )
        self._trouble: Exception | None = None
        self._reader = threading.Thread(target=self._read, name=f"ledger of {self.who}")
        self._reader.start()

    def _read(self) -> None:
        """Take the ledger in until the pipe ends. Keeps a copy for whoever has to look into it."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        buffer = bytearray()
        with self._record.open("wb") as record:
            while data := os.read(fd, 1 << 16):
                record.write(data)
                buffer += data
                try:
                    for line in whole_lines(buffer):
                        self.ledger.take(line)
                except Exception as error:
                    self._trouble = self._trouble or error

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.hear_out(10.0)

    def ask_to_end(self, **order: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def hear_out(self, timeout: float) -> bool:
        """Wait for its end and read the last of its ledger; False if it did not end in time."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(timeout)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self._trouble is not None:
            raise self._trouble
        return not self._reader.is_alive()

    def stacks(self) -> str:
        """Where its threads stand, for a process that hangs."""
        size = self._stderr.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        return self._stderr.read_text("utf-8", "replace")[size:]

    def errors(self) -> str:
        return self._stderr.read_text("utf-8", "replace")[-4000:]

    def forget(self) -> None:
        """Remove its copies on disk: it did what it had to."""
        self._record.unlink(missing_ok=True)
        self._stderr.unlink(missing_ok=True)


class Crew:
    """One to three producers and one or two consumers of an episode, with all who were before."""

    def __init__(
        self,
        node: NodeUnderTest,
        prefix: str,
        topics: Mapping[str, TopicConfig],
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self._node = node
        self._prefix = prefix
        self._topics = topics
        self._rng = rng
        self._note = note
        self.producers: list[Actor] = []
        self.consumers: list[Actor] = []
        self.all: list[Actor] = []

    def start(self) -> None:
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
            self.producers.append(self._new_producer(plan, 0))
        for number in range(rng.randint(1, 2)):
            plan = {"role": "consumer", "name": f"{self._prefix}c{number}", "url": self._node.url}
            starts = {(n, k): 0 for n, c in self._topics.items() for k in range(c.partitions)}
            self.consumers.append(self._new_consumer(plan, 0, starts))

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
        self.all.append(actor)
        return actor

    # --- faults ---
    def kill_a_producer(self) -> str:
        """kill -9, and another process in its place: to the log it is another producer."""
        index = self._rng.randrange(len(self.producers))
        old = self.producers[index]
        old.kill()
        self.producers[index] = self._new_producer(old.plan, old.plan["incarnation"] + 1)
        return old.who

    def kill_a_consumer(self) -> str:
        """kill -9, and another one that goes on where it stood, or earlier."""
        index = self._rng.randrange(len(self.consumers))
        old = self.consumers[index]
        old.kill()
        assert isinstance(old.ledger, ConsumerLedger)
        starts = old.ledger.positions()
        if self._rng.random() < 0.3:
            starts = {name: self._rng.randint(0, at) for name, at in starts.items()}
        self.consumers[index] = self._new_consumer(old.plan, old.plan["incarnation"] + 1, starts)
        return old.who

    # --- what they say ---
    def acknowledged(self) -> int:
        ledgers = (actor.ledger for actor in self.producers)
        return sum(len(each.acked) for each in ledgers if isinstance(each, ProducerLedger))

    def producer_ledgers(self) -> list[ProducerLedger]:
        return [a.ledger for a in self.all if isinstance(a.ledger, ProducerLedger)]

    def consumer_ledgers(self) -> list[ConsumerLedger]:
        return [a.ledger for a in self.all if isinstance(a.ledger, ConsumerLedger)]

    def check(self) -> None:
        """Nobody may leave, or fail, on its own account."""
        for actor in (*self.producers, *self.consumers):
            status = actor.process.poll()
            if status is not None:
                raise AssertionError(f"{actor.who} left with {status}:\n{actor.errors()}")

    # --- the end ---
    def await_end(self, actors: list[Actor], timeout: float) -> None:
        """They were asked to end: each does, in time and in good order."""
        deadline = time.monotonic() + timeout
        for actor in actors:
            if not actor.hear_out(max(0.1, deadline - time.monotonic())):
                raise AssertionError(
                    f"{actor.who} is not done {timeout} s after the last fault; it stands at\n"
                    f"{actor.stacks()}"
                )
            if actor.process.returncode:
                raise AssertionError(f"{actor.who} failed:\n{actor.errors()}")
            self._note(f"{actor.who} is done")

    def close(self) -> None:
        """Nobody lives on, whatever became of the episode."""
        for actor in self.all:
            if actor.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    actor.signal(signal.SIGCONT)
                actor.kill()
