"""The cost of a node before it does anything: seconds to start, memory, CPU while idle."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bench.progress import BenchProgress
from penstock.bench.usage import cpu_seconds_of, differences, memory_of, server_pids
from penstock.client.admin.admin import TopicConfig
from penstock.testing.embedded import EmbeddedNode

RESULT_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintOptions:
    """starts: how often a node is started again. idle: seconds for which one is watched."""

    starts: int = 5
    idle: float = 10.0
    data: Path | None = None


def run(options: FootprintOptions, progress: BenchProgress) -> dict[str, Any]:
    """Returns the medians of several starts, and of an idle node with a producer and a consumer
    attached."""
    ready, first = [], []
    for _ in range(options.starts):
        progress.say("start")
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.data) as folder:
            begun = time.monotonic()
            with EmbeddedNode(folder) as node, node.connect() as client:
                client.admin().create_topic("first")
                client.producer().send_and_wait("first", b"hello", timeout=RESULT_TIMEOUT)
                first.append(time.monotonic() - begun)
                ready.append(node.started_in)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.data) as folder,
        EmbeddedNode(folder) as node,
        node.connect() as client,
    ):
        client.admin().create_topic("idle", TopicConfig(partitions=2))
        client.producer().send_and_wait("idle", b"hello", timeout=RESULT_TIMEOUT)
        consumer = client.consumer("idle")
        consumer.poll(timeout=RESULT_TIMEOUT)
        servers = server_pids(client)
        progress.say(f"idle for {options.idle:g} s")
        before, begun = cpu_seconds_of(servers), time.monotonic()
        consumer.poll(timeout=options.idle)  # nothing comes: it sleeps, as an idle client does
        watched = time.monotonic() - begun
        used = differences(before, cpu_seconds_of(servers))
        memory = {name: memory_of(pid) for name, pid in servers.items()}
    progress.end()
    return {
        "benchmark": "footprint",
        "start_to_ready": round(statistics.median(ready), 3),
        "start_to_first_ack": round(statistics.median(first), 3),
        "start_to_first_ack_max": round(max(first), 3),
        "idle_cpu_percent": round(100 * sum(used.values()) / watched, 2),
        "idle_cpu_percent_of": {
            name: round(100 * value / watched, 2) for name, value in used.items()
        },
        "resident_mb": {name: found.resident for name, found in memory.items()},
        "private_mb": {name: found.private for name, found in memory.items()},
        "options": {"starts": options.starts, "idle": options.idle},
    }
