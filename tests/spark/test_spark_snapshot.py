"""A snapshot: of each key the latest value, tombstones gone, the old table there until then."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from penstock.spark.jobs import snapshot
from penstock.spark.jobs.snapshots import latest


def test_the_latest_is_by_offset_within_a_partition_and_by_time_between_them(spark):
    def row(key: bytes | None, value: bytes | None, partition: int, offset: int, second: int):
        return (key, value, "t", partition, offset, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC))

    frame = spark.createDataFrame(
        [
            row(b"a", b"old", 0, 0, 9),
            row(b"a", b"new", 0, 1, 5),  # later in the log, with an earlier time
            row(b"b", b"1", 0, 2, 1),
            row(b"b", b"2", 1, 0, 2),
            row(b"gone", b"1", 0, 3, 1),
            row(b"gone", None, 0, 4, 1),
            row(None, b"no key", 0, 5, 1),
        ],
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP",
    )
    found = {bytes(r.key): (bytes(r.value), r.partition, r.offset) for r in latest(frame).collect()}
    assert found == {b"a": (b"new", 0, 1), b"b": (b"2", 1, 0)}


def test_a_snapshot_takes_the_place_of_the_one_before(spark, broker, tmp_path):
    broker.create_topic("state", partitions=2)
    out = str(tmp_path / "state")

    def send(*pairs: tuple[bytes | None, bytes | None]) -> None:
        with broker.connect() as client, client.producer() as producer:
            for key, value in pairs:
                producer.send("state", value, key=key)

    def table() -> dict[bytes, bytes]:
        return {bytes(row.key): bytes(row.value) for row in spark.read.parquet(out).collect()}

    send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"?"))
    done = snapshot(spark, broker.url, ["state"], out)
    assert (done.keys, done.records, done.keyless) == (2, 3, 1)
    assert table() == {b"a": b"2", b"b": b"1"}
    send((b"b", None), (b"c", b"1"))
    assert snapshot(spark, broker.url, ["state"], out).keys == 2
    assert table() == {b"a": b"2", b"c": b"1"}
    assert snapshot(spark, broker.url, ["state"], out).keys == 2
    assert [item.name for item in tmp_path.iterdir()] == ["state"]
