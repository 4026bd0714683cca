"""The set that `make bench` runs, and the page it writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.bench import (
    backlog,
    cluster,
    clusterpartitions,
    compare,
    connections,
    curves,
    footprint,
    groups,
    latency,
    machine,
    partitions,
    recovery,
    report,
    spark,
    throughput,
)  # fmt: skip
from penstock.bench.backlog import BacklogOptions
from penstock.bench.cluster import ClusterOptions
from penstock.bench.clusterpartitions import ClusterPartitionsOptions
from penstock.bench.compare import CompareOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.errors import BenchError
from penstock.bench.footprint import FootprintOptions
from penstock.bench.groups import GroupsOptions
from penstock.bench.options import LatencyOptions, ThroughputOptions, Transport
from penstock.bench.partitions import PartitionsOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.recovery import RecoveryOptions
from penstock.bench.sparktopics import SparkOptions, missing

Result = dict[str, Any]
AnyOptions = (
    ThroughputOptions | LatencyOptions | FootprintOptions | PartitionsOptions | RecoveryOptions
    | BacklogOptions | GroupsOptions | ConnectionsOptions | CompareOptions
    | SparkOptions | ClusterOptions | ClusterPartitionsOptions
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark of the set; `rank`: the field by which runs are compared."""

    name: str
    options: AnyOptions
    rank: str

    @property
    def command(self) -> list[str]:
        """The arguments of `penstock bench` that make this run."""
        kind = _KINDS[type(self.options)]
        plain = type(self.options)()
        given = []
        for name in self.options.__dataclass_fields__:
            value = getattr(self.options, name)
            if name != "data" and (value != getattr(plain, name) or name in _ALWAYS[kind]):
                flag = f"--{name.replace('_', '-')}"
                given += [flag] if value is True else [flag, f"{value}"]
        return [kind, *given]


_KINDS: dict[type, str] = {
    ThroughputOptions: "throughput",
    LatencyOptions: "latency",
    FootprintOptions: "footprint",
    PartitionsOptions: "partitions",
    RecoveryOptions: "recovery",
    BacklogOptions: "backlog",
    GroupsOptions: "groups",
    ConnectionsOptions: "connections",
    CompareOptions: "compare",
    SparkOptions: "spark",
    ClusterOptions: "cluster",
    ClusterPartitionsOptions: "cluster-partitions",
}
_ALWAYS = {
    "throughput": {"size", "records", "api"},
    "latency": {"rate", "seconds", "size"},
    "footprint": set[str](),
    "partitions": {"partitions"},
    "recovery": {"gb", "tail_mb"},
    "backlog": {"gb"},
    "groups": {"members", "partitions"},
    "connections": {"connections"},
    "compare": {"transport", "against"},
    "spark": {"size", "records"},
    "cluster": {"brokers", "rounds", "mb"},
    "cluster-partitions": {"partitions"},
}


def _send(name: str, **options: Any) -> Row:
    return Row(name, ThroughputOptions(**options), "records_per_second")


def _latency(name: str, **options: Any) -> Row:
    return Row(name, LatencyOptions(**options), "p50_us")


ROWS: tuple[Row, ...] = (
    _send("`send`, 1 KB", size=1024, records=3_000_000),
    _send("`send`, 1 KB, acks=0", size=1024, records=3_000_000, acks=0),
    _send("`send`, 1 KB, lz4", size=1024, records=2_000_000, codec="lz4"),
    _send("`send`, 1 KB, fsync before each acknowledgement", size=1024, records=1_000_000,
          durability="fsync"),
    _send("`send`, 1 KB, 2 producers, 2 partitions, 2 consumers", size=1024, records=3_000_000,
          producers=2, partitions=2, consumers=2),
    _send("`send`, 100 B", size=100, records=5_000_000),
    _send("`send`, 100 B, 10,000 keys, 4 partitions", size=100, records=3_000_000, keys=10_000,
          partitions=4),
    _send("`batch`, 100 B", size=100, records=20_000_000, api="batch"),
    _send("`batch`, 1 KB", size=1024, records=3_000_000, api="batch"),
    _send("`arrow`, 100 B", size=100, records=20_000_000, api="arrow", batch_bytes=512 << 10),
    _latency("latency, 1 KB, 1,000 records/s", rate=1000, seconds=10, size=1024),
    _latency("latency, 1 KB, 5,000 records/s", rate=5000, seconds=10, size=1024),
    _latency("latency, 1 KB, 100 records/s, fsync", rate=100, seconds=10, size=1024,
             durability="fsync"),
    Row("an empty node", FootprintOptions(), "start_to_first_ack"),
    Row("a node of 1,000 partitions", PartitionsOptions(), "start_clean_seconds"),
    Row("opening a log of 10 GB", RecoveryOptions(), "start_clean_seconds"),
    Row("`send`, 1 KB, with 10 GB unread in between", BacklogOptions(), "ratio"),
)  # fmt: skip

