"""Many partitions on several brokers: seconds to create, lead again and start, and memory.

It measures the seconds to make them, and to lead them again when a broker or the controller dies.
It measures the seconds to start on them, and the memory of every process. Each partition gets a
record, committed; in the end all of them are read again: missing ones are counted as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.progress import BenchProgress
from penstock.bench.scratch import scratch_folder
from penstock.bench.usage import broker_pids, cpu_seconds_of, differences, memory_of
from penstock.client.admin.admin import TopicConfig
from penstock.testing.cluster_monitor import Lookout, View
from penstock.testing.embedded_cluster import EmbeddedCluster, start_together

TOPIC: Final = "many"
REPLICAS: Final = 3
BYTES_EACH: Final = 100_000
"""Disk for one replica of a partition, generously: its files are small, but take whole blocks."""
WAIT: Final = 240.0
LOOK: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartitionsOptions:
    """partitions: how many, in one topic of three replicas. idle: seconds for which the idle
    cluster is watched."""

    partitions: int = 1000
    brokers: int = 3
    idle: float = 10.0
    writers: int | None = None
    data: Path | None = None


def run(options: ClusterPartitionsOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes them, uses them, watches them idle, kills the controller, starts all of it again."""
    count = options.partitions
    if options.brokers < REPLICAS or count < 1:
        raise BenchError(f"--brokers: from {REPLICAS} on; --partitions: from 1 on")
    room = str(max(2 * count, 1024))
    with (
        scratch_folder(options.data, REPLICAS * count * BYTES_EACH) as folder,
        EmbeddedCluster(
            options.brokers,
            folder=folder,
            writers=options.writers,
            arguments=("--partitions-max", room, "--drain-timeout", "60"),
            ready_timeout=WAIT,
        ) as cluster,
    ):
        progress.say(f"create {count:,} partitions")
        made = _make(cluster, count)
        progress.say(f"idle for {options.idle:g} s")
        servers = broker_pids(cluster)
        before, begun = cpu_seconds_of(servers), time.monotonic()
        time.sleep(options.idle)
        used = differences(before, cpu_seconds_of(servers))
        watched = time.monotonic() - begun
        memory = {name: memory_of(pid).resident for name, pid in servers.items()}
        progress.say("kill the controller")
        failed_over = _kill_the_controller(cluster, count)
        progress.say("stop all, start all")
        begun = time.monotonic()
        for node in cluster.nodes.values():
            node.terminate()
        for node in cluster.nodes.values():
            node.stop(WAIT)
        stopped = time.monotonic() - begun
        begun = time.monotonic()
        start_together(cluster.nodes)
        started = time.monotonic() - begun
        lost = count - _records(cluster, count)
    progress.end()
    return {
        "benchmark": "cluster-partitions",
        **made,
        **failed_over,
        "stop_all_seconds": round(stopped, 3),
        "start_all_seconds": round(started, 3),
        "idle_cpu_percent": round(100 * sum(used.values()) / watched, 2),
        "resident_mb": memory,
        "lost": lost,
        "options": {
            "partitions": count,
            "brokers": options.brokers,
            "idle": options.idle,
            "writers": options.writers,
        },
    }


def _watch(cluster: EmbeddedCluster) -> Lookout:
    connects = [node.connect_tcp for node in cluster.nodes.values()]
    return Lookout(connects, [TOPIC], interval=LOOK)


def _make(cluster: EmbeddedCluster, count: int) -> dict[str, float]:
    """Makes the topic, and a record in each partition."""
    with (
        _watch(cluster) as lookout,
        cluster.connect() as client,
        client.admin(timeout=WAIT) as admin,
    ):
        begun = time.monotonic()
        admin.create_topic(TOPIC, TopicConfig(partitions=count, replication_factor=REPLICAS))
        created = time.monotonic() - begun
        _until(lookout, lambda view: _is_whole(view, count), "all partitions to be in sync")
        in_sync = time.monotonic() - begun
        begun = time.monotonic()
        with client.producer(acks="all", delivery_timeout=WAIT) as producer:
            for partition in range(count):
                producer.send(TOPIC, b"%d" % partition, partition=partition)
        produced = time.monotonic() - begun
    return {
        "create_seconds": round(created, 3),
        "in_sync_seconds": round(in_sync, 3),
        "first_records_seconds": round(produced, 3),
    }


def _kill_the_controller(cluster: EmbeddedCluster, count: int) -> dict[str, float]:
    """Kills the controller and starts it again."""
    with _watch(cluster) as lookout:
        _until(lookout, lambda view: _is_whole(view, count), "all partitions to be in sync")
        victim = lookout.views[-1].controller
        led = len(lookout.views[-1].leads(victim))
        begun = time.monotonic()
        cluster.nodes[victim].kill_all()
        _until(lookout, lambda view: view.controller not in (-1, victim), "another controller")
        decided = lookout.views[-1].at - begun
        _until(lookout, lambda view: not view.leads(victim) and not view.leads(-1), "all led again")
        led_again = lookout.views[-1].at - begun
        begun = time.monotonic()
        cluster.nodes[victim].start()
        back = time.monotonic() - begun
        _until(lookout, lambda view: _is_whole(view, count), "all partitions to be in sync again")
        caught_up = time.monotonic() - begun
    return {
        "controller_failover_seconds": round(decided, 3),
        "led_again_seconds": round(led_again, 3),
        "led_by_the_killed": led,
        "restart_seconds": round(back, 3),
        "caught_up_seconds": round(caught_up, 3),
    }


def _is_whole(view: View, count: int) -> bool:
    is_led = all(placed.leader >= 0 for placed in view.partitions.values())
    return len(view.partitions) == count and is_led and not view.behind()


def _until(lookout: Lookout, holds: Callable[[View], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not lookout.views or not holds(lookout.views[-1]):
        if time.monotonic() > deadline:
            raise BenchTimeout(f"waited {WAIT:.0f} s for {what}")
        time.sleep(LOOK)


def _records(cluster: EmbeddedCluster, wanted: int) -> int:
    """Returns how many records a consumer of all partitions gets."""
    found = 0
    with cluster.connect() as client, client.consumer(TOPIC) as consumer:
        deadline = time.monotonic() + WAIT
        while found < wanted and time.monotonic() < deadline:
            found += len(consumer.poll(timeout=1.0))
    return found
