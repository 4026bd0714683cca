"""The demo's consumer process: `python -m penstock.demo.consumer URL TOPIC`.

Reads all partitions as records come, and judges them: each number once, none missing, numbers of
one aircraft rising and all in one partition. `finish N` from the parent means that N records were
acknowledged and no more will come.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.client.client import connect
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import Chunk
from penstock.core.crc import crc32c
from penstock.demo.children import hear, say

POLL_SECONDS: Final = 0.05
REPORT_EVERY: Final = 0.05


@dataclass(slots=True)
class Judge:
    """Counts the records that came, and the faults among them."""

    records: int = 0
    value_bytes: int = 0
    checksum: int = 0
    out_of_order: int = 0
    moved: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    _numbers: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _waits: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _last: dict[bytes | tuple[None, int], tuple[int, int]] = field(default_factory=dict)

    def take(self, chunk: Chunk, received_us: int) -> None:
        """Takes in a run of records of one partition."""
        values = [value for value in chunk.values.to_list() if value is not None]
        numbers = [int(value[: value.index(b",")]) for value in values]
        self.records += len(chunk)
        self.value_bytes += sum(map(len, values))
        self.checksum += sum(map(crc32c, values))
        self._numbers.append(np.array(numbers, np.int64))
        self._waits.append(received_us - chunk.timestamps)
        here = chunk.partition
        last = self._last
        for key, number in zip(chunk.keys.to_list(), numbers, strict=True):
            # Records without a key are in order where one partition has them.
            name = (None, here) if key is None else key
            before, where = last.get(name, (-1, here))
            self.out_of_order += number <= before
            self.moved += where != here
            last[name] = (number, here)

    def verdict(self, expected: int) -> dict[str, object]:
        """Returns the counts that the parent shows. Latencies in seconds."""
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty(0, np.int64)
        known = numbers[(numbers >= 0) & (numbers < expected)]
        seen = np.bincount(known, minlength=expected)
        waits = np.concatenate(self._waits) if self._waits else np.zeros(1, np.int64)
        p50, p99, longest = (float(at) / 1e6 for at in np.percentile(waits, (50, 99, 100)))
        return {
            "records": self.records,
            "lost": int((seen == 0).sum()),
            "doubled": int(np.maximum(seen - 1, 0).sum()),
            "foreign": len(numbers) - len(known),
            "out_of_order": self.out_of_order,
            "moved": self.moved,
            "aircraft": sum(isinstance(name, bytes) for name in self._last),
            "value_bytes": self.value_bytes,
            "checksum": self.checksum,
            "seconds": self.last_at - self.first_at,
            "latency_p50": p50,
            "latency_p99": p99,
            "latency_max": longest,
        }


def main(arguments: list[str]) -> None:
    url, topic = arguments
    judge = Judge()
    with connect(url, client_id="demo-consumer") as client:
        consumer = client.consumer(topic)
        say("ready")
        expected = read_all(consumer, judge)
        say("done", **judge.verdict(expected))


def read_all(consumer: Consumer, judge: Judge) -> int:
    """Reads until the parent says how many records there are and the topic's end is reached."""
    expected: int | None = None
    reported = 0.0
    while True:
        batch = consumer.poll(timeout=POLL_SECONDS)
        now, received_us = time.monotonic(), time.time_ns() // 1000
        for chunk in batch.chunks:
            judge.take(chunk, received_us)
        if batch:
            judge.first_at = judge.first_at or now
            judge.last_at = now
        if now - reported >= REPORT_EVERY:
            reported = now
            say("progress", received=judge.records)
        if expected is None:
            word = hear(0.0)
            if word is not None and word.startswith("finish "):
                expected = int(word.removeprefix("finish "))
        elif not any(consumer.lag().values()):
            say("progress", received=judge.records)
            return expected


if __name__ == "__main__":
    main(sys.argv[1:])
