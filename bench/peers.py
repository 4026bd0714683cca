"""Penstock beside other logs and queues: the same work from Python, side by side in turns.

All servers run all the time, each in a folder of the run, and turns go round them, so that whatever
else the machine does meets each. Every record is checked: how many, in which order, and by a digest
of all of them. A peer that cannot be measured here is left out, with the reason.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from penstock.bench import kafkajars, kafkatools, latency, machine, payload, queues
from penstock.bench.crew import Crew, Station
from penstock.bench.errors import BenchError
from penstock.bench.ground import filesystem_of
from penstock.bench.ledger import Ledger, settle, stamps_of
from penstock.bench.options import LATENCY_HEAD, LatencyOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.queues import QueueOptions
from penstock.bench.report import faults_of
from penstock.bench.scratch import scratch_folder
from penstock.bench.streamkafka import KafkaStreamDoor, kafka_stream
from penstock.bench.streamnats import nats_stream
from penstock.bench.streampeers import END, Address, StreamDoor, StreamPeer, StreamPlace
from penstock.bench.streampenstock import penstock_stream
from penstock.bench.streamrabbit import rabbit_stream
from penstock.bench.streamredis import redis_stream

Result = dict[str, Any]

STREAMS: Final = (
    penstock_stream("shm"),
    penstock_stream("tcp"),
    kafka_stream(),
    redis_stream(),
    nats_stream(),
    rabbit_stream(),
)
SERVERS: Final = ("kafka", "redis", "nats", "rabbitmq")
"""Those that may run already."""
WORK: Final = ("throughput", "latency", "jobs", "tools")
SIZES: Final = (100, 1024)
POOL: Final = 8192
WARM_UP: Final = 2000
CHECK_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersOptions:
    """work: one of `WORK`; "": all. records: of a turn of throughput; some peers are given a share
    or a multiple. rate, seconds: of a turn of latency, behind
    `warmup` seconds that do not count. jobs: of a turn of the work queues. turns:
    of which the median counts. only: the peers whose key contains it. kafka, redis, nats, rabbitmq:
    addresses of such as run already. jars: the folder of Kafka's; None: the cache. data: where the
    run's folder is made. timeout: seconds for a turn."""

    work: str = ""
    records: int = 400_000
    rate: float = 1000.0
    seconds: float = 3.0
    warmup: float = 1.0
    jobs: int = 50_000
    turns: int = 3
    only: str = ""
    kafka: str = ""
    redis: str = ""
    nats: str = ""
    rabbitmq: str = ""
    jars: Path | None = None
    data: Path | None = None
    timeout: float = 120.0

    def check(self) -> None:
        """Raise `BenchError` for what cannot be run."""
        if self.work and self.work not in WORK:
            raise BenchError(f"--work {self.work}: one of {', '.join(WORK)}")
        if min(self.records, self.jobs, self.turns) < 1:
            raise BenchError("--records, --jobs and --turns: at least one")
        if self.timeout <= 0:
            raise BenchError("--timeout: more than 0 seconds")
        self.latency().check()
        for name in SERVERS:
            self.address(name)
        if not self.chosen():
            keys = ", ".join(peer.key for peer in STREAMS)
            raise BenchError(f"--only {self.only}: no peer's key contains that: {keys}")

    def does(self, work: str) -> bool:
        return self.work in ("", work)

    def chosen(self) -> list[StreamPeer]:
        return [peer for peer in STREAMS if self.only in peer.key]

    def address(self, server: str) -> Address | None:
        """Of such a server that runs already."""
        text = getattr(self, server) if server in SERVERS else ""
        return Address.parse(server, text) if text else None

    def latency(self) -> LatencyOptions:
        return LatencyOptions(rate=self.rate, seconds=self.seconds, warmup=self.warmup, spin=0.0)

    def stated(self) -> Result:
        found = asdict(self)
        for name in ("jars", "data", "timeout"):  # of this machine
            del found[name]
        return found


@dataclass(slots=True)
class Running:
    """A peer whose server runs."""

    peer: StreamPeer
    place: StreamPlace
    door: StreamDoor
    found: Result = field(default_factory=dict)


# --- the two processes --------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class StreamTask:
    """The task of a member of a turn. `size`: bytes of a value; 0: it is a turn of latency."""

    door: StreamDoor
    topic: str
    records: int
    size: int
    latency: LatencyOptions

    @property
    def pool(self) -> list[bytes]:
        return payload.make_pool(0, POOL, self.size)


