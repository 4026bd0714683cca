"""Compares throughput with and without a backlog of gigabytes: the same run, in pairs.

A producer appends while a consumer reads as many records, which are `gb` gigabytes before the end.
So the backlog has the same size all the time. The run without one is the same with the consumer at
the end. Both take turns on one node, so that other load of the machine meets both.

The backlog is made of rounds by the same producer role, each with its warm-up and its ends. So the
consumer's account is as exact as in any throughput run.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bench import pagecache, roles, throughput
from penstock.bench.crew import Crew
from penstock.bench.errors import BenchError
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.options import ThroughputOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.report import faults_of

Result = dict[str, Any]

ENDS: Final = 2
"""Tombstones of a round: behind the warm-up, and behind the records."""
TURNS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOptions:
    """gb: gigabytes (10^9) of values in the backlog. records: of one turn. turns: pairs, of which
    the median ratio counts. size, api: as of a throughput run."""

    gb: float = 10.0
    records: int = 1_000_000
    turns: int = 3
    size: int = 1024
    api: str = "send"
    data: Path | None = None
    timeout: float = 600.0

    @property
    def turn(self) -> ThroughputOptions:
        """One turn as a throughput run."""
        return ThroughputOptions(
            size=self.size, records=self.records, api=self.api,  # type: ignore[arg-type]
            data=self.data, timeout=self.timeout,
        )  # fmt: skip

    @property
    def rounds(self) -> int:
        """Turns that make a backlog of at least this size."""
        return -(-int(self.gb * 1e9) // (self.records * self.size))

    @property
    def bytes_needed(self) -> int:
        """Disk bytes of the backlog and of the turns."""
        return (self.rounds + 2 * self.turns) * self.turn.bytes_needed

    def check(self) -> None:
        self.turn.check()
        if not 1 <= self.turns <= TURNS_MAX:
            raise BenchError(f"--turns {self.turns}: from 1 to {TURNS_MAX}")
        if self.gb <= 0:
            raise BenchError(f"--gb {self.gb:g}: a backlog has some size")


def run(options: BacklogOptions, progress: BenchProgress) -> Result:
    """Makes the run. Raises `BenchError`."""
    options.check()
    turn = options.turn
    with ground(turn, options.bytes_needed) as place:
        progress.say("page cache")
        assert place.folder is not None  # the node is the run's own
        speed = pagecache.measure(place.folder, options.records * options.size)
        with place.topic(1) as full, place.topic(1) as empty:
            for number in range(options.rounds):
                progress.say(f"backlog {number + 1} of {options.rounds}")
                _fill(turn, place, full)
            backlog = place.log_of(full)[0]
            pairs = []
            for number in range(options.turns):
                start = number * (turn.warmup_records + turn.records + ENDS)
                # In turns also in which of both comes first: the page cache of the machine warms.
                topics = (empty, full) if number % 2 == 0 else (full, empty)
                found = {
                    topic: throughput.measure(turn, place, topic, progress, start)
                    for topic in topics
                }
                pairs.append((found[empty], found[full]))
    progress.end()
    none, behind = zip(*pairs, strict=True)
    rates = [[_rate(result) for result in results] for results in (none, behind)]
    ratio = statistics.median(with_it / without for without, with_it in zip(*rates, strict=True))
    return {
        "benchmark": "backlog",
        "ratio": round(ratio, 3),
        "records_per_second": round(statistics.median(rates[1])),
        "records_per_second_without": round(statistics.median(rates[0])),
        "turns": [[round(rate) for rate in pair] for pair in zip(*rates, strict=True)],
        "mb_per_second": round(statistics.median(rates[1]) * options.size / 1e6, 1),
        "pwrite_mb_per_second": round(speed.median, 1),
        "backlog_records": backlog,
        "behind": _used(behind[-1]),
        **faults_of(each for pair in pairs for each in pair),
        "filesystem": place.filesystem,
        "options": {"gb": options.gb, **turn.stated(), "turns": options.turns},
    }


def _rate(result: Result) -> float:
    """Returns records a second, until both sides are done: a consumer that is behind may
    end first."""
    return float(result["records"] / _seconds(result))


def _seconds(result: Result) -> float:
    return float(max(result["seconds"], result["produce_seconds"]))


def _used(result: Result) -> Result:
    """Returns what the processes of a turn used."""
    names = (
        "records",
        "cpu_seconds",
        "machine_cpu_seconds",
        "sleeps",
        "preempted",
        "page_faults",
        "producer_metrics",
    )
    return {"seconds": _seconds(result), **{name: result[name] for name in names}}


def _fill(options: ThroughputOptions, place: MeasuredNode, topic: str) -> None:
    """Runs one round of a producer alone."""
    with Crew(options.timeout) as crew:
        crew.add("filler", roles.produce, roles.RoleTask(options, place.door, topic, 0))
        crew.gather("attached")
        for order in ("warm", "go"):
            crew.tell(order)
            crew.gather(order)
        crew.tell("leave")
        crew.dismiss()
