"""Curves of scale in one run: producers, consumers, partitions, connections, bytes of a record, and
gigabytes of backlog.

Turns go round the points of a curve, forward and back, each with a node of its own, so that what
else the machine does meets each. Every record is checked. Beside its rate each turn keeps what its
processes used, from which the page says what bends the curve.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bench import backlog, connections, machine, pagecache, throughput
from penstock.bench.backlog import BacklogOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.errors import BenchError
from penstock.bench.ground import filesystem_of, ground
from penstock.bench.options import ThroughputOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.report import faults_of
from penstock.bench.scalecost import cost_of
from penstock.bench.scratch import scratch_folder

Result = dict[str, Any]

TURNS_MAX: Final = 20
GB_MAX: Final = 10.0
RUN_BYTES: Final = 1_000_000_000
"""Bytes of values in a turn at most, but `RECORDS_MIN` records."""
RECORDS_MIN: Final = 600
PARTITION_BYTES: Final = 5 << 20
"""Disk of one partition's first segment, which grows by 4 MiB."""
NODE_PARTITIONS: Final = 1100
SMALL_BATCH: Final = 16 << 10
KEYS: Final = 10_000
YARDSTICK_BYTES: Final = 300_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """only: the curves whose key contains it, or one line of a curve as `partitions/small`. at: the
    point at this x alone (0: all). turns: of each point, of which the median counts. records: of 1
    KB in a turn; lists have three times as many. seconds: of each phase of connections. gb: the
    longest backlog, as far as the disk has room. quick: few points, a tenth of the records, one
    turn. data: where nodes are made. timeout: seconds for a turn."""

    only: str = ""
    at: float = 0.0
    turns: int = 3
    records: int = 600_000
    seconds: float = 3.0
    gb: float = GB_MAX
    quick: bool = False
    data: Path | None = None
    timeout: float = 300.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        if not 1 <= self.turns <= TURNS_MAX:
            raise BenchError(f"--turns {self.turns}: from 1 to {TURNS_MAX}")
        if self.records < 1000:
            raise BenchError(f"--records {self.records}: at least 1000")
        if self.seconds <= 0 or self.timeout <= 0:
            raise BenchError("--seconds and --timeout: more than 0")
        if not 0 < self.gb <= GB_MAX:
            raise BenchError(f"--gb {self.gb:g}: more than 0, to {GB_MAX:g}")
        if not self.chosen():
            known = ", ".join(f"{curve.key}/{line}" for curve in CURVES for line in curve.lines)
            raise BenchError(f"--only {self.only} --at {self.at:g}: no such point; lines: {known}")

    @property
    def share(self) -> float:
        """Part of the records that a quick run sends."""
        return 0.1 if self.quick else 1.0

    def points_of(self, curve: ScaleCurve) -> list[tuple[str, float]]:
        """Returns the (line, x) of a curve's points that are asked for."""
        return [
            (line, x)
            for line in curve.lines
            for x in (curve.few if self.quick else curve.xs)
            if self.only in f"{curve.key}/{line}" and self.at in (0, x)
        ]

    def chosen(self) -> list[ScaleCurve]:
        """Returns the curves of which a point is asked for."""
        return [curve for curve in CURVES if self.points_of(curve)]

    def stated(self) -> Result:
        found = asdict(self)
        for name in ("data", "timeout"):  # of this machine
            del found[name]
        return found


Turn = Callable[[ScaleOptions, str, float, BenchProgress], Result]


@dataclass(frozen=True, slots=True)
class ScaleCurve:
    """lines: of the plot, with their names. xs, few: the points of a run, and of a quick one.
    turn: measures one point once."""

    key: str
    title: str
    axis: str
    lines: dict[str, str]
    xs: tuple[float, ...]
    few: tuple[float, ...]
    turn: Turn


