"""Groups: the time of a rebalance, of a failover to another member, and the rate of commits.

It measures how long a rebalance takes and which members it holds up. It measures how soon another
member goes on with a dead one's records, and how many commits a second there are. A producer sends
to every partition in turn at a steady rate, each value carrying the time. Members are threads of a
few processes, since a hundred interpreters would measure the starting of interpreters.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from typing import Any, Final

import numpy as np

from penstock.bench.crew import Crew, Station
from penstock.bench.door import Door
from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.options import Where
from penstock.bench.progress import BenchProgress
from penstock.client.admin.admin import Admin
from penstock.client.client import Client
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.core.errors import GroupError, PenstockError

STAMP: Final = struct.Struct("<Q")
WAIT: Final = 60.0
LOOK_EVERY: Final = 0.002
POLL: Final = 0.1
SLICE: Final = 0.002
BYTES_NEEDED: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOptions(Where):
    """members, partitions: of the rebalance. processes: that share the members. rate: records a
    second, over all partitions. rounds: of the failover; the median counts. seconds: of each
    measurement of commits. session_timeout: of the members of the failover: by TCP, what is silent
    may come back for so long."""

    members: int = 50
    partitions: int = 200
    processes: int = 5
    rate: int = 20_000
    rounds: int = 10
    seconds: float = 3.0
    session_timeout: float = 10.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        self.check_place()
        if not 2 <= self.members <= self.partitions:
            raise BenchError(
                f"--members {self.members}: from 2 to {self.partitions} (--partitions)"
            )
        if not 1 <= self.processes < self.members:
            raise BenchError(f"--processes {self.processes}: from 1 to {self.members - 1}")
        if self.rounds < 1 or self.rate < 1 or self.seconds <= 0:
            raise BenchError("--rounds, --rate and --seconds: more than 0")
        if not 0.1 <= self.session_timeout <= WAIT / 2:
            raise BenchError(f"--session-timeout {self.session_timeout:g}: 0.1 to {WAIT / 2:g} s")


@dataclass(frozen=True, slots=True)
class GroupsTask:
    """The task of a member of the run. `topic`: also the name of its group. `members`: threads of a
    process of members."""

    door: Door
    topic: str
    partitions: int
    rate: int
    members: int = 0


@dataclass(frozen=True, slots=True)
class Polled:
    """The times (CLOCK_MONOTONIC, nanoseconds) of polls with records, and how many those were."""

    at: list[int]
    counts: list[int]


# --- the processes ------------------------------------------------------------------------------
def produce(task: GroupsTask, station: Station) -> None:
    """Sends at the rate, in slices of a few milliseconds, until told to stop."""
    each = max(1, int(task.rate * SLICE))
    stop = threading.Event()
    with task.door.connect() as client, client.producer() as producer:
        producer.send_batch(task.topic, [bytes(8)]).result(WAIT)
        station.report()
        station.await_order()
        threading.Thread(target=_await_stop, args=(station, stop), daemon=True).start()
        number, due = 0, time.monotonic()
        while not stop.is_set():
            stamp = STAMP.pack(time.monotonic_ns())
            for _ in range(each):
                producer.send(task.topic, stamp, partition=number % task.partitions)
                number += 1
            due += SLICE
            time.sleep(max(0.0, due - time.monotonic()))
        producer.flush(WAIT)
        station.report(number)
    station.await_order()


def _await_stop(station: Station, stop: threading.Event) -> None:
    station.await_order()
    stop.set()


def members(task: GroupsTask, station: Station) -> None:
    """Runs some members, a thread each: they join when told to, and poll until told to stop."""
    stop = threading.Event()
    polled = [Polled([], []) for _ in range(task.members)]
    failures: list[BaseException] = []

    def member(own: Polled) -> None:
        try:
            with client.consumer(task.topic, group=task.topic) as consumer:
                _poll(consumer, own, stop.is_set)
        except BaseException as error:
            failures.append(error)

    with task.door.connect() as client:
        station.report()
        station.await_order()
        threads = [threading.Thread(target=member, args=(own,)) for own in polled]
        for thread in threads:
            thread.start()
        station.await_order()
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    at = [moment for own in polled for moment in own.at]
    station.report(Polled(at, [count for own in polled for count in own.counts]))
    station.await_order()


def _poll(consumer: GroupConsumer, own: Polled, is_over: Callable[[], bool]) -> None:
    while not is_over():
        batch = consumer.poll(timeout=POLL)
        if batch:
            own.at.append(time.monotonic_ns())
            own.counts.append(len(batch))
            consumer.commit(batch)


def victim(door: Door, topic: str, session_timeout: float, ready: Event) -> None:
    """Runs a member that polls until it is killed."""
    with (
        door.connect() as client,
        client.consumer(topic, group=topic, session_timeout=session_timeout) as consumer,
    ):
        while True:
            if consumer.poll(timeout=POLL):
                ready.set()


# --- the run ------------------------------------------------------------------------------------
def run(options: GroupsOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    with (
        ground(options, BYTES_NEEDED) as place,
        place.client.admin() as admin,
        place.topic(options.partitions) as topic,
        place.topic(2) as pair,
    ):
        progress.say("rebalance")
        rebalanced = _rebalance(options, place, topic, admin)
        progress.say("failover")
        failover = [_failover(place, pair, options.session_timeout) for _ in range(options.rounds)]
        progress.say("commits")
        commits = _commits(place.client, pair, options.seconds)
        wide = _commits(place.client, topic, options.seconds)
        for group in (topic, pair, _committers(pair), _committers(topic)):
            with suppress(PenstockError):  # a killed member on the network may still count as one
                admin.delete_group(group)
    progress.end()
    milliseconds = np.array(failover) * 1000
    return {
        "benchmark": "groups",
        **rebalanced,
        "failover_p50_ms": round(float(np.median(milliseconds)), 1),
        "failover_max_ms": round(float(milliseconds.max()), 1),
        "commits_per_second": round(commits),
        "commits_per_second_all_partitions": round(wide),
        "options": options.stated(),
    }


def _rebalance(
    options: GroupsOptions, place: MeasuredNode, topic: str, admin: Admin
) -> dict[str, Any]:
    """Lets all members but one join at once, then the last one, which leaves again."""
    first = options.members - 1
    task = GroupsTask(place.door, topic, options.partitions, options.rate)
    names = [f"members-{index}" for index in range(options.processes)]
    shares = [first // options.processes + (index < first % options.processes)
              for index in range(options.processes)]  # fmt: skip
    with Crew(4 * WAIT) as crew:
        crew.add("producer", produce, task)
        for name, share in zip(names, shares, strict=True):
            crew.add(name, members, replace(task, members=share))
        crew.gather("attached")
        crew.tell("go", ["producer"])
        begun = time.monotonic()
        crew.tell("go", names)
        all_joined = _await_balance(admin, topic, first, options.partitions) - begun
        time.sleep(1.0)  # what the newcomer is compared with
        joined_at = time.monotonic_ns()
        stop = threading.Event()
        last = threading.Thread(
            target=_last_member,
            args=(place.client, topic, stop),
            name="the last member",
            daemon=True,
        )
        last.start()
        balanced_at = int(_await_balance(admin, topic, options.members, options.partitions) * 1e9)
        time.sleep(0.2)
        left_at = time.monotonic()
        stop.set()
        last.join(WAIT)
        all_left = _await_balance(admin, topic, first, options.partitions) - left_at
        crew.tell("stop")
        reports = crew.gather("stopped")
        crew.tell("leave")
        crew.dismiss()
    at = np.array([moment for name in names for moment in reports[name].at])
    counts = np.array([count for name in names for count in reports[name].counts])
    during = counts[(at >= joined_at) & (at < balanced_at)].sum()
    span = balanced_at - joined_at
    before = counts[(at >= joined_at - 10**9) & (at < joined_at)].sum() * span / 1e9
    return {
        "all_join_seconds": round(all_joined, 3),
        "one_joins_ms": round(span / 1e6, 1),
        "delivered_meanwhile": int(during),
        "delivered_meanwhile_share": round(float(during / max(before, 1)), 3),
        "one_leaves_ms": round(all_left * 1000, 1),
    }


def _last_member(client: Client, topic: str, stop: threading.Event) -> None:
    with client.consumer(topic, group=topic) as consumer:
        _poll(consumer, Polled([], []), stop.is_set)


def _await_balance(admin: Admin, group: str, members: int, partitions: int) -> float:
    """Returns when (`time.monotonic`) each of so many members owns its share."""
    deadline = time.monotonic() + WAIT
    while True:
        shares = _shares(admin, group)
        now = time.monotonic()
        if len(shares) == members and sum(shares) == partitions and max(shares) - min(shares) <= 1:
            return now
        if now > deadline:
            raise BenchTimeout(
                f"{members} members do not own {partitions} partitions after {WAIT:.0f} s: they "
                f"own {sorted(shares)}"
            )
        time.sleep(LOOK_EVERY)


def _shares(admin: Admin, group: str) -> list[int]:
    """Returns how many partitions each member owns; none where they are still moving."""
    try:
        description = admin.describe_group(group)
    except GroupError:  # nobody has joined yet
        return []
    if description.state != "stable":
        return []
    return [member.partitions for member in description.members]


def _failover(place: MeasuredNode, topic: str, session_timeout: float) -> float:
    """Returns the seconds from the kill of one of two members to the other one's first record from
    a partition of the dead one."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(
        target=victim, args=(place.door, topic, session_timeout, ready), daemon=True
    )
    stop = threading.Event()
    with (
        place.client.consumer(topic, group=topic, session_timeout=session_timeout) as consumer,
        place.client.producer(linger=0) as producer,
    ):
        process.start()
        feeder = threading.Thread(target=_feed, args=(producer, topic, stop), daemon=True)
        feeder.start()
        try:
            deadline = time.monotonic() + WAIT
            while not ready.is_set() or len(consumer.assignment()) != 1:
                consumer.poll(timeout=0.01)
                if time.monotonic() > deadline:
                    raise BenchTimeout(f"two members did not share {topic} within {WAIT:.0f} s")
            (own,) = consumer.assignment()
            assert process.pid is not None
            killed = time.monotonic()
            os.kill(process.pid, 9)
            while time.monotonic() < deadline:
                batch = consumer.poll(timeout=POLL)
                if any((chunk.topic, chunk.partition) != own for chunk in batch.chunks):
                    return time.monotonic() - killed
            raise BenchTimeout(f"nothing of the killed member came within {WAIT:.0f} s")
        finally:
            stop.set()
            feeder.join()
            process.kill()
            process.join()


def _feed(producer: Any, topic: str, stop: threading.Event) -> None:
    while not stop.is_set():
        for partition in range(2):
            producer.send(topic, bytes(8), partition=partition)
        time.sleep(0.001)


def _committers(topic: str) -> str:
    return f"{topic}-commits"


def _commits(client: Client, topic: str, seconds: float) -> float:
    """Commits a second of one member, one after the other, each of all that it owns."""
    count = 0
    with client.consumer(topic, group=_committers(topic), guarantee="manual") as consumer:
        batch = consumer.poll(timeout=WAIT)
        begun = time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            consumer.commit(batch)
            count += 1
    return count / (now - begun)
