"""How late records come that wait for their time, and what waiting costs.

All records are sent with a time, and looked through by workers. Then nothing is
due for a while: what do the processes use meanwhile? Then so many become due a second, and workers
note how late each comes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import psutil

from penstock.bench.door import Door
from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.options import Where
from penstock.bench.progress import BenchProgress
from penstock.bench.usage import cpu_seconds_of, memory_of
from penstock.client.admin.admin import Admin
from penstock.core.errors import PenstockError

MOST_SENT: Final = 1000
"""Records of one `send_batch`."""
GRACE: Final = 30.0
"""Seconds after the last one is due until which all have come."""
LOOK_EVERY: Final = 0.1
BYTES_OF_STATE: Final = 64
ORDERS: Final = ("random", "sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOptions(Where):
    """order: in which they become due: "random", so that each is somewhere else in the log, or
    "sent", as if each waited equally long. lead: seconds until the idle time begins; 0: a second
    for each 8,000 records, and 5 more."""

    records: int = 1_000_000
    rate: int = 10_000
    size: int = 100
    workers: int = 2
    order: str = "random"
    lead: float = 0.0
    idle: float = 10.0

    def check(self) -> None:
        """Raise `BenchError` for what cannot be run."""
        self.check_place()
        for name in ("records", "rate", "size", "workers"):
            if getattr(self, name) < 1:
                raise BenchError(f"--{name} {getattr(self, name)}: more than 0")
        if self.order not in ORDERS:
            raise BenchError(f"--order {self.order}: one of {', '.join(ORDERS)}")
        for name in ("lead", "idle"):
            if not 0.0 <= getattr(self, name) <= 86_400.0:
                raise BenchError(f"--{name} {getattr(self, name):g}: 0 to 86400 s")

    @property
    def lead_seconds(self) -> float:
        return self.lead or 5.0 + self.records / 8_000


def worker(door: Door, topic: str, seconds_max: float, told: Connection) -> None:
    """Works until it is told to end. Sends how late each record came, in microseconds."""
    until = time.monotonic() + seconds_max
    late: list[int] = []
    with door.connect() as client, client.share_consumer(topic, group=topic) as jobs:
        told.send(None)
        while time.monotonic() < until and not told.poll():
            for job in jobs.poll(timeout=LOOK_EVERY):
                assert job.record.due is not None
                late.append(time.time_ns() // 1000 - job.record.due)
                job.ack()
        jobs.flush()
    told.send(np.array(late, np.int64))


def run(options: DelayedOptions, progress: BenchProgress) -> dict[str, Any]:
    """Make the run; the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    needed = options.records * (options.size + BYTES_OF_STATE) + (64 << 20)
    with ground(options, needed) as place, place.topic(1) as topic:
        pids = place.server_pids()
        before = _resident(pids)
        with _workers(options, place.door, topic) as workers:
            progress.say("sending")
            due = time.time() + options.lead_seconds + options.idle
            _send(options, place, topic, due)
            progress.say("looking through")
            _await_waiting(place, topic, options.records, due - options.idle)
            grown = {name: size - before.get(name, 0.0) for name, size in _resident(pids).items()}
            everyone = {**pids, **{f"worker-{n}": pid for n, (pid, _) in enumerate(workers)}}
            progress.say("idle")
            idle = _cpu_share(everyone, max(0.0, due - time.time() - 1.0))
            progress.say(f"{options.rate:,} records a second become due")
            busy = _cpu_share(everyone, due + options.records / options.rate - time.time())
            _await_done(place, topic)
            late = np.concatenate([_heard_of(told) for _, told in workers])
        with suppress(PenstockError), place.client.admin() as admin:
            admin.delete_group(topic)
    progress.end()
    if not len(late):
        raise BenchError("no record came")
    milliseconds = late / 1000
    return {
        "benchmark": "delayed",
        **{
            f"late_p{part}_ms": round(float(np.percentile(milliseconds, part)), 1)
            for part in (50, 99)
        },
        "late_max_ms": round(float(milliseconds.max()), 1),
        "early": int((late < 0).sum()),
        "lost": max(0, options.records - len(late)),
        "doubled": max(0, len(late) - options.records),
        "idle_cpu_percent": idle,
        "busy_cpu_percent": busy,
        "memory_bytes_per_record": {
            name: round(size * 1e6 / options.records, 1) for name, size in grown.items()
        },
        "options": options.stated(),
    }