GROUP_ROWS: tuple[Row, ...] = (
    _send("`send`, 1 KB, without a group", size=1024, records=3_000_000),
    _send("`send`, 1 KB, consumed by a group, at least once", size=1024, records=3_000_000,
          guarantee="at-least-once"),
    _send("`send`, 1 KB, consumed by a group, at most once", size=1024, records=3_000_000,
          guarantee="at-most-once"),
    _send("`send`, 1 KB, in transactions of 10,000", size=1024, records=1_000_000,
          transaction_records=10_000),
    Row("groups", GroupsOptions(), "failover_p50_ms"),
)  # fmt: skip

_WAYS: dict[str, Transport] = {"shared memory": "shm", "TCP": "tcp", "TCP with keys": "curve"}

REMOTE_ROWS: tuple[Row, ...] = (
    *(_send(f"`send`, 1 KB, {name}", size=1024, records=3_000_000, batch_bytes=512 << 10,
            transport=way)
      for name, way in _WAYS.items()),
    *(_send(f"`batch`, 1 KB, {name}", size=1024, records=3_000_000, api="batch",
            batch_bytes=512 << 10, transport=way)
      for name, way in _WAYS.items()),
    *(_latency(f"latency, 1 KB, 1,000 records/s, {name}", rate=1_000, seconds=10, size=1024,
               transport=way)
      for name, way in _WAYS.items()),
    *(_latency(f"latency, 1 KB, 10,000 records/s, linger 1 ms, {name}", rate=10_000, seconds=10,
               size=1024, linger=0.001, spin=0.0, transport=way)
      for name, way in _WAYS.items()),
    Row("`send`, 1 KB, TCP against shared memory", CompareOptions(transport="tcp", against="shm"),
        "ratio"),
    Row("`send`, 1 KB, TCP with keys against TCP", CompareOptions(), "ratio"),
    Row("`batch`, 1 KB, TCP with keys against TCP", CompareOptions(api="batch"), "ratio"),
    *(Row(f"{count} connection{'s' if count > 1 else ''}, TCP",
          ConnectionsOptions(connections=count), "p50_us")
      for count in curves.CONNECTIONS),
    Row("500 connections, TCP with keys",
        ConnectionsOptions(connections=500, transport="curve"), "p50_us"),
    Row("groups, TCP", GroupsOptions(members=20, rounds=3, transport="tcp"), "failover_p50_ms"),
)  # fmt: skip


SPARK_ROWS: tuple[Row, ...] = (
    Row("100 B", SparkOptions(), "records_per_second"),
    Row("1 KB", SparkOptions(size=1024, records=600_000), "records_per_second"),
    Row("1 KB, TCP", SparkOptions(size=1024, records=600_000, transport="tcp"),
        "records_per_second"),
)  # fmt: skip

_THREE: dict[str, Any] = {"brokers": 3, "partitions": 3, "batch_bytes": 512 << 10}

