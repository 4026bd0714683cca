"""Work queues beside each other in one run: jobs a second, and when a dead worker's job goes on.

Each peer in turn gets a server of its own in a folder of the run. All jobs are sent first, then all
are worked off by processes that do nothing but answer for each job by itself. Then workers that
hold a job are killed. A queue that cannot be measured here is left out, with the reason.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from penstock.bench import machine
from penstock.bench.crew import Crew, Station
from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import filesystem_of
from penstock.bench.ledger import Stamps
from penstock.bench.payload import event_text
from penstock.bench.progress import BenchProgress
from penstock.bench.queuekafka import kafka_peer
from penstock.bench.queuenats import nats_peer
from penstock.bench.queuepeers import QueueDoor, QueuePeer, QueueSender, Score, Setup, WorkTally
from penstock.bench.queuepenstock import penstock_peer
from penstock.bench.queuerabbit import rabbit_peer
from penstock.bench.queueredis import redis_peer
from penstock.bench.report import faults_of
from penstock.bench.scratch import scratch_folder
from penstock.bench.usage import cpu_seconds_of

Result = dict[str, Any]

PEERS: Final = (
    penstock_peer("shm", "os"),
    penstock_peer("tcp", "os"),
    redis_peer("os"),
    nats_peer("os"),
    kafka_peer(),
    penstock_peer("shm", "fsync"),
    penstock_peer("tcp", "fsync"),
    redis_peer("fsync"),
    nats_peer("fsync"),
    rabbit_peer(),
)
WARM_UP: Final = 100
"""Jobs for each worker, again and again until each has had some."""
TAKEN_WITHIN: Final = 30.0
SPENT_MAX: Final = 15.0
"""Seconds of waiting for the jobs of killed workers, beyond which no further one is killed."""
BODIES: Final = 256
WORKERS_MAX: Final = 64
LATE: Final = b"late"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """jobs: of each turn; some peers are given a share or a multiple. size: bytes of a job.
    workers: processes. turns: of which the median counts. tries: workers that are killed, of which
    the median counts (0: none). wait: seconds that the job of one is waited for. only: the peer of
    this key, or else those whose key contains it. kafka: the folder of Kafka's jars. data: where
    the run's folders are made. timeout: seconds for the jobs of one peer."""

    jobs: int = 100_000
    size: int = 1024
    workers: int = 4
    turns: int = 3
    tries: int = 5
    wait: float = 12.0
    only: str = ""
    kafka: Path | None = None
    data: Path | None = None
    timeout: float = 180.0

    def check(self) -> None:
        """Raise `BenchError` for what cannot be run."""
        if self.size < 8:
            raise BenchError(f"--size {self.size}: a job carries its number, so 8 bytes at least")
        if not 1 <= self.workers <= WORKERS_MAX:
            raise BenchError(f"--workers {self.workers}: from 1 to {WORKERS_MAX}")
        if self.jobs < 1 or self.turns < 1 or self.tries < 0:
            raise BenchError("--jobs and --turns: at least one; --tries: 0 or more")
        if self.wait <= 0 or self.timeout <= 0:
            raise BenchError("--wait and --timeout: more than 0 seconds")
        if not self.chosen():
            keys = ", ".join(peer.key for peer in PEERS)
            raise BenchError(f"--only {self.only}: no peer's key contains that: {keys}")

    def chosen(self) -> list[QueuePeer]:
        found = [peer for peer in PEERS if self.only == peer.key]
        return found or [peer for peer in PEERS if self.only in peer.key]

    def stated(self) -> Result:
        found = asdict(self)
        for name in ("data", "kafka", "timeout"):  # of this machine
            del found[name]
        return found


@dataclass(frozen=True, slots=True)
class WorkersTask:
    """The task of a worker process."""

    door: QueueDoor
    prefetch: int
    score: Score
    index: int


