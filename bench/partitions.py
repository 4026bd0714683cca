"""A node of many partitions: seconds to make them and to start on them, memory, descriptors, CPU.

Each partition gets a record, and after every start all of them are read again: what is missing is
counted as lost.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from penstock.bench.progress import BenchProgress
from penstock.bench.scratch import scratch_folder
from penstock.bench.usage import cpu_seconds_of, differences, memory_of, server_pids
from penstock.client.admin.admin import TopicConfig
from penstock.testing.embedded import EmbeddedNode

TOPIC: Final = "many"
BYTES_EACH: Final = 100_000
"""Disk for one partition, generously: its files and folder are small, but take whole blocks."""
WAIT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsOptions:
    """partitions: how many, in one topic. idle: seconds for which the idle node is watched."""

    partitions: int = 1000
    idle: float = 10.0
    writers: int | None = None
    data: Path | None = None


def run(options: PartitionsOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes them, uses them, watches them idle, starts on them after a stop and after a kill."""
    count = options.partitions
    arguments = ("--partitions-max", str(max(count, 1024)), "--drain-timeout", str(WAIT))
    with (
        scratch_folder(options.data, count * BYTES_EACH) as folder,
        EmbeddedNode(
            folder, writers=options.writers, arguments=arguments, ready_timeout=WAIT
        ) as node,
    ):
        progress.say(f"create {count:,} partitions")
        with node.connect() as client, client.admin(timeout=WAIT) as admin:
            begun = time.monotonic()
            admin.create_topic(TOPIC, TopicConfig(partitions=count))
            created = time.monotonic() - begun
            begun = time.monotonic()
            with client.producer() as producer:
                for partition in range(count):
                    producer.send(TOPIC, b"%d" % partition, partition=partition)
            produced = time.monotonic() - begun
            servers = server_pids(client)
            progress.say(f"idle for {options.idle:g} s")
            before, begun = cpu_seconds_of(servers), time.monotonic()
            time.sleep(options.idle)
            used = differences(before, cpu_seconds_of(servers))
            watched = time.monotonic() - begun
            memory = {name: memory_of(pid) for name, pid in servers.items()}
            descriptors = {
                name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in servers.items()
            }
        progress.say("stop and start")
        begun = time.monotonic()
        node.stop(WAIT)
        stopped = time.monotonic() - begun
        node.start()
        clean, lost = node.started_in, count - _records(node)
        progress.say("kill and start")
        kill_all(node)
        node.start()
        killed, lost = node.started_in, lost + count - _records(node)
    progress.end()
    return {
        "benchmark": "partitions",
        "create_seconds": round(created, 3),
        "first_records_seconds": round(produced, 3),
        "stop_seconds": round(stopped, 3),
        "start_clean_seconds": round(clean, 3),
        "start_killed_seconds": round(killed, 3),
        "idle_cpu_percent": round(100 * sum(used.values()) / watched, 2),
        "descriptors": descriptors,
        "resident_mb": {name: found.resident for name, found in memory.items()},
        "private_mb": {name: found.private for name, found in memory.items()},
        "lost": lost,
        "options": {"partitions": count, "idle": options.idle, "writers": options.writers},
    }


def _records(node: EmbeddedNode) -> int:
    """Returns how many records a consumer of all partitions gets."""
    found = 0
    with node.connect() as client, client.consumer(TOPIC) as consumer:
        wanted = sum(consumer.end_offsets().values())
        deadline = time.monotonic() + WAIT
        while found < wanted and time.monotonic() < deadline:
            found += len(consumer.poll(timeout=1.0))
    return found


def kill_all(node: EmbeddedNode) -> None:
    """Sends SIGKILL to the node and all that it started, and waits until they are gone."""
    processes = psutil.Process(node.pid).children()
    node.kill()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=WAIT)
