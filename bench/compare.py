"""One way to the node against another: the same throughput run by both, in pairs.

Both nodes run all the time, and runs go on in turns, so that whatever else the machine does meets
both. The ratio is the median over the pairs.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.bench import throughput
from penstock.bench.errors import BenchError
from penstock.bench.ground import ground
from penstock.bench.options import Api, ThroughputOptions, Transport
from penstock.bench.progress import BenchProgress
from penstock.bench.report import faults_of

Result = dict[str, Any]

TURNS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """transport, against: the two ways. records: of one run. turns: pairs, of which the median
    ratio counts. size, api: as of a throughput run."""

    transport: Transport = "curve"
    against: Transport = "tcp"
    records: int = 1_000_000
    turns: int = 5
    size: int = 1024
    api: Api = "send"
    data: Path | None = None
    timeout: float = 300.0

    def turn(self, transport: Transport) -> ThroughputOptions:
        """Returns the options of one run."""
        return ThroughputOptions(
            size=self.size, records=self.records, api=self.api, transport=transport,
            data=self.data, timeout=self.timeout,
        )  # fmt: skip

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        if self.transport == self.against:
            raise BenchError(f"--against {self.against}: what is compared is the same")
        if not 1 <= self.turns <= TURNS_MAX:
            raise BenchError(f"--turns {self.turns}: from 1 to {TURNS_MAX}")
        self.turn(self.transport).check()


def run(options: CompareOptions, progress: BenchProgress) -> Result:
    """Makes the run. Raises `BenchError`."""
    options.check()
    turns: dict[Transport, ThroughputOptions] = {
        way: options.turn(way) for way in (options.transport, options.against)
    }
    pairs: list[dict[Transport, Result]] = []
    with ExitStack() as stack:
        needed = options.turns * turns[options.transport].bytes_needed
        places = {way: stack.enter_context(ground(turn, needed)) for way, turn in turns.items()}
        for number in range(options.turns):
            found: dict[Transport, Result] = {}
            # In turns also in which of both comes first: the page cache of the machine warms.
            for way in list(turns) if number % 2 else reversed(turns):
                with places[way].topic(turns[way].partitions) as topic:
                    found[way] = throughput.measure(turns[way], places[way], topic, progress)
            pairs.append(found)
    rates = {way: [_rate(pair[way]) for pair in pairs] for way in turns}
    of, against = rates[options.transport], rates[options.against]
    ratios = [one / other for one, other in zip(of, against, strict=True)]
    stated = replace(turns[options.transport], transport="shm").stated()
    del stated["transport"]
    return {
        "benchmark": "compare",
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "records_per_second": round(statistics.median(of)),
        "records_per_second_against": round(statistics.median(against)),
        **faults_of(each for pair in pairs for each in pair.values()),
        "cpu_seconds": pairs[-1][options.transport]["cpu_seconds"],
        "cpu_seconds_against": pairs[-1][options.against]["cpu_seconds"],
        "filesystem": places[options.transport].filesystem,
        "options": {
            "transport": options.transport, "against": options.against, **stated,
            "turns": options.turns,
        },
    }  # fmt: skip


def _rate(result: Result) -> float:
    return float(result["records"] / result["seconds"])
