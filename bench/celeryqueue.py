"""Celery on Penstock, Redis and RabbitMQ: the same tasks, one after the other, in one run.

Each turn of each broker: all tasks are sent, then a worker with a pool of processes begins and
works them off; then single tasks are timed, and the CPU of the worker that waits. At last workers
that hold a task are killed, and others wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil

from penstock.bench import machine
from penstock.bench.celerywire import BROKER, OPTIONS, SOCKET, TOLD
from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.progress import BenchProgress
from penstock.bench.queuepeers import QueuePeer, Setup
from penstock.bench.queuepenstock import penstock_peer
from penstock.bench.queuerabbit import rabbit_peer
from penstock.bench.queueredis import redis_peer

Result = dict[str, Any]

READY_WITHIN: Final = 60.0
SETTLE: Final = 0.5
"""Seconds after the last task before the CPU of a worker that waits is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeleryOptions:
    """singles: tasks that are timed one by one. kills: workers that are killed. wait: seconds for
    a task of one to begin elsewhere. only: the brokers whose key contains it."""

    tasks: int = 2000
    singles: int = 200
    turns: int = 2
    processes: int = 2
    kills: int = 3
    wait: float = 5.0
    idle: float = 3.0
    only: str = ""

    def check(self) -> None:
        """Raises `BenchError` for what cannot be run."""
        for name in ("tasks", "singles", "turns", "processes"):
            if getattr(self, name) < 1:
                raise BenchError(f"--{name} {getattr(self, name)}: more than 0")


@dataclass(frozen=True, slots=True)
class CeleryBroker:
    """A row of the table. `url`: the broker URL by what reaches its server."""

    key: str
    name: str
    peer: QueuePeer
    url: Callable[[Any], str]
    options: str = "{}"


BROKERS: Final = (
    CeleryBroker(
        "penstock-shm", "Penstock, shared memory", penstock_peer("shm", "os"),
        lambda door: f"penstock+{door.door.url}",
    ),
    CeleryBroker(
        "penstock-tcp", "Penstock, TCP", penstock_peer("tcp", "os"),
        lambda door: f"penstock+{door.door.url}",
        json.dumps({"transport": "tcp", "session_timeout": 1.0}),
    ),
    CeleryBroker(
        "redis", "Redis", redis_peer("os"), lambda door: f"redis://127.0.0.1:{door.port}/0"
    ),
    CeleryBroker(
        "rabbitmq", "RabbitMQ", rabbit_peer(),
        lambda door: f"amqp://guest:guest@127.0.0.1:{door.port}//",
    ),
)  # fmt: skip


def run(options: CeleryOptions, progress: BenchProgress) -> Result:
    """Measures each broker that is here. Raises `BenchError`."""
    options.check()
    if find_spec("celery") is None:
        raise BenchError("Celery is missing: pip install 'penstock[celery]'")
    chosen = [broker for broker in BROKERS if options.only in broker.key]
    found: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        benches = []
        for broker in chosen:
            folder = Path(name) / broker.key
            folder.mkdir()
            setup = Setup(folder, "os")
            if why := broker.peer.missing(setup):
                found[broker.key] = {"name": broker.name, "left_out": why}
                continue
            door = stack.enter_context(broker.peer.serve(setup))
            benches.append(BrokerBench(broker, broker.url(door), folder, options))
            found[broker.key] = {"name": broker.name, "versions": broker.peer.versions(setup)}
        for turn in range(options.turns):
            for bench in benches:  # A B A B
                progress.say(f"{bench.broker.name}, turn {turn + 1}")
                bench.turn()
        for bench in benches:
            found[bench.broker.key] |= bench.result()
    return {
        "benchmark": "celery",
        "machine": machine.describe().as_dict(),
        "options": {name: getattr(options, name) for name in CeleryOptions.__dataclass_fields__},
        "celery": version("celery"),
        "brokers": found,
    }


