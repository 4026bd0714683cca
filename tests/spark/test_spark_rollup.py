"""A rollup: counts, rates, sizes by window, what groups have not read, what producers dropped."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from penstock.core.errors import ConfigError
from penstock.spark.jobs import rollup

MINUTE = 60_000_000
NOON = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000


def test_windows_have_counts_sizes_unread_and_drops(spark, broker, tmp_path):
    broker.create_topic("rolled", partitions=2)
    with broker.connect() as client:
        with client.producer() as producer:
            for number in range(90):  # 60 in the first minute, 30 in the second
                producer.send(
                    "rolled", b"x" * 8, key=b"%02d" % number, partition=number % 2,
                    timestamp=NOON + number * 1_000_000,
                )  # fmt: skip
        with client.consumer("rolled", group="readers", guarantee="manual") as member:
            batch = member.poll(20, timeout=45)
            member.commit(batch)
    ledger = tmp_path / "ledger.jsonl"
    events = [
        {"timestamp": NOON // 1000 + 1, "name": "producer_send_success", "topic": "rolled"},
        *[{"timestamp": NOON // 1000 + 2, "name": "producer_send_error", "topic": "rolled"}] * 3,
        {"timestamp": NOON // 1000 + 200_000, "name": "producer_send_error", "topic": "rolled"},
        {"timestamp": NOON // 1000, "name": "producer_send_error", "topic": "another"},
    ]
    ledger.write_text("".join(json.dumps(event) + "\n" for event in events))
    out, png = str(tmp_path / "table"), tmp_path / "plots" / "rolled.png"
    for _ in range(2):
        done = rollup(
            spark, broker.url, ["rolled"], out, png=str(png), groups=["readers"],
            ledgers=[str(ledger)],
        )  # fmt: skip
        assert (done.rows, done.records) == (3, 90)
    first, second, later = (row.asDict() for row in spark.read.parquet(out).collect())
    assert (first["records"], first["bytes"], first["partitions"]) == (60, 600, 2)
    assert (first["records_per_second"], first["bytes_per_second"]) == (1.0, 10.0)
    assert (first["size_mean"], first["size_p50"], first["size_max"]) == (10.0, 10, 10)
    assert 0 < len(batch) <= 20
    assert first["unread"] == {"readers": 60 - len(batch)}
    assert (first["sent"], first["dropped"], first["drop_rate"]) == (4, 3, 0.75)
    assert (second["records"], second["unread"], second["sent"]) == (30, {"readers": 30}, None)
    assert (later["records"], later["sent"], later["drop_rate"]) == (0, 1, 1.0)
    assert first["window_start"] == datetime(2026, 1, 1, 12)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_window_has_a_length(spark, tmp_path):
    with pytest.raises(ConfigError, match=r"at least 0.001 seconds"):
        rollup(spark, "shm://", ["t"], str(tmp_path), window=0)
