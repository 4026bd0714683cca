"""A throughput run from end to end: records a second from the first send to the last one checked.

The clock starts when the first producer begins its first send, all processes being warm and
attached by then. It stops when the last consumer has received and checked its last record. Every
record is appended to segment files; the log's own count is reported beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from penstock.bench import pagecache, roles
from penstock.bench.crew import Crew
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.ledger import settle
from penstock.bench.options import ThroughputOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.usage import (
    cpu_seconds_of,
    differences,
    machine_cpu_seconds,
    memory_of,
)

Result = dict[str, Any]


def run(options: ThroughputOptions, progress: BenchProgress) -> Result:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    payload_bytes = options.records * options.size
    with ground(options, options.bytes_needed) as place:
        progress.say("page cache")
        speed = pagecache.measure(place.folder, payload_bytes) if place.folder else None
        with place.topic(options.partitions, options.durability) as topic:
            result = measure(options, place, topic, progress)
    seconds = result["seconds"]
    megabytes = payload_bytes / seconds / 1e6
    raw = {} if speed is None else {
        "pwrite_mb_per_second": round(speed.median, 1),
        "pwrite_best_mb_per_second": round(speed.best, 1),
        "pwrite_first_mb_per_second": round(speed.first, 1),
        "pwrite_measured": speed.method,
        "share_of_pwrite": round(megabytes / speed.median, 3),
    }  # fmt: skip
    return {
        "benchmark": "throughput",
        "records_per_second": round(options.records / seconds),
        "mb_per_second": round(megabytes, 1),
        **raw,
        **result,
        "started_in": place.started_in and round(place.started_in, 3),
        "filesystem": place.filesystem,
        "options": options.stated(),
    }


def measure(
    options: ThroughputOptions,
    place: MeasuredNode,
    topic: str,
    progress: BenchProgress,
    start: int | Literal["earliest"] = "earliest",
) -> Result:
    """Makes the run itself, on a topic whose consumers begin at `start`."""
    producers = [f"producer-{index}" for index in range(options.producers)]
    consumers = [f"consumer-{index}" for index in range(options.consumers)]
    with Crew(options.timeout) as crew:
        for role, names in ((roles.produce, producers), (roles.consume, consumers)):
            for index, name in enumerate(names):
                crew.add(name, role, roles.RoleTask(options, place.door, topic, index, start))
        progress.say("attach")
        crew.gather("attached")
        progress.say("warm up")
        crew.tell("warm", consumers + producers)
        crew.gather("warm")
        servers = place.server_pids()
        log_before = place.log_of(topic)
        cpu_before, all_before = cpu_seconds_of(servers), machine_cpu_seconds()
        progress.begin(options.records)
        crew.tell("go", consumers + producers)
        reports = crew.gather(
            "done", progress.watching(lambda: place.log_of(topic)[0] - log_before[0])
        )
        cpu = differences(cpu_before, cpu_seconds_of(servers))
        all_cpu = machine_cpu_seconds() - all_before
        log = place.log_of(topic)
        memory = memory_of(servers["writer-0"]) if "writer-0" in servers else None
        crew.tell("leave")
        crew.dismiss()
    progress.end()
    produced: list[roles.Produced] = [reports[name] for name in producers]
    consumed: list[roles.Consumed] = [reports[name] for name in consumers]
    account = settle([each.book for each in consumed])
    begun = min(each.begun for each in produced)
    ends = options.producers * options.partitions
    return {
        "lost": account.lost,
        "doubled": account.doubled,
        "out_of_order": account.out_of_order,
        "foreign": account.foreign,
        "records": options.records,
        "received": account.received,
        "appended": log[0] - log_before[0] - ends,
        "log_bytes": log[1] - log_before[1],
        "segment_bytes": place.folder and segment_bytes(place.folder),
        "durability": min((each.durability for each in produced), key=_LEVELS.index),
        "seconds": round((max(each.ended for each in consumed) - begun) / 1e9, 4),
        "produce_seconds": round((max(each.acknowledged for each in produced) - begun) / 1e9, 4),
        "cpu_seconds": {
            **{name: round(reports[name].usage.cpu_seconds, 3) for name in producers + consumers},
            **cpu,
        },
        "machine_cpu_seconds": round(all_cpu, 3),
        **{
            use: {name: getattr(reports[name].usage, use) for name in producers + consumers}
            for use in ("page_faults", "sleeps", "preempted")
        },
        "writer_resident_mb": memory and memory.resident,
        "writer_private_mb": memory and memory.private,
        "producer_metrics": _summed([each.metrics for each in produced]),
        "consumer_metrics": _summed([each.metrics for each in consumed]),
        "gc": "on; gc.freeze() in producers and consumers before each phase",
    }


_LEVELS = ("ring", "appended", "fsynced", "committed")


def _summed(parts: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def segment_bytes(folder: Path) -> int:
    """Returns the bytes that all segment files below the data folder take on the device."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob("**/*.log"))