def _resident(pids: dict[str, int]) -> dict[str, float]:
    """Megabytes of its own of each process."""
    return {name: memory_of(pid).private for name, pid in pids.items() if psutil.pid_exists(pid)}


def _cpu_share(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """Percent of a core that each process uses during so many seconds from now on."""
    begun, before = time.monotonic(), cpu_seconds_of(pids)
    time.sleep(max(0.0, seconds))
    passed = time.monotonic() - begun
    after = cpu_seconds_of(pids)
    return {
        name: round(100 * (after[name] - used) / passed, 2)
        for name, used in before.items() if name in after
    }  # fmt: skip


def _send(options: DelayedOptions, place: MeasuredNode, topic: str, due: float) -> None:
    """All records, due from that time (seconds since the epoch) on."""
    order = np.arange(options.records)
    if options.order == "random":
        order = np.random.default_rng(1).permutation(options.records)
    times = int(due * 1e6) + (order * (1e6 / options.rate)).astype(np.int64)
    with place.client.producer() as producer:
        for at in range(0, options.records, MOST_SENT):
            ats = times[at : at + MOST_SENT].tolist()
            producer.send_batch(topic, [bytes(options.size)] * len(ats), ats=ats)
        producer.flush(options.lead_seconds)


def _described(admin: Admin, topic: str) -> dict[str, int]:
    """How many records are in which state."""
    parts = admin.describe_share_group(topic).partitions
    return {
        state: sum(getattr(part, state) for part in parts)
        for state in ("ready", "waiting", "leased")
    }


def _await_waiting(place: MeasuredNode, topic: str, records: int, until: float) -> None:
    with place.client.admin() as admin:
        while (waiting := _described(admin, topic)["waiting"]) < records:
            if time.time() > until:
                raise BenchTimeout(
                    f"{waiting:,} of {records:,} records wait when the first ones are about to be "
                    "due: give more time by --lead"
                )
            time.sleep(LOOK_EVERY)


def _await_done(place: MeasuredNode, topic: str) -> None:
    until = time.monotonic() + GRACE
    with place.client.admin() as admin:
        while time.monotonic() < until:
            if not any(_described(admin, topic).values()):
                return
            time.sleep(LOOK_EVERY)


@contextmanager
def _workers(
    options: DelayedOptions, door: Door, topic: str
) -> Iterator[list[tuple[int, Connection]]]:
    """Pid and connection of each worker, once it has joined."""
    most = options.lead_seconds + options.idle + options.records / options.rate + 4 * GRACE
    context = multiprocessing.get_context("forkserver")
    made = []
    processes = []
    try:
        for _ in range(options.workers):
            here, there = context.Pipe()
            process = context.Process(target=worker, args=(door, topic, most, there), daemon=True)
            process.start()
            processes.append(process)
            assert process.pid is not None
            made.append((process.pid, here))
        for _, told in made:
            if not told.poll(GRACE):
                raise BenchTimeout(f"a worker has not begun within {GRACE:.0f} s")
            told.recv()
        yield made
    finally:
        for process in processes:
            process.kill()
            process.join()


def _heard_of(told: Connection) -> Any:
    """Ends a worker; how late its records came."""
    told.send(None)
    if not told.poll(GRACE):
        raise BenchTimeout(f"a worker has not ended within {GRACE:.0f} s")
    return told.recv()