class CheckedStream:
    """The reader's account: keeps values, and checks them some thousand at a time."""

    def __init__(self, total: int) -> None:
        self._values: list[bytes] = []
        self._ledger = Ledger([total], POOL)
        self.digest = 0

    def take(self, value: bytes) -> None:
        self._values.append(value)
        if len(self._values) >= CHECK_EVERY:
            self.settle()

    def settle(self) -> None:
        if self._values:
            self._ledger.add(0, stamps_of(self._values))
            self.digest = crc32c(b"".join(self._values), self.digest)
            self._values.clear()

    def account(self, pool: list[bytes], records: int) -> Result:
        """The faults, all zero where there is none."""
        told = settle([self._ledger.close()])
        sent = 0
        for some in payload.lists_of(pool, POOL, records):
            sent = crc32c(b"".join(some), sent)
        faults = {name: getattr(told, name) for name in ("lost", "doubled", "out_of_order")}
        changed = not any(faults.values()) and not told.foreign and sent != self.digest
        return {**faults, "foreign": told.foreign + changed}


def send_stream(task: StreamTask, station: Station) -> None:
    """Send the records of a turn, behind some that warm up. Reports when it began."""
    quick = not task.size
    with closing(task.door.sender(quick=quick)) as sender:
        if quick:
            latency.sharpen_timers()
            sender.send(task.topic, END)
            station.report()
            station.await_order()
            gc.freeze()
            latency.send_on_schedule(sender, task.topic, task.latency, None)
            sender.send_all(task.topic, [END])
            station.report()
        else:
            pool = task.pool
            sender.send_all(task.topic, [*payload.cycled(pool, WARM_UP), END])
            station.report()
            station.await_order()
            gc.freeze()
            begun = time.monotonic()
            sender.send_all(task.topic, payload.cycled(pool, task.records))
            sender.send_all(task.topic, [END])
            station.report(begun)
        station.await_order()


def read_stream(task: StreamTask, station: Station) -> None:
    """Read them. Reports when the last one was checked, and what is wrong, or when each came."""
    with closing(task.door.reader(task.topic, quick=not task.size)) as reader:
        reader.read(lambda value: None)  # what warms up
        station.report()
        station.await_order()
        gc.freeze()
        if task.size:
            checked = CheckedStream(task.records)
            reader.read(checked.take)
            checked.settle()
            ended = time.monotonic()
            station.report((ended, checked.account(task.pool, task.records)))
        else:
            latency.sharpen_timers()
            station.report(_timed(reader.read))
        station.await_order()


def _timed(read: Any) -> tuple[bytes, list[int]]:
    clock, values, received = time.monotonic_ns, list[bytes](), list[int]()

    def take(value: bytes) -> None:
        received.append(clock())
        values.append(value)

    read(take)
    return b"".join(value[:LATENCY_HEAD] for value in values), received


