"""The sweeps behind the plots: what is measured for each, kept as points, then drawn.

Points stay in `points.json` beside the plots, so that `--redraw` needs no measuring. Every point of
a throughput is the median of some runs, each with a node of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import numpy.typing as npt

from penstock.bench import (
    backlog,
    cluster,
    connections,
    latency,
    machine,
    plots,
    recovery,
    report,
    throughput,
)
from penstock.bench.backlog import BacklogOptions
from penstock.bench.cluster import ClusterOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.errors import BenchError
from penstock.bench.options import Api, LatencyOptions, ThroughputOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.recovery import RecoveryOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
Point = dict[str, Any]

POINTS: Final = "points.json"
RUN_BYTES: Final = 1_000_000_000
"""Bytes of values in a throughput run, so far as its records stay below `RUN_RECORDS`."""
RUN_RECORDS: Final = {"send": 2_000_000, "batch": 10_000_000, "arrow": 10_000_000}
TRANSACTIONS: Final = 500
"""Of a run with transactions at most: small ones would take minutes for its bytes."""
BATCH_BYTES: Final = 512 << 10
"""The default batch size of a producer."""
REPEAT: Final = 3
CDF_POINTS: Final = 400
LATENCY_WAYS: Final[dict[str, LatencyOptions]] = {
    "waiting": LatencyOptions(rate=1000, seconds=10, size=1024),
    "spinning": LatencyOptions(rate=1000, seconds=10, size=1024, poll_spin=0.002),
}
"""The lines that the latency plot compares."""
CONNECTIONS: Final = (1, 10, 100, 500)
FLOOR: Final = "three bare processes"


@dataclass(frozen=True, slots=True)
class CurveSweep:
    """`quick`: fewer points of a tenth of the size, one run each."""

    data: Path | None
    quick: bool
    quiet: bool

    def some(self, values: tuple[Any, ...], few: tuple[Any, ...]) -> tuple[Any, ...]:
        return few if self.quick else values

    def throughput(self, **options: Any) -> Result:
        """Returns the median of some runs."""
        options.setdefault("batch_bytes", BATCH_BYTES)
        given = ThroughputOptions(data=self.data, **options)
        records = min(RUN_RECORDS[given.api], RUN_BYTES // given.size)
        if given.transaction_records:
            records = min(records, TRANSACTIONS * given.transaction_records)
        given = replace(given, records=records // 10 if self.quick else records)
        name = f"{given.api}, {given.size} B, batches of {given.batch_bytes >> 10} KiB"
        found = [
            self.checked(throughput.run(given, BenchProgress(name, quiet=self.quiet)))
            for _ in range(1 if self.quick else REPEAT)
        ]
        return sorted(found, key=lambda result: float(result["records_per_second"]))[
            len(found) // 2
        ]

    @staticmethod
    def checked(result: Result) -> Result:
        """Raises `BenchError` for a run that lost something: it has no figure."""
        if not report.is_clean(result):
            raise BenchError(f"a run for the plots went wrong: {report.verdict(result)}")
        return result


def _point(result: Result, series: str, x: float) -> Point:
    kept = ("records_per_second", "mb_per_second", "pwrite_mb_per_second")
    return {"series": series, "x": x, **{name: result[name] for name in kept}}


def by_record_size(sweep: CurveSweep) -> Iterator[Point]:
    for api in get_args(Api):
        for size in sweep.some((16, 100, 1024, 10_240, 65_536), (100, 1024, 10_240)):
            yield _point(sweep.throughput(api=api, size=size), api, size)


def by_batch_size(sweep: CurveSweep) -> Iterator[Point]:
    for api in ("send", "batch"):
        for kib in sweep.some((16, 64, 256, 512), (64, 512)):
            result = sweep.throughput(api=api, size=1024, batch_bytes=kib << 10)
            yield _point(result, api, kib << 10)


def latency_cdf(sweep: CurveSweep) -> Iterator[Point]:
    for name, options in LATENCY_WAYS.items():
        options = replace(options, data=sweep.data, seconds=2.0 if sweep.quick else options.seconds)
        result, times, bare = latency.measure(options, BenchProgress(name, quiet=sweep.quiet))
        sweep.checked(result)
        yield _distribution(name, times)
        if not options.poll_spin and len(bare):
            yield {**_distribution(FLOOR, bare), "is_floor": True}


def _distribution(series: str, nanoseconds: npt.NDArray[np.int64]) -> Point:
    shares = np.linspace(0, 1, CDF_POINTS)
    return {
        "series": series,
        **latency.percentiles(nanoseconds),
        "us": [round(float(us), 2) for us in np.quantile(nanoseconds, shares) / 1000],
        "share": [round(float(share), 4) for share in shares],
    }


def by_backlog(sweep: CurveSweep) -> Iterator[Point]:
    for gb in sweep.some((1.0, 3.0, 10.0), (0.2, 0.5)):
        options = BacklogOptions(
            gb=gb, records=100_000 if sweep.quick else 1_000_000, turns=1 if sweep.quick else 3,
            data=sweep.data,
        )  # fmt: skip
        title = f"a backlog of {gb:g} GB"
        result = sweep.checked(backlog.run(options, BenchProgress(title, quiet=sweep.quiet)))
        for series, name in (
            ("consumer behind by the backlog", "records_per_second"),
            ("consumer at the end, same run", "records_per_second_without"),
        ):
            point = {"series": series, "x": gb, "records_per_second": result[name]}
            yield point if "without" in name else {**point, "ratio": result["ratio"]}


def scaling(sweep: CurveSweep) -> Iterator[Point]:
    for producers in sweep.some((1, 2, 4), (1, 2)):
        for partitions in sweep.some((1, 2, 4), (1, 4)):
            result = sweep.throughput(
                api="batch", size=100, producers=producers, partitions=partitions
            )
            name = f"{producers} producer{'s' if producers > 1 else ''}"
            yield _point(result, name, partitions)


def by_transaction_size(sweep: CurveSweep) -> Iterator[Point]:
    for each in sweep.some((0, 10, 100, 1_000, 10_000, 100_000), (0, 100, 10_000)):
        result = sweep.throughput(api="send", size=1024, transaction_records=each)
        yield _point(result, "send", each)


def by_connections(sweep: CurveSweep) -> Iterator[Point]:
    kept = ("records_per_second", "p50_us", "p99_us", "gateway_kb_per_connection",
            "gateway_idle_cpu_percent")  # fmt: skip
    for way in ("tcp", "curve"):
        for count in sweep.some(CONNECTIONS, (1, 10)):
            options = ConnectionsOptions(
                connections=count, transport=way, seconds=1.0 if sweep.quick else 5.0,
                data=sweep.data,
            )  # fmt: skip
            result = connections.run(options, BenchProgress(f"{count} by {way}", quiet=sweep.quiet))
            sweep.checked(result)
            yield {"series": way, "x": count, **{name: result.get(name) for name in kept}}


def opening(sweep: CurveSweep) -> Iterator[Point]:
    # A large log after a clean stop, and a small one with a large tail after a kill.
    sizes = sweep.some((0.5, 2.0, 5.0, 10.0), (0.1, 0.4))
    tails = sweep.some((50, 200, 400, 800), (10, 50))
    for gb, tail in [*((gb, 1) for gb in sizes), *((0.05, tail) for tail in tails)]:
        options = RecoveryOptions(
            gb=gb, tail_mb=tail, starts=1 if sweep.quick else 3, data=sweep.data
        )
        title = f"a log of {gb:g} GB, a tail of {tail} MB"
        result = sweep.checked(recovery.run(options, BenchProgress(title, quiet=sweep.quiet)))
        kind, x = ("clean", gb) if tail == 1 else ("killed", result["tail_bytes"] / 1e6)
        for series in ("start", "open"):
            seconds = result[f"{series}_{kind}_seconds"]
            yield {"series": series, "kind": kind, "x": x, "seconds": seconds}


def failovers(sweep: CurveSweep) -> Iterator[Point]:
    options = ClusterOptions(rounds=1 if sweep.quick else 15, mb=10, seconds=1.0, data=sweep.data)
    result = cluster.run(options, BenchProgress("failovers", quiet=sweep.quiet))
    for told in result["rounds"]:
        for name in cluster.TIMELINE:
            if told[name] is not None:
                yield {"series": name, "x": told[name], "was_controller": told["was_controller"]}


@dataclass(frozen=True, slots=True)
class Curve:
    measure: Callable[[CurveSweep], Iterator[Point]]
    draw: Callable[[plots.Points, str], Figure]


CURVES: Final = {
    "throughput-by-record-size": Curve(by_record_size, plots.by_record_size),
    "throughput-by-batch-size": Curve(by_batch_size, plots.by_batch_size),
    "latency": Curve(latency_cdf, plots.latency_cdf),
    "throughput-by-backlog": Curve(by_backlog, plots.by_backlog),
    "scaling": Curve(scaling, plots.scaling),
    "transactions": Curve(by_transaction_size, plots.by_transaction_size),
    "connections": Curve(by_connections, plots.by_connections),
    "recovery": Curve(opening, plots.recovery),
    "failover": Curve(failovers, plots.failover),
}


def run(
    output: Path,
    *,
    data: Path | None = None,
    quick: bool = False,
    only: str = "",
    redraw: bool = False,
    quiet: bool = False,
) -> int:
    """Measures and draws into `output`; returns 0 if all of it could be drawn."""
    chosen = [name for name in CURVES if only in name]
    if not chosen:
        print(f"penstock bench plots: no plot's name contains {only!r}", file=sys.stderr)
        return 2
    plots.new_figure("")  # without matplotlib, say so before an hour is gone
    file = output / POINTS
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    sweep = CurveSweep(data, quick, quiet)
    output.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        if not redraw:
            found = list(CURVES[name].measure(sweep))
            kept[name] = {"machine": _note(quick), "points": found}
            file.write_text(_document(kept))
        elif name not in kept:
            print(f"penstock bench plots: {file} has no {name}: measure it", file=sys.stderr)
            return 1
        path = output / f"{name}.png"
        plots.save(CURVES[name].draw(kept[name]["points"], kept[name]["machine"]), path)
        print(f"written to {path}", file=sys.stderr)
    return 0


def _document(kept: dict[str, Any]) -> str:
    """Returns JSON with a line for each point."""
    parts = []
    for name, curve in kept.items():
        points = ",\n  ".join(map(json.dumps, curve["points"]))
        head = f'"machine": {json.dumps(curve["machine"])}'
        parts.append(f' {json.dumps(name)}: {{{head}, "points": [\n  {points}]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _note(quick: bool) -> str:
    """Returns the text below every plot."""
    facts = machine.describe()
    parts = [
        f"{facts.cpu}, {facts.cores} cores, {facts.memory_gb:g} GB", facts.kernel, facts.python,
        f"Penstock {facts.penstock}", facts.date, "one short run a point" if quick else "",
    ]  # fmt: skip
    return " · ".join(filter(None, parts))