CLUSTER_ROWS: tuple[Row, ...] = (
    *(_send(f"`send`, 1 KB, 3 brokers, acks={acks}", size=1024, records=1_500_000, acks=acks,
            **_THREE)
      for acks in (0, 1, "all")),
    _send("`batch`, 1 KB, 3 brokers, acks=all", size=1024, records=1_500_000, api="batch",
          acks="all", **_THREE),
    _send("`batch`, 1 KB, 3 brokers, acks=all, 1 replica", size=1024, records=1_500_000,
          api="batch", acks="all", replicas=1, **_THREE),
    *(_latency(f"latency, 1 KB, {rate:,} records/s, 3 brokers, acks=all", rate=rate, seconds=10,
               size=1024, acks="all", acks_latency=True, linger=0.001, spin=0.0, brokers=3)
      for rate in (1_000, 10_000)),
    Row("failover and catching up, 3 brokers", ClusterOptions(), "outage_p50_seconds"),
    Row("1,000 partitions on 3 brokers", ClusterPartitionsOptions(), "start_all_seconds"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SuitePage:
    """A file of the set. `plots`: the curves that are drawn for it. `notes`: how its rows are
    measured, where that differs from the others."""

    title: str
    rows: tuple[Row, ...]
    plots: tuple[str, ...]
    notes: tuple[str, ...] = ()


PAGES: dict[str, SuitePage] = {
    "README.md": SuitePage(
        "Benchmarks",
        ROWS,
        tuple(
            name
            for name in curves.CURVES
            if name not in ("transactions", "connections", "failover")
        ),
    ),
    "groups.md": SuitePage("Benchmarks: groups and transactions", GROUP_ROWS, ("transactions",)),
    "remote.md": SuitePage("Benchmarks: clients on other hosts", REMOTE_ROWS, ("connections",)),
    "cluster.md": SuitePage("Benchmarks: clusters", CLUSTER_ROWS, ("failover",)),
    "spark.md": SuitePage("Benchmarks: Spark", SPARK_ROWS, (), report.SPARK_NOTES),
}


def run(
    output: Path,
    *,
    data: Path | None = None,
    repeat: int = 3,
    quick: bool = False,
    only: str = "",
    page: str = "",
    quiet: bool = False,
) -> int:
    """Runs the set, or one page of it, and writes the pages into `output`; returns 0 if every check
    went well, else 1. With `only` those rows alone are run, and nothing is written."""
    if page and page not in PAGES:
        print(f"penstock bench suite: no page {page!r}: {', '.join(PAGES)}", file=sys.stderr)
        return 2
    clean, ran = True, 0
    for name, chosen in PAGES.items():
        rows = [row for row in chosen.rows if only in row.name and page in ("", name)]
        found = []
        if any(isinstance(row.options, SparkOptions) for row in rows) and (why := missing()):
            print(f"penstock bench suite: {name} is left out: {why}", file=sys.stderr)
            clean = clean and page != name
            ran += len(rows)
            continue
        for row in rows:
            options = shorter(row.options) if quick else row.options
            row = replace(row, options=replace(options, data=data))
            found.append(_measured(row, 1 if quick else repeat, quiet=quiet))
        ran += len(rows)
        clean = clean and all(report.is_clean(each) for *_, every in found for each in every)
        if rows and not only:
            output.mkdir(parents=True, exist_ok=True)
            drawn = _draw(output, chosen.plots, data=data, quick=quick, quiet=quiet)
            text = report.as_markdown(machine.describe(), found, drawn, chosen.title, chosen.notes)
            (output / name).write_text(text)
            print(f"written to {output / name}", file=sys.stderr)
    if not ran:
        print(f"penstock bench suite: no row contains {only!r}", file=sys.stderr)
        return 2
    return 0 if clean else 1


def _measured(row: Row, repeat: int, *, quiet: bool) -> report.Row:
    # The others repeat within a run what has to be repeated.
    runs = repeat if isinstance(row.options, ThroughputOptions | LatencyOptions) else 1
    results = [_run_one(row, BenchProgress(row.name, quiet=quiet)) for _ in range(runs)]
    chosen = sorted(results, key=lambda result: result.get(row.rank, 0))[len(results) // 2]
    print(f"{row.name}: {report.outcome(chosen)} ({report.verdict(chosen)})", file=sys.stderr)
    return row.name, row.command, chosen, results


def _draw(
    output: Path, names: Sequence[str], *, data: Path | None, quick: bool, quiet: bool
) -> list[str]:
    """Draws the plots and returns their file names; none where they cannot be drawn here."""
    try:
        for name in names:
            curves.run(output, data=data, quick=quick, only=name, quiet=quiet)
    except BenchError as error:
        print(f"penstock bench suite: no plots: {error}", file=sys.stderr)
    return [f"{name}.png" for name in names if (output / f"{name}.png").exists()]


def shorter(options: AnyOptions) -> AnyOptions:
    """Returns the same kind of run in a tenth of the time."""
    if isinstance(options, ThroughputOptions):
        return replace(options, records=options.records // 10)
    if isinstance(options, LatencyOptions):
        return replace(options, seconds=options.seconds / 5)
    if isinstance(options, PartitionsOptions | ClusterPartitionsOptions):
        return replace(options, partitions=options.partitions // 10, idle=2.0)
    if isinstance(options, RecoveryOptions):
        return replace(options, gb=options.gb / 10, tail_mb=max(1, options.tail_mb // 10))
    if isinstance(options, BacklogOptions):
        return replace(options, gb=options.gb / 10, records=options.records // 10, turns=2)
    if isinstance(options, GroupsOptions):
        return replace(options, members=10, partitions=40, processes=2, rounds=2, seconds=0.5)
    if isinstance(options, ConnectionsOptions):
        return replace(options, seconds=1.0)
    if isinstance(options, CompareOptions):
        return replace(options, records=options.records // 10, turns=2)
    if isinstance(options, ClusterOptions):
        return replace(options, rounds=2, mb=options.mb // 10, seconds=1.0)
    if isinstance(options, SparkOptions):
        return replace(options, records=options.records // 10, turns=1, triggers=5)
    return replace(options, starts=2, idle=2.0)


def _run_one(row: Row, progress: BenchProgress) -> Result:
    runners: dict[type, Callable[[Any, BenchProgress], Result]] = {
        ThroughputOptions: throughput.run,
        LatencyOptions: latency.run,
        FootprintOptions: footprint.run,
        PartitionsOptions: partitions.run,
        RecoveryOptions: recovery.run,
        BacklogOptions: backlog.run,
        GroupsOptions: groups.run,
        ConnectionsOptions: connections.run,
        CompareOptions: compare.run,
        SparkOptions: spark.run,
        ClusterOptions: cluster.run,
        ClusterPartitionsOptions: clusterpartitions.run,
    }
    return runners[type(row.options)](row.options, progress)
