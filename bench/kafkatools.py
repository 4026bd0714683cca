"""Kafka's own performance tools, in Java: what its Python client leaves out."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any, Final

from penstock.bench.errors import BenchError
from penstock.bench.peerserver import finished
from penstock.bench.streampeers import Address

WITHIN: Final = 60.0
_SENT: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


def measure(jars: Path, address: Address, folder: Path, topic: str, records: int, size: int) -> Any:
    """Records a second of `kafka-producer-perf-test`, then of `kafka-consumer-perf-test`. Raises
    `BenchError`."""
    java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
    sent = finished(
        "producer-perf",
        [*java, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
         "--num-records", str(records), "--record-size", str(size), "--throughput", "-1",
         "--producer-props", f"bootstrap.servers={address}", "acks=all", "linger.ms=5",
         "batch.size=262144", "buffer.memory=268435456"],
        folder, WITHIN,
    )  # fmt: skip
    read = finished(
        "consumer-perf",
        [*java, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", str(address),
         "--topic", topic, "--num-records", str(records), "--timeout", "20000"],
        folder, WITHIN,
    )  # fmt: skip
    return {
        "sent_per_second": sent_per_second(sent, records),
        "read_per_second": read_per_second(read, records),
        "records": records,
    }


def sent_per_second(told: str, records: int) -> int:
    """Of the last line of the producer's tool, which is about all records."""
    found = _SENT.findall(told)
    if not found or int(found[-1][0]) != records:
        raise BenchError(f"kafka-producer-perf-test did not send all:\n{told[-500:]}")
    return round(float(found[-1][1]))


def read_per_second(told: str, records: int) -> int:
    """Of the table of the consumer's tool, from its first fetch on."""
    lines = [line for line in told.splitlines() if line.count(",") >= 9]
    rows = list(csv.DictReader(lines, skipinitialspace=True))
    if not rows or int(rows[-1]["data.consumed.in.nMsg"]) < records:
        raise BenchError(f"kafka-consumer-perf-test did not read all:\n{told[-500:]}")
    return round(float(rows[-1]["fetch.nMsg.sec"]))