class BrokerBench:
    """A broker, its workers, and what was measured."""

    def __init__(
        self, broker: CeleryBroker, url: str, folder: Path, options: CeleryOptions
    ) -> None:
        self.broker = broker
        self._options = options
        self._folder = folder
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(str(folder / "line"))
        self._env = {
            **os.environ, BROKER: url, OPTIONS: broker.options, SOCKET: str(folder / "line"),
        }  # fmt: skip
        self._sent: list[float] = []
        self._done: list[float] = []
        self._late: list[float] = []
        self._idle: list[float] = []
        self._killed: list[float] = []
        self._workers = 0

    def turn(self) -> None:
        options = self._options
        with self._sender("bench") as send:
            begun = time.monotonic()
            send("note", options.tasks)
            self._sent.append(options.tasks / (time.monotonic() - begun))
            with self._worker("bench", "prefork", options.processes) as worker:
                ends = [self._told(READY_WITHIN)[1] for _ in range(options.tasks)]
                self._done.append((options.tasks - 1) / (max(ends) - min(ends)))
                for _ in range(options.singles):
                    send("note", 1)
                    sent, at, _ = self._told(READY_WITHIN)
                    self._late.append(at - sent)
                self._idle.append(self._cpu_of(worker))

    def _cpu_of(self, worker: subprocess.Popen[bytes]) -> float:
        """Percent of a processor that a worker takes which waits, with its pool."""
        tree = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]

        def used() -> float:
            found = [one.cpu_times() for one in tree]
            return float(sum(times.user + times.system for times in found))

        time.sleep(SETTLE)
        before = used()
        time.sleep(self._options.idle)
        return 100 * (used() - before) / self._options.idle

    def result(self) -> Result:
        """The figures of all turns, and those of killed workers."""
        self._kill()
        late = sorted(self._late)
        killed = [round(1000 * took, 1) for took in self._killed]
        return {
            "sent_per_second": [round(rate) for rate in self._sent],
            "done_per_second": [round(rate) for rate in self._done],
            "latency_p50_ms": round(1000 * statistics.median(late), 2),
            "latency_p99_ms": round(1000 * late[int(len(late) * 0.99)], 2),
            "idle_cpu_percent": round(statistics.median(self._idle), 2),
            "killed_ms": killed,
            "killed_none_within": None if killed or not self._options.kills else self._options.wait,
        }

    def _kill(self) -> None:
        """Seconds from the kill of a worker, with what it runs, until its task begins elsewhere."""
        for number in range(self._options.kills):
            queue = f"bench-{number}"
            with (
                self._sender(queue) as send,
                self._worker(queue, "solo", 1) as one,
                self._worker(queue, "solo", 1) as other,
            ):
                send("hold", 1)
                pid = self._told(READY_WITHIN)[2]
                victim = one if pid == one.pid else other
                at = time.monotonic()
                os.killpg(victim.pid, signal.SIGKILL)
                try:
                    self._killed.append(self._told(self._options.wait)[1] - at)
                except BenchTimeout:
                    return

    def _told(self, within: float) -> tuple[float, float, int]:
        self._line.settimeout(within)
        try:
            sent, began, pid = TOLD.unpack(self._line.recv(TOLD.size))
        except TimeoutError:
            raise BenchTimeout(
                f"{self.broker.name}: no task began within {within:g} s; {self._folder}"
            ) from None
        return sent, began, pid

    @contextmanager
    def _sender(self, queue: str) -> Iterator[Callable[[str, int], None]]:
        """A process that sends tasks: the connection of an application is made once."""
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.bench.celerysender"], env=self._env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def send(task: str, count: int) -> None:
            stdin.write(f"{task} {count} {queue}\n")
            if stdout.readline() != "sent\n":
                raise BenchError(f"{self.broker.name}: the sender of tasks failed")

        try:
            send("note", 0)  # it is there
            yield send
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def _worker(self, queue: str, pool: str, processes: int) -> Iterator[subprocess.Popen[bytes]]:
        self._workers += 1
        level = "INFO" if pool == "solo" else "WARNING"
        log = self._folder / f"worker-{self._workers}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "penstock.bench.celerytasks", "worker",
                 "-P", pool, "-c", str(processes), "-n", f"w{self._workers}@bench", "-l", level,
                 "-Q", queue],
                env=self._env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            if pool == "solo":
                _await_ready(log, process)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_ready(log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while " ready." not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"a Celery worker did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