# --- one turn of each ---------------------------------------------------------------------------
def _records(options: ScaleOptions, api: str, size: int) -> int:
    wanted = options.records * (1 if api == "send" else 3)
    wanted = min(wanted, max(RECORDS_MIN, RUN_BYTES // size))
    return max(RECORDS_MIN, int(wanted * options.share))


def _measured(given: ThroughputOptions, progress: BenchProgress) -> Result:
    """Makes one run on a node of its own. The rate counts until both sides are done."""
    given.check()
    needed = given.bytes_needed + given.partitions * PARTITION_BYTES
    arguments = ("--partitions-max", str(NODE_PARTITIONS))
    with ground(given, needed, arguments) as place, place.topic(given.partitions) as topic:
        found = throughput.measure(given, place, topic, progress)
    seconds = max(found["seconds"], found["produce_seconds"])
    rate = found["records"] / seconds
    return {
        "records_per_second": round(rate),
        "mb_per_second": round(rate * given.size / 1e6, 1),
        **cost_of(found, seconds),
        **faults_of([found]),
    }


def with_producers(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    return _side(options, line, int(x), 1, progress)


def with_consumers(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    return _side(options, line, 1, int(x), progress)


def _side(
    options: ScaleOptions, api: Any, producers: int, consumers: int, progress: BenchProgress
) -> Result:
    given = ThroughputOptions(
        api=api, producers=producers, consumers=consumers, partitions=8,
        records=_records(options, api, 1024), data=options.data, timeout=options.timeout,
    )  # fmt: skip
    return _measured(given, progress)


def with_partitions(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    """All points have as many different values, or caches would bend the curve; and the warm-up
    reaches each partition, or opening them would."""
    partitions = int(x)
    records = _records(options, "send", 1024)
    batch_bytes = SMALL_BATCH if line == "small" else ThroughputOptions().batch_bytes
    reach = partitions * 2 * -(-batch_bytes // 1024) if line != "keys" else 4 * partitions
    given = ThroughputOptions(
        partitions=partitions, batch_bytes=batch_bytes, keys=KEYS if line == "keys" else 0,
        records=records, pool=records, warmup=min(records, max(20_000, reach)),
        data=options.data, timeout=options.timeout,
    )  # fmt: skip
    return _measured(given, progress)


def with_size(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    api: Any = line
    given = ThroughputOptions(
        api=api, size=int(x), records=_records(options, api, int(x)), data=options.data,
        timeout=options.timeout,
    )  # fmt: skip
    return _measured(given, progress)


def with_connections(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    given = ConnectionsOptions(
        connections=int(x), transport="tcp", seconds=options.seconds * options.share,
        data=options.data, timeout=options.timeout,
    )  # fmt: skip
    found = connections.run(given, progress)
    seconds = found["records"] / found["records_per_second"]
    names = ("records_per_second", "p50_us", "p99_us", "connect_seconds",
             "gateway_kb_per_connection", "gateway_idle_cpu_percent")  # fmt: skip
    return {
        **{name: found[name] for name in names if name in found},
        **cost_of(found, seconds),
        "batch": given.list_records,
        **faults_of([found]),
    }


def with_backlog(options: ScaleOptions, line: str, x: float, progress: BenchProgress) -> Result:
    """One pair: behind by the backlog, and at the end."""
    given = BacklogOptions(
        gb=x * options.share, records=_records(options, "send", 1024), turns=1, data=options.data,
        timeout=options.timeout,
    )  # fmt: skip
    found = backlog.run(given, progress)
    return {
        **{name: found[name] for name in
           ("records_per_second", "records_per_second_without", "mb_per_second", "ratio")},
        **cost_of(found["behind"], found["behind"]["seconds"]),
        **faults_of([found]),
    }  # fmt: skip


_COUNTS: Final = (1.0, 2.0, 4.0, 8.0)
_BOTH: Final = {"send": "send one by one, iterate", "batch": "send_batch, read columns"}
CURVES: Final = (
    ScaleCurve(
        "producers", "Producers", "producers (1 KB, 8 partitions, one consumer)", _BOTH, _COUNTS,
        (1.0, 2.0), with_producers,
    ),
    ScaleCurve(
        "consumers", "Consumers", "consumers (1 KB, 8 partitions, one producer)", _BOTH, _COUNTS,
        (1.0, 2.0), with_consumers,
    ),
    ScaleCurve(
        "partitions", "Partitions", "partitions (send of 1 KB)",
        {"send": "batches of 256 KiB", "small": "batches of 16 KiB",
         "keys": f"{KEYS:,} keys, batches of 256 KiB"},
        (1.0, 4.0, 16.0, 64.0, 256.0, 1000.0), (1.0, 16.0), with_partitions,
    ),
    ScaleCurve(
        "connections", "Connections", "connections by TCP (lists of 32 records of 1 KB)",
        {"tcp": "lists, as fast as they go"}, (1.0, 10.0, 100.0, 1000.0), (1.0, 10.0),
        with_connections,
    ),
    ScaleCurve(
        "size", "Record size", "bytes of a value", _BOTH,
        (16.0, 100.0, 1000.0, 10_000.0, 100_000.0, 1_000_000.0), (100.0, 1000.0), with_size,
    ),
    ScaleCurve(
        "backlog", "Backlog", "gigabytes that the consumer is behind (send of 1 KB)",
        {"behind": "behind by the backlog"}, (0.1, 1.0, 3.0, 10.0), (0.1,), with_backlog,
    ),
)  # fmt: skip


# --- the run ------------------------------------------------------------------------------------
def run(options: ScaleOptions, progress: BenchProgress) -> Result:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    found: dict[str, list[Result]] = {}
    left_out: list[str] = []
    progress.say("page cache")
    with scratch_folder(options.data, 2 * YARDSTICK_BYTES) as folder:
        speed = pagecache.measure(folder, YARDSTICK_BYTES)
        filesystem = filesystem_of(folder)
    for curve in options.chosen():
        found[curve.key] = list(_curve(options, curve, left_out, progress))
    progress.end()
    turns = [turn for points in found.values() for point in points for turn in point["turns"]]
    return {
        "benchmark": "scale",
        "curves": found,
        **faults_of(turns),
        "left_out": left_out,
        "pwrite_mb_per_second": round(speed.median, 1),
        "filesystem": filesystem,
        "machine": machine.describe().as_dict(),
        "options": options.stated(),
    }


def _curve(
    options: ScaleOptions, curve: ScaleCurve, left_out: list[str], progress: BenchProgress
) -> Iterator[Result]:
    """Yields the points of a curve, each with its turns, which go round all of them."""
    points = [
        (line, x) for line, x in options.points_of(curve)
        if curve.key != "backlog" or _has_room(options, x, left_out)
    ]  # fmt: skip
    turns: dict[tuple[str, float], list[Result]] = {point: [] for point in points}
    count = 1 if options.quick else options.turns
    for number in range(count):
        for line, x in points if number % 2 == 0 else reversed(points):
            name = f"turn {number + 1} of {count}, {curve.key}/{line} {x:g}"
            own = BenchProgress(name, quiet=not progress.is_shown)
            turns[line, x].append(curve.turn(options, line, x, own))
    for (line, x), told in turns.items():
        yield {"line": line, "x": x, "turns": told}


def _has_room(options: ScaleOptions, gb: float, left_out: list[str]) -> bool:
    """Returns whether a backlog is asked for, and fits into what the disk has free."""
    if gb > options.gb:
        left_out.append(f"backlog of {gb:g} GB: longer than --gb {options.gb:g}")
        return False
    turn = BacklogOptions(gb=gb * options.share, records=_records(options, "send", 1024), turns=1)
    free = shutil.disk_usage(options.data or tempfile.gettempdir()).free
    if free < turn.bytes_needed:
        left_out.append(
            f"backlog of {gb:g} GB: {turn.bytes_needed / 1e9:.1f} GB of disk, "
            f"{free / 1e9:.1f} GB are free"
        )
        return False
    return True