def work(task: WorkersTask, station: Station) -> None:
    """Warm up, then work until the tally is over, as often as told to. Reports when the last answer
    was with the server, and what was answered."""
    with closing(task.door.worker(task.prefetch)) as worker:
        tally = WorkTally(task.score, task.index)
        gc.freeze()
        station.report()
        while (order := station.await_order()) != "close":
            tally.is_warm_up = order == "warm up"
            worker.work(tally)
            station.report((tally.finished(), tally.drain()))
    station.report()


def hold(door: QueueDoor, line: Connection[Any, Any]) -> None:
    """Take one job, and keep it until killed."""
    worker = door.worker(1)
    line.send(None)
    line.send(worker.receive(TAKEN_WITHIN) or LATE)
    line.recv()  # which nothing is ever sent to


# --- the run ------------------------------------------------------------------------------------
def run(options: QueueOptions, progress: BenchProgress) -> Result:
    """Make the run; the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    found: dict[str, Result] = {}
    filesystem = None
    for peer in options.chosen():
        progress.say(peer.key)
        jobs = max(1, round(options.jobs * peer.jobs))
        needed = 3 * (jobs * options.turns + WARM_UP) * (options.size + 200) + (256 << 20)
        with scratch_folder(options.data, needed) as folder:
            filesystem = filesystem_of(folder)
            setup = Setup(folder, peer.level, options.kafka)
            found[peer.key] = {"name": peer.name, "level": peer.level}
            found[peer.key] |= _measured(options, peer, setup, jobs)
    progress.end()
    return {
        "benchmark": "queue",
        "peers": found,
        **faults_of(found.values()),
        "filesystem": filesystem,
        "machine": machine.describe().as_dict(),
        "options": options.stated(),
    }


def _measured(options: QueueOptions, peer: QueuePeer, setup: Setup, jobs: int) -> Result:
    """Measures one peer. The others go on where its server or client fails."""
    if (why := peer.missing(setup)) is not None:
        return {"skipped": why}
    try:
        with peer.serve(setup) as door:
            measured = _jobs(options, peer, door, jobs)
            killed = _kills(options, peer, door) if peer.kills and options.tries else {}
            return {**measured, **killed, **_facts(peer, setup)}
    except Exception as error:  # each client has its own
        print(f"penstock bench queue: {peer.key}: {error}", file=sys.stderr)
        return {"failed": 1, "why": (str(error).strip().splitlines() or [type(error).__name__])[-1]}


def _facts(peer: QueuePeer, setup: Setup) -> Result:
    return {
        "client": peer.client,
        "prefetch": peer.prefetch,
        "sent": peer.sent,
        "answered": peer.answered,
        "by_default": peer.by_default,
        "settings": peer.settings,
        "versions": peer.versions(setup),
    }


def values(first: int, count: int, size: int) -> Iterator[bytes]:
    """So many jobs, each with its number in front."""
    text = event_text(0, BODIES + size)
    bodies = [text[at : at + size - 8] for at in range(BODIES)]
    for number in range(first, first + count):
        yield number.to_bytes(8, "little") + bodies[number % BODIES]


def _jobs(options: QueueOptions, peer: QueuePeer, door: QueueDoor, jobs: int) -> Result:
    """All turns of one peer."""
    score = Score.of(options.workers)
    sent_in: list[float] = []
    done_in: list[float] = []
    cpu: list[float] = []
    answered: list[Stamps] = []
    names = [f"worker-{index}" for index in range(options.workers)]
    with Crew(options.timeout) as crew, closing(door.sender()) as sender:
        for index, name in enumerate(names):
            crew.add(name, work, WorkersTask(door, peer.prefetch, score, index))
        crew.gather("attached")
        sent = _warm_up(options, crew, sender, score, answered)
        for _ in range(options.turns):
            begun = time.monotonic()
            sender.send(values(sent, jobs, options.size))
            sent_in.append(time.monotonic() - begun)
            sent += jobs
            score.total.value = sent
            begun, used = time.monotonic(), _cpu_of_others()
            crew.tell("work")
            done_in.append(_gathered(crew, "done", answered) - begun)
            cpu.append(_cpu_of_others() - used)
        crew.tell("close")
        crew.gather("closed")
        crew.dismiss()
    times = np.bincount(np.concatenate(answered).astype(np.int64), minlength=sent)
    return {
        "jobs": jobs,
        "sent_per_second": round(jobs / statistics.median(sent_in)),
        "done_per_second": round(jobs / statistics.median(done_in)),
        "done_slowest": round(jobs / max(done_in)),
        "done_fastest": round(jobs / min(done_in)),
        "cpu_us": round(statistics.median(cpu) / jobs * 1e6, 1),
        "lost": int(np.count_nonzero(times == 0)),
        "doubled": int((times[times > 1] - 1).sum()),
    }


def _cpu_of_others() -> float:
    """CPU seconds of the server and the workers so far."""
    pids = {str(child.pid): child.pid for child in psutil.Process().children(recursive=True)}
    return sum(cpu_seconds_of(pids).values())


def _warm_up(
    options: QueueOptions, crew: Crew, sender: QueueSender, score: Score, answered: list[Stamps]
) -> int:
    """Send jobs until each worker has had some; returns how many."""
    sent = 0

    def feed() -> None:
        nonlocal sent
        if score.done() == sent and not all(score.counts):
            count = WARM_UP * options.workers
            sender.send(values(sent, count, options.size))
            sent += count

    crew.tell("warm up")
    _gathered(crew, "warmed up", answered, feed)
    score.total.value = sent
    crew.tell("work")  # on what nobody has taken
    _gathered(crew, "warmed up", answered)
    return sent


def _gathered(crew: Crew, what: str, answered: list[Stamps], watch: Any = None) -> float:
    """Keep what the workers have answered; returns when the server had the last answer."""
    ends = []
    for ended, stamps in crew.gather(what, watch).values():
        ends.append(ended)
        answered.append(stamps)
    return float(max(ends))


# --- killed workers -----------------------------------------------------------------------------
def _kills(options: QueueOptions, peer: QueuePeer, door: QueueDoor) -> Result:
    """Milliseconds from the kill of a worker that holds a job until another one has it; what does
    not come in time is tried once."""
    took: list[float] = []
    with closing(door.sender()) as sender:
        while len(took) < options.tries and sum(took) < SPENT_MAX * 1000:
            found = _redelivery(options, peer, door, sender)
            if found is None:
                break
            took.append(found * 1000)
    if not took:
        return {"redelivery_none_within": options.wait}
    return {
        "redelivery_p50_ms": round(statistics.median(took), 1),
        "redelivery_max_ms": round(max(took), 1),
        "redelivery_tries": len(took),
    }


def _redelivery(
    options: QueueOptions, peer: QueuePeer, door: QueueDoor, sender: QueueSender
) -> float | None:
    context = multiprocessing.get_context("spawn")
    line, theirs = context.Pipe()
    victim = context.Process(target=hold, args=(door, theirs), daemon=True)
    victim.start()
    theirs.close()
    try:
        _heard(line, peer)
        held, other = values(0, 2, options.size)
        sender.send([held])
        if (taken := _heard(line, peer)) != held:
            raise BenchTimeout(f"{peer.name}: the worker that is to be killed has no job")
        with closing(door.worker(1)) as heir:
            sender.send([other])  # to know that the heir is given what there is
            if heir.receive(TAKEN_WITHIN) != other:
                raise BenchTimeout(f"{peer.name}: the other worker is given no job")
            heir.ack()
            assert victim.pid is not None
            begun = time.monotonic()
            os.kill(victim.pid, 9)
            deadline = begun + options.wait
            while (left := deadline - time.monotonic()) > 0:
                if heir.receive(left) == taken:
                    took = time.monotonic() - begun
                    heir.ack()
                    return took
            return None
    finally:
        victim.kill()
        victim.join()
        line.close()


def _heard(line: Connection[Any, Any], peer: QueuePeer) -> Any:
    if not line.poll(2 * TAKEN_WITHIN):
        raise BenchTimeout(f"{peer.name}: the worker that is to be killed says nothing")
    try:
        return line.recv()
    except EOFError:
        raise BenchError(f"{peer.name}: the worker that is to be killed failed") from None
