"""Many connections: the gateway's cost of each, and the time of a request beside the others.

Every connection is a `Client` with a producer. Once all are there they first stay idle. Then they
send records one at a time at a steady rate in all, each timed from its due time to its
acknowledgement. Then they send as many as they can, in lists. A few processes share the
connections, since hundreds of interpreters would measure the starting of interpreters. The
acknowledged records are counted again in the log.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.bench import payload
from penstock.bench.crew import Crew, Station
from penstock.bench.door import Door
from penstock.bench.errors import BenchError
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.latency import percentiles, sharpen_timers
from penstock.bench.options import Transport, Where
from penstock.bench.progress import BenchProgress
from penstock.bench.usage import (
    Usage,
    cpu_seconds_of,
    differences,
    machine_cpu_seconds,
    memory_of,
)
from penstock.client.producer.delivery import BatchDelivery, Delivery
from penstock.client.producer.producer import Producer
from penstock.ipc.liveness import raise_descriptor_limit

CONNECTIONS_MAX: Final = 1000
ROOM: Final = 1024
"""Clients that a node of the run's own accepts, the most that it can: each attaches twice while it
is made."""
LANES: Final = 2 * CONNECTIONS_MAX
LANE_BYTES: Final = 256 << 10
FLYING: Final = 2
"""Lists of a connection under way."""
WAIT: Final = 60.0
POOL: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsOptions(Where):
    """connections: clients, each with a connection (through shared memory: an attachment) and a
    producer. processes: that share them. rate: requests a second, over all of them. size: bytes of
    a value. list_records: values of a list, when as much is sent as goes. seconds: of each of the
    three phases."""

    connections: int = 100
    processes: int = 4
    partitions: int = 4
    rate: float = 1000.0
    size: int = 1024
    list_records: int = 32
    seconds: float = 5.0
    transport: Transport = "tcp"
    timeout: float = 300.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        self.check_place()
        if not 1 <= self.connections <= CONNECTIONS_MAX:
            raise BenchError(f"--connections {self.connections}: from 1 to {CONNECTIONS_MAX}")
        if self.processes < 1 or self.partitions < 1 or self.list_records < 1:
            raise BenchError("--processes, --partitions and --list-records: at least one")
        if self.rate <= 0 or self.seconds <= 0 or self.rate * self.seconds < 1:
            raise BenchError(f"--rate {self.rate:g} --seconds {self.seconds:g}: not one request")
        if self.size < 8 or self.list_records * (self.size + 16) > LANE_BYTES // 4:
            raise BenchError(
                f"--size {self.size} --list-records {self.list_records}: values of 8 bytes at "
                f"least, and lists of {LANE_BYTES >> 12} KiB at most"
            )

    @property
    def shares(self) -> list[range]:
        """Returns the connections that each process makes; none is idle."""
        count = min(self.processes, self.connections)
        bounds = [self.connections * index // count for index in range(count + 1)]
        return [range(*pair) for pair in pairwise(bounds)]

    @property
    def bytes_needed(self) -> int:
        """Disk for what may come: a gigabyte a second at most."""
        return int((self.rate + 1e6) * self.seconds) * (self.size + 64) + (64 << 20)


@dataclass(frozen=True, slots=True)
class ConnectionsTask:
    """The connections of one process."""

    options: ConnectionsOptions
    door: Door
    topic: str
    own: range


@dataclass(frozen=True, slots=True)
class Paced:
    """Nanoseconds from when each request was due, and how late it was sent."""

    took: npt.NDArray[np.int64]
    late: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pushed:
    """Clock readings are CLOCK_MONOTONIC in nanoseconds."""

    begun: int
    ended: int
    records: int
    usage: Usage


@dataclass(slots=True)
class _Line:
    """One connection. `flying`: lists without an acknowledgement, oldest first."""

    producer: Producer
    partition: int
    flying: deque[BatchDelivery] = field(default_factory=deque)


# --- a process of connections -------------------------------------------------------------------
def connections(task: ConnectionsTask, station: Station) -> None:
    """Runs the role: attaches, then takes one order for each of the phases."""
    raise_descriptor_limit()  # each has some
    sharpen_timers()
    options = task.options
    values = payload.make_pool(0, POOL, options.size)
    with ExitStack() as stack:
        lines = []
        for number in task.own:
            client = stack.enter_context(task.door.connect())
            producer = stack.enter_context(
                client.producer(linger=0, batch_bytes=LANE_BYTES // 4, delivery_timeout=WAIT)
            )
            lines.append(_Line(producer, number % options.partitions))
        for line in lines:  # the first record opens the lane
            _send(task.topic, line, values[:1])
        for line in lines:
            line.flying.popleft().result(WAIT)
        station.report()
        gc.collect()
        gc.freeze()
        station.await_order()
        station.report(_paced(task, lines, values[0]))
        station.await_order()
        station.report(_pushed(task, lines, values[: options.list_records]))
        station.await_order()


def _paced(task: ConnectionsTask, lines: list[_Line], value: bytes) -> Paced:
    """Sends one record after the other when it is due, over the connections in turn."""
    clock = time.monotonic_ns
    rate = task.options.rate * len(lines) / task.options.connections
    count = max(1, int(rate * task.options.seconds))
    acknowledged = [0] * count
    late = []
    begun = clock() + 1_000_000

    def watch(number: int) -> Any:
        def note(_: Delivery) -> None:
            acknowledged[number] = clock()

        return note

    dues = [begun + int(number * 1e9 / rate) for number in range(count)]
    for number, due in enumerate(dues):
        line = lines[number % len(lines)]
        if (rest := due - clock()) > 0:
            time.sleep(rest / 1e9)
        late.append(clock() - due)
        line.producer.send(task.topic, value, partition=line.partition).add_done_callback(
            watch(number)
        )
    for line in lines:
        line.producer.flush(WAIT)
    return Paced(np.array(acknowledged) - np.array(dues), np.array(late))


def _pushed(task: ConnectionsTask, lines: list[_Line], values: list[bytes]) -> Pushed:
    """Lists over every connection, some of each under way, until the time is over."""
    records = 0
    before, begun = Usage.now(), time.monotonic_ns()
    over = begun + int(task.options.seconds * 1e9)
    while time.monotonic_ns() < over:
        is_full = True
        for line in lines:
            while line.flying and line.flying[0].done():
                records += _settled(line)
            if len(line.flying) < FLYING:
                _send(task.topic, line, values)
                is_full = False
        if is_full:
            records += _settled(lines[0])
    for line in lines:
        while line.flying:
            records += _settled(line)
    return Pushed(begun, time.monotonic_ns(), records, Usage.now().since(before))


def _send(topic: str, line: _Line, values: list[bytes]) -> None:
    line.flying.append(line.producer.send_batch(topic, values, partition=line.partition))


def _settled(line: _Line) -> int:
    """Returns the number of records of its oldest list, once they are acknowledged."""
    return sum(receipt.count for receipt in line.flying.popleft().result(WAIT))


# --- the run ------------------------------------------------------------------------------------
def run(options: ConnectionsOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    arguments = (
        "--clients-max", str(ROOM), "--lanes-max", str(LANES), "--lane-capacity", str(LANE_BYTES),
        "--connections-max", str(LANES),
    )  # fmt: skip
    with (
        ground(options, options.bytes_needed, arguments) as place,
        place.topic(options.partitions) as topic,
    ):
        result = _measure(options, place, topic, progress)
    progress.end()
    return {
        "benchmark": "connections",
        **result,
        "started_in": place.started_in and round(place.started_in, 3),
        "filesystem": place.filesystem,
        "options": options.stated(),
    }


def _measure(
    options: ConnectionsOptions, place: MeasuredNode, topic: str, progress: BenchProgress
) -> dict[str, Any]:
    servers = place.server_pids()
    memory = [_resident(servers)]
    names = [f"clients-{index}" for index in range(len(options.shares))]
    with Crew(options.timeout) as crew:
        progress.say("connect")
        begun = time.monotonic()
        for name, own in zip(names, options.shares, strict=True):
            crew.add(name, connections, ConnectionsTask(options, place.door, topic, own))
        crew.gather("connected")
        connected = time.monotonic() - begun
        servers = place.server_pids()  # writers come with the first partition
        progress.say("idle")
        memory.append(_resident(servers))
        before = cpu_seconds_of(servers)
        time.sleep(options.seconds)
        idle = differences(before, cpu_seconds_of(servers))
        progress.say("requests")
        before = cpu_seconds_of(servers)
        crew.tell("requests")
        paced: dict[str, Paced] = crew.gather("done with requests")
        requests = differences(before, cpu_seconds_of(servers))
        progress.say("lists")
        before, log = cpu_seconds_of(servers), place.log_of(topic)[0]
        all_before = machine_cpu_seconds()
        crew.tell("lists")
        pushed: dict[str, Pushed] = crew.gather("done with lists")
        lists = differences(before, cpu_seconds_of(servers))
        all_cpu = machine_cpu_seconds() - all_before
        memory.append(_resident(servers))
        appended = place.log_of(topic)[0] - log
        crew.tell("leave")
        crew.dismiss()
    records = sum(each.records for each in pushed.values())
    took = np.concatenate([each.took for each in paced.values()])
    late = np.concatenate([each.late for each in paced.values()])
    span = max(each.ended for each in pushed.values()) - min(each.begun for each in pushed.values())
    clients = {name: round(pushed[name].usage.cpu_seconds, 3) for name in names}
    return {
        "connections": options.connections,
        "records_per_second": round(records / (span / 1e9)),
        **percentiles(took),
        "sent_late": percentiles(late),
        "requests": len(took),
        "connect_seconds": round(connected, 3),
        "records": records,
        "lost": max(0, records - appended),
        "doubled": max(0, appended - records),
        **_gateway(options, memory, idle),
        "idle_cpu_seconds": idle,
        "requests_cpu_seconds": requests,
        "cpu_seconds": {**clients, **lists},
        "machine_cpu_seconds": round(all_cpu, 3),
    }


def _gateway(
    options: ConnectionsOptions, memory: list[float | None], idle: dict[str, float]
) -> dict[str, Any]:
    """Returns the gateway's memory and time for each connection."""
    before, attached, after = memory
    if before is None or attached is None or "gateway" not in idle:
        return {}
    percent = 100 * idle["gateway"] / options.seconds
    return {
        "gateway_mb": {"before": before, "connected": attached, "after": after},
        "gateway_kb_per_connection": round(1000 * (attached - before) / options.connections, 1),
        "gateway_idle_cpu_percent": round(percent, 2),
        "gateway_idle_cpu_percent_per_connection": round(percent / options.connections, 4),
    }


def _resident(servers: dict[str, int]) -> float | None:
    """Megabytes of the gateway, where there is one on this host."""
    return memory_of(servers["gateway"]).resident if "gateway" in servers else None
