"""Commits a second of clients side by side: of groups, of claims, of transactions of one record.

Every client is a process with a group of its own, and asks again as soon as it has its answer. So
the coordinator has as many requests at a time as there are clients. Each request changes something:
a commit is at another offset than the last one, a claim takes the next record, a transaction
carries one.

The run checks the last committed offset, that no record was claimed twice or left out,
and how many records readers of committed ones see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, Literal, get_args

import numpy as np

from penstock.bench.crew import Crew, Station
from penstock.bench.door import Door
from penstock.bench.errors import BenchError
from penstock.bench.ground import ground
from penstock.bench.options import Where
from penstock.bench.progress import BenchProgress
from penstock.bench.usage import cpu_seconds_of, differences
from penstock.client.client import Client
from penstock.client.transactions.identified_producer import TransactionDurability

Kind = Literal["commit", "claim", "transaction"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

WAIT: Final = 60.0
RECORDS_OF_COMMITS: Final = 100
"""Records of a partition whose offsets are committed one after the other, again and again."""
CLAIMS_A_SECOND_MAX: Final = 20_000
"""Records that are there to be claimed, for each second and client."""
WARMUP: Final = 0.5
"""Seconds before those that are measured."""
BYTES_NEEDED: Final = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsOptions(Where):
    """clients: processes side by side, each with a group or a transactional id. kind: what they do.
    partitions: that transactions write to, each client to one. seconds: measured. durability: of
    transactions."""

    clients: int = 8
    kind: Kind = "commit"
    partitions: int = 1
    seconds: float = 3.0
    durability: TransactionDurability = "fsynced"

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        self.check_place()
        if not 1 <= self.clients <= 256:
            raise BenchError(f"--clients {self.clients}: from 1 to 256")
        if not 1 <= self.partitions <= self.clients:
            raise BenchError(
                f"--partitions {self.partitions}: from 1 to {self.clients} (--clients)"
            )
        if self.partitions > 1 and self.kind != "transaction":
            raise BenchError(
                "--partitions is for --kind transaction: each group reads the same one"
            )
        if self.seconds <= 0:
            raise BenchError("--seconds: more than 0")


@dataclass(frozen=True, slots=True)
class CommitsTask:
    """The task of one client."""

    door: Door
    topic: str
    number: int
    options: CommitsOptions

    @property
    def group(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class CommitsDone:
    """The work of a client. `seconds`: of each measured request. `total`: requests, those of the
    warm-up too. `wrong`: results that must not be."""

    seconds: list[float]
    total: int
    wrong: int


# --- the processes ------------------------------------------------------------------------------
def work(task: CommitsTask, station: Station) -> None:
    """One client: does the same again and again, each time when the last one is answered."""
    roles: dict[Kind, Callable[[Client, CommitsTask, Station], CommitsDone]] = {
        "commit": _commit, "claim": _claim, "transaction": _transact,
    }  # fmt: skip
    with task.door.connect() as client:
        done = roles[task.options.kind](client, task, station)
    station.report(done)
    station.await_order()


def _paced(
    options: CommitsOptions, station: Station, once: Callable[[], object]
) -> tuple[list[float], int]:
    """Calls `once` for the time of the run, when all clients are ready. Returns how long each call
    took of those that are measured, and how many there were."""
    station.report()
    station.await_order()
    begun = time.perf_counter()
    measured_from, until = begun + WARMUP, begun + WARMUP + options.seconds
    seconds, total, now = [], 0, begun
    while now < until:
        before = now
        once()
        now = time.perf_counter()
        total += 1
        if before >= measured_from:
            seconds.append(now - before)
    return seconds, total


def _commit(client: Client, task: CommitsTask, station: Station) -> CommitsDone:
    own, last = (task.topic, 0), 0
    offsets = cycle(range(1, RECORDS_OF_COMMITS + 1))
    with client.consumer(task.topic, group=task.group, guarantee="manual") as consumer:
        there = 0
        while there < RECORDS_OF_COMMITS:
            there += len(consumer.poll(timeout=WAIT))

        def once() -> None:
            nonlocal last
            last = next(offsets)
            consumer.commit({own: last})

        seconds, total = _paced(task.options, station, once)
        return CommitsDone(seconds, total, int(consumer.committed()[own] != last))


def _claim(client: Client, task: CommitsTask, station: Station) -> CommitsDone:
    expected = wrong = 0
    with client.consumer(task.topic, group=task.group, guarantee="at-most-once") as consumer:

        def once() -> None:
            nonlocal expected, wrong
            (record,) = consumer.poll(max_records=1, timeout=WAIT)
            wrong += record.offset != expected
            expected = record.offset + 1

        once()
        seconds, total = _paced(task.options, station, once)
        return CommitsDone(seconds, total, wrong)


def _transact(client: Client, task: CommitsTask, station: Station) -> CommitsDone:
    options, value = task.options, bytes(100)
    with client.producer(
        transactional_id=f"{task.topic}-{task.number}", transaction_durability=options.durability,
        linger=0,
    ) as producer:  # fmt: skip

        def once() -> None:
            with producer.transaction():
                producer.send(task.topic, value, partition=task.number % options.partitions)

        seconds, total = _paced(options, station, once)
        return CommitsDone(seconds, total, 0)


# --- the run ------------------------------------------------------------------------------------
def run(options: CommitsOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    with ground(options, BYTES_NEEDED) as place, place.topic(options.partitions) as topic:
        _fill(place.client, topic, options)
        progress.say(options.kind)
        names = [f"client-{number}" for number in range(options.clients)]
        with Crew(4 * WAIT + options.seconds) as crew:
            for number, name in enumerate(names):
                crew.add(name, work, CommitsTask(place.door, topic, number, options))
            crew.gather("ready")
            pids = place.server_pids()
            before = cpu_seconds_of(pids)
            crew.tell("go")
            reports: dict[str, CommitsDone] = crew.gather("done")
            used = differences(before, cpu_seconds_of(pids))
            crew.tell("leave")
            crew.dismiss()
        wrong = sum(done.wrong for done in reports.values())
        if options.kind == "transaction":
            wrong += abs(_seen(place.client, topic) - sum(each.total for each in reports.values()))
    progress.end()
    each = np.array([second for done in reports.values() for second in done.seconds]) * 1000
    total = sum(done.total for done in reports.values())
    return {
        "benchmark": "commits",
        "kind": options.kind,
        "per_second": round(len(each) / options.seconds),
        "p50_ms": round(float(np.median(each)), 2),
        "p99_ms": round(float(np.percentile(each, 99)), 2),
        "max_ms": round(float(each.max()), 1),
        "cpu_us_each": {name: round(value / total * 1e6, 1) for name, value in used.items()},
        "failed": wrong,
        "options": options.stated(),
    }


def _fill(client: Client, topic: str, options: CommitsOptions) -> None:
    """Sends the records that are committed or claimed."""
    count = {
        "commit": RECORDS_OF_COMMITS,
        "claim": int(CLAIMS_A_SECOND_MAX * (options.seconds + WARMUP) / options.clients) + 10_000,
        "transaction": 0,
    }[options.kind]
    if not count:
        return
    with client.producer() as producer:
        producer.send_batch(topic, [bytes(8)] * count)
        producer.flush(WAIT)


def _seen(client: Client, topic: str) -> int:
    """How many records readers of committed transactions see."""
    with client.admin() as admin:
        ends = sum(part.log_end for part in admin.describe_topic(topic).partitions)
    seen = 0
    with client.consumer(topic, isolation="read_committed") as consumer:
        while ends and (batch := consumer.poll(timeout=1.0)):
            seen += len(batch)
    return seen
