"""The time to open a large log: after a clean stop, and after a kill with an unsynced tail.

The log is filled through a producer. `open` is the writer's own time of opening the log. `start` is
all that a user waits for: from starting the node to the first client admitted.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from penstock.bench import payload
from penstock.bench.errors import BenchError
from penstock.bench.ground import filesystem_of
from penstock.bench.partitions import kill_all
from penstock.bench.progress import BenchProgress
from penstock.bench.scratch import scratch_folder
from penstock.client.admin.admin import TopicConfig
from penstock.testing.embedded import EmbeddedNode

TOPIC: Final = "large"
VALUE_BYTES: Final = 16 << 10
LIST_LENGTH: Final = 31  # with their offsets just below a batch of 512 KiB
WAIT: Final = 300.0
_OPENED: Final = re.compile(
    TOPIC + r"-0: \w+: offsets .* (\d+) batches \((\d+) bytes\) checked in ([\d.]+) s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """gb: gigabytes (10^9) of values in the log. tail_mb: megabytes appended just before the kill.
    starts: after a clean stop, of which the median counts. segment_mb: MiB of a segment, at whose
    end the log is synced, so the unsynced tail is hardly larger."""

    gb: float = 10.0
    tail_mb: int = 512
    starts: int = 3
    segment_mb: int = 1024
    data: Path | None = None

    def check(self) -> None:
        if self.gb <= 0 or self.tail_mb < 1 or self.starts < 1:
            raise BenchError("--gb, --tail-mb and --starts: more than nothing")
        if not 1 <= self.segment_mb <= 1024:
            raise BenchError(f"--segment-mb {self.segment_mb}: from 1 to 1024")


def run(options: RecoveryOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes the run. Raises `BenchError`."""
    options.check()
    needed = int(options.gb * 1e9 + options.tail_mb * 1e6) + (64 << 20)
    with scratch_folder(options.data, needed) as folder:
        log = folder / "node.log"
        arguments = ("--drain-timeout", str(WAIT))
        with EmbeddedNode(
            folder / "data", writers=1, log=log, arguments=arguments, ready_timeout=WAIT
        ) as node:
            with node.connect() as client, client.admin() as admin:
                admin.create_topic(TOPIC, TopicConfig(segment_bytes=options.segment_mb << 20))
            progress.say(f"write {options.gb:g} GB")
            acknowledged = _fill(node, int(options.gb * 1e9))
            clean = []
            for _ in range(options.starts):
                progress.say("stop and start")
                node.stop(WAIT)
                node.start()
                clean.append((node.started_in, _opened(log)))
            progress.say(f"write {options.tail_mb} MB and kill")
            acknowledged += _fill(node, options.tail_mb * 10**6)
            kill_all(node)
            progress.say("start after the kill")
            node.start()
            killed = node.started_in, _opened(log)
            end = _log_end(node)
        filesystem = filesystem_of(folder)
    progress.end()
    return {
        "benchmark": "recovery",
        "log_bytes": int(options.gb * 1e9),
        "start_clean_seconds": round(statistics.median(start for start, _ in clean), 3),
        "open_clean_seconds": statistics.median(opened.seconds for _, opened in clean),
        "start_killed_seconds": round(killed[0], 3),
        "open_killed_seconds": killed[1].seconds,
        "tail_bytes": killed[1].nbytes,
        "tail_batches": killed[1].batches,
        "records": end,
        "lost": acknowledged - end,
        "filesystem": filesystem,
        "options": {
            "gb": options.gb, "tail_mb": options.tail_mb, "starts": options.starts,
            "segment_mb": options.segment_mb,
        },
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriterOpened:
    """A writer's report that it has opened the log."""

    batches: int
    nbytes: int
    seconds: float


def _opened(log: Path) -> WriterOpened:
    """Returns the last such report."""
    found = _OPENED.findall(log.read_text("utf-8", "replace"))
    if not found:
        raise BenchError(
            f"the writer did not say how it opened the log:\n{log.read_text()[-2000:]}"
        )
    batches, nbytes, seconds = found[-1]
    return WriterOpened(int(batches), int(nbytes), float(seconds))


def _fill(node: EmbeddedNode, total_bytes: int) -> int:
    """Appends that many bytes of values; returns the number of records, all of them
    acknowledged."""
    records = -(-total_bytes // VALUE_BYTES)
    with node.connect() as client, client.producer(linger=0, block_timeout=WAIT) as producer:
        for values in _lists(records):
            producer.send_batch(TOPIC, values)
        producer.flush(WAIT)
    return records


def _lists(records: int) -> Iterator[list[bytes]]:
    pool = payload.make_pool(0, 8 * LIST_LENGTH, VALUE_BYTES)
    lists = [pool[at : at + LIST_LENGTH] for at in range(0, len(pool), LIST_LENGTH)]
    whole, rest = divmod(records, LIST_LENGTH)
    yield from islice(cycle(lists), whole)
    if rest:
        yield pool[:rest]


def _log_end(node: EmbeddedNode) -> int:
    with node.connect() as client, client.admin() as admin:
        return admin.describe_topic(TOPIC).partitions[0].log_end