# --- the run ------------------------------------------------------------------------------------
def run(options: PeersOptions, progress: BenchProgress) -> Result:
    """Make the run; the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    result: Result = {"benchmark": "peers", "peers": {}}
    needed = 12 * options.turns * options.records * sum(SIZES) + (1 << 30)
    with scratch_folder(options.data, needed) as folder:
        result["filesystem"] = filesystem_of(folder)
        if any(map(options.does, ("throughput", "latency", "tools"))):
            with ExitStack() as stack:
                result["peers"] = _streams(options, folder, stack, progress)
        if options.does("jobs"):
            result["jobs"] = _jobs(options, progress)
    progress.end()
    faults = [*result["peers"].values(), result.get("jobs", {})]
    return {
        **result,
        **faults_of(faults),
        "machine": machine.describe().as_dict(),
        "options": options.stated(),
    }


def _streams(
    options: PeersOptions, folder: Path, stack: ExitStack, progress: BenchProgress
) -> Result:
    told: Result = {}
    running: list[Running] = []
    for peer in options.chosen():
        progress.say(f"start {peer.key}")
        own = folder / peer.key
        own.mkdir()
        place = StreamPlace(own, options.address(peer.server), options.jars)
        told[peer.key] = {"name": peer.name}
        if (why := peer.missing(place)) is not None:
            told[peer.key]["skipped"] = why
            print(f"penstock bench peers: {peer.key} is left out: {why}", file=sys.stderr)
            continue
        try:
            running.append(Running(peer, place, stack.enter_context(peer.serve(place))))
        except Exception as error:  # each client has its own
            told[peer.key] |= _failed(peer, error)
    _in_turns(options, running, progress)
    if options.does("tools"):
        _tools(options, running, progress)
    for each in running:
        told[each.peer.key] |= {**each.found, **_facts(each)}
    return told


def _failed(peer: StreamPeer, error: Exception) -> Result:
    print(f"penstock bench peers: {peer.key}: {error}", file=sys.stderr)
    return {"failed": 1, "why": (str(error).strip().splitlines() or [type(error).__name__])[-1]}


def _facts(one: Running) -> Result:
    peer = one.peer
    return {
        "client": peer.client,
        "kept": peer.kept,
        "settings": peer.settings,
        "versions": peer.versions(one.place),
    }


def _in_turns(options: PeersOptions, running: list[Running], progress: BenchProgress) -> None:
    """Each turn goes round all of them, in the other direction each time."""
    for turn in range(options.turns):
        for one in running if turn % 2 else reversed(running):
            if "failed" in one.found:
                continue
            progress.say(f"turn {turn + 1}: {one.peer.key}")
            try:
                if options.does("throughput"):
                    for size in SIZES:
                        _add(one.found, _throughput(options, one, size))
                if options.does("latency"):
                    _add(one.found, _latency(options, one))
            except Exception as error:
                one.found |= _failed(one.peer, error)
    for one in running:
        _settle(one.found)


def _add(found: Result, turn: Result) -> None:
    """Keep each figure of a turn beside those of the others, and add up faults."""
    for name, value in turn.items():
        if isinstance(value, float):
            found.setdefault(name, []).append(value)
        else:
            found[name] = found.get(name, 0) + value


def _settle(found: Result) -> None:
    """The median of each figure, with the turns beside it."""
    for name, values in [pair for pair in found.items() if isinstance(pair[1], list)]:
        found[name] = round(statistics.median(values))
        found[f"{name}_turns"] = [round(value) for value in values]


def _topic() -> str:
    return f"bench-{os.getpid()}-{os.urandom(3).hex()}"


def _measured(options: PeersOptions, task: StreamTask) -> tuple[Any, Any]:
    task.door.create(task.topic)
    with Crew(options.timeout) as crew:
        crew.add("reader", read_stream, task)
        crew.add("sender", send_stream, task)
        crew.gather("attached")
        crew.tell("go")
        reports = crew.gather("done")
        crew.tell("leave")
        crew.dismiss()
    return reports["sender"], reports["reader"]


def _throughput(options: PeersOptions, one: Running, size: int) -> Result:
    records = max(POOL, round(options.records * one.peer.records))
    task = StreamTask(one.door, _topic(), records, size, options.latency())
    begun, (ended, account) = _measured(options, task)
    return {f"records_per_second_{size}": records / (ended - begun), **account}


def _latency(options: PeersOptions, one: Running) -> Result:
    chosen = options.latency()
    _, (heads, received) = _measured(options, StreamTask(one.door, _topic(), 0, 0, chosen))
    table = np.frombuffer(heads, latency.HEAD_FIELDS)
    told = latency.summary(chosen, table, np.array(received, np.int64))
    faults = {name: told.get(name, 0) for name in ("lost", "doubled", "out_of_order", "foreign")}
    return {**{name: float(told[name]) for name in ("p50_us", "p99_us") if name in told}, **faults}


def _tools(options: PeersOptions, running: list[Running], progress: BenchProgress) -> None:
    """Kafka's own, where a broker of Kafka is of this run."""
    for one in running:
        if not isinstance(one.door, KafkaStreamDoor) or one.place.address is not None:
            continue
        jars = kafkajars.fetched(options.jars)
        one.found["tools"] = {}
        for size in SIZES:
            progress.say(f"Kafka's own tools, {size} B")
            topic = _topic()
            one.door.create(topic)
            one.found["tools"][str(size)] = kafkatools.measure(
                jars, one.door.address, one.place.folder, topic, 5 * options.records, size
            )


def _jobs(options: PeersOptions, progress: BenchProgress) -> Result:
    """The work queues beside each other, one server after the other."""
    found: Result = {}
    jars = None
    chosen = QueueOptions(
        jobs=options.jobs, turns=options.turns, tries=0, only=options.only, data=options.data
    )
    if any(peer.key == "kafka" for peer in chosen.chosen()):
        jars = None if kafkajars.missing(options.jars) else kafkajars.fetched(options.jars)
    found = queues.run(replace(chosen, kafka=jars), progress)
    return {"peers": found["peers"], **faults_of([found])}
