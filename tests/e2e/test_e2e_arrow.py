"""Columns all the way: tables in by `send_arrow`, out by `to_arrow`, with a real node between."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    BufferFullError,
    Client,
    ClosedError,
    PenstockError,
    RecordTooLargeError,
    TopicConfig,
    TransactionError,
    UnknownTopicError,
)
from penstock.client.producer.partitioner import partitions_of
from penstock.testing import Broker

pytestmark = pytest.mark.over_tcp

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.compute")

ROUND_TRIP = {
    "key_column": "key",
    "timestamp_column": "timestamp",
    "headers_column": "headers",
}


@pytest.fixture(scope="module")
def client(transport: str) -> Iterator[Client]:
    with Broker() as node, node.connect() as client:
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.partition("[")[0].replace("test_", "")
    client.admin().create_topic(name, TopicConfig(partitions=4))
    yield name
    client.admin().delete_topic(name)


def table_of(count: int, seed: int = 1) -> Any:
    rng = random.Random(seed)
    return pa.table(
        {
            "value": pa.array(
                [None if n % 11 == 3 else rng.randbytes(rng.randrange(80)) for n in range(count)],
                pa.binary(),
            ),
            "key": pa.array([None if n % 7 == 5 else f"key-{n % 90}" for n in range(count)]),
            "timestamp": pa.array(range(count), pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [[("n", b"%d" % n), ("null", None)][: n % 3] for n in range(count)],
                pa.map_(pa.string(), pa.binary()),
            ),
        }
    )


def rows_of(table: Any) -> list[Any]:
    """Rows to compare, in order: time, key, value, headers."""
    rows = zip(
        table["timestamp"].cast(pa.int64()).to_pylist(),
        table["key"].cast(pa.binary()).to_pylist(),
        table["value"].cast(pa.binary()).to_pylist(),
        table["headers"].to_pylist(),
        strict=True,
    )
    return [
        (time, key, value, tuple(p if isinstance(p, tuple) else tuple(p.values()) for p in pairs))
        for time, key, value, pairs in rows
    ]


def read_all(client: Client, topic: str) -> Any:
    with client.consumer(topic, follow=False) as consumer:
        return pa.concat_tables([batch.to_arrow() for batch in consumer.batches()])


@pytest.mark.parametrize("batch_bytes", [4 << 10, 512 << 10])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_table_comes_back_row_by_row(client, topic, batch_bytes, compression):
    if compression == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    table = table_of(3000)
    with client.producer(batch_bytes=batch_bytes, compression=compression) as producer:
        chunks = pa.concat_tables([table.slice(0, 10), table.slice(10, 2000), table.slice(2010)])
        receipts = producer.send_arrow(topic, chunks, **ROUND_TRIP).result(45)
    assert sum(receipt.count for receipt in receipts) == 3000
    back = read_all(client, topic)
    assert sorted(rows_of(back)) == rows_of(table)
    for partition in range(4):
        times = back.filter(pa.compute.field("partition") == partition)["timestamp"].to_pylist()
        assert times == sorted(times)
    keys = back["key"].drop_null().to_pylist()
    found = back.filter(pa.compute.field("key").is_valid())["partition"].to_pylist()
    assert found == partitions_of(keys, 4).tolist()


def test_what_was_read_can_be_sent_on(client, topic):
    """A consumer's batch is a stream like any other, straight from the segment files."""
    table = table_of(500)
    client.admin().create_topic("copy", TopicConfig(partitions=2))
    with client.producer() as producer:
        producer.send_arrow(topic, table, **ROUND_TRIP).result(45)
        with client.consumer(topic, follow=False) as consumer:
            for batch in consumer.batches(max_records=100):
                producer.send_arrow("copy", batch, **ROUND_TRIP)
    assert sorted(rows_of(read_all(client, "copy"))) == rows_of(table)


@pytest.mark.parametrize("maker", ["polars", "duckdb"])
def test_frames_and_relations_of_others(client, topic, maker):
    module = pytest.importorskip(maker)
    table = table_of(300).drop_columns(["headers"])
    data = module.from_arrow(table)
    with client.producer() as producer:
        producer.send_arrow(topic, data, key_column="key", timestamp_column="timestamp").result(45)
    assert [row[:3] for row in sorted(rows_of(read_all(client, topic)))] == [
        row[:3] for row in rows_of(table.append_column("headers", table_of(300)["headers"]))
    ]


def test_without_keys_batches_take_turns(client, topic):
    table = pa.table({"value": [b"x" * 100] * 1000})
    with client.producer(batch_bytes=10 << 10) as producer:
        receipts = producer.send_arrow(topic, table).result(45)
    assert {receipt.partition for receipt in receipts} == {0, 1, 2, 3}
    assert max(receipt.count for receipt in receipts) < 110


def test_an_explicit_partition_takes_it_all(client, topic):
    table = table_of(200)
    with client.producer() as producer:
        producer.send_arrow(topic, table, partition=2, **ROUND_TRIP).result(45)
        with pytest.raises(UnknownTopicError, match="partitions 0 to 3, not 4"):
            producer.send_arrow(topic, table, partition=4)
    back = read_all(client, topic)
    assert set(back["partition"].to_pylist()) == {2}
    assert rows_of(back) == rows_of(table)


def test_it_stays_behind_what_was_sent_before(client, topic):
    with client.producer(linger=5.0) as producer:
        producer.send(topic, b"first", partition=1)
        producer.send_arrow(topic, pa.table({"value": [b"second"]}), partition=1)
        producer.send(topic, b"third", partition=1)
    assert read_all(client, topic)["value"].to_pylist() == [b"first", b"second", b"third"]


def test_an_empty_table_is_done_at_once(client, topic):
    with client.producer() as producer:
        delivery = producer.send_arrow(topic, pa.table({"value": pa.array([], pa.binary())}))
        assert delivery.done()
        assert delivery.result(1.0) == []


def test_memory_stays_bounded_by_the_producers_buffer(client, topic):
    """While no writer answers, a stream of any length is taken up to the bound and then refused."""
    table = pa.table({"value": [b"x" * 1000] * 3000})
    writers = [writer.pid for writer in client.admin().describe_node().writers]
    with client.producer(
        buffer_bytes_max=256 << 10, batch_bytes=64 << 10, block_timeout=0.05
    ) as producer:
        for pid in writers:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BufferFullError) as caught:
                producer.send_arrow(topic, table)
            taken = producer.metrics()["buffered_bytes"]
        finally:
            for pid in writers:
                os.kill(pid, signal.SIGCONT)
        assert 256 << 10 <= taken <= 320 << 10
        producer.flush(20.0)
    sent = len(read_all(client, topic))
    assert caught.value.__notes__ == [f"send_arrow to {topic!r}: {sent} rows had been handed over"]


def test_a_record_that_is_too_large_stops_there(client, topic):
    large = pa.table({"value": [b"a", b"x" * (2 << 20), b"b"]})
    with client.producer() as producer:
        with pytest.raises(RecordTooLargeError, match=topic) as caught:
            producer.send_arrow(topic, large)
        assert "0 rows had been handed over" in caught.value.__notes__[0]
        producer.send_arrow(topic, pa.table({"value": [b"later"]})).result(45)
    assert read_all(client, topic)["value"].to_pylist() == [b"later"]


def test_too_many_headers_are_refused(client, topic):
    table = pa.table(
        {"value": [b"a"], "headers": pa.array([[("n", b"")] * 65], pa.map_("string", "binary"))}
    )
    with client.producer() as producer, pytest.raises(ValueError, match="at most 64 headers"):
        producer.send_arrow(topic, table, headers_column="headers")


def test_mistakes_are_told_before_anything_is_sent(client, topic):
    producer = client.producer()
    table = pa.table({"value": [1]})
    with pytest.raises(TypeError, match="int64; a value_column must be binary or string"):
        producer.send_arrow(topic, table)
    with pytest.raises(UnknownTopicError):
        producer.send_arrow("nowhere", pa.table({"value": [b"a"]}))
    producer.close()
    with pytest.raises(ClosedError):
        producer.send_arrow(topic, pa.table({"value": [b"a"]}))


def test_a_writer_killed_in_the_middle_loses_and_doubles_nothing(client, topic):
    """Also of what stood in the stream's own memory when the lane was full."""
    rows, parts = 2000, 40
    schema = pa.schema([("value", pa.binary()), ("key", pa.int64())])

    def batches() -> Iterator[Any]:
        for part in range(parts):
            if part in (10, 25):
                for writer in client.admin().describe_node().writers:
                    os.kill(writer.pid, signal.SIGKILL)
            numbers = range(part * rows, (part + 1) * rows)
            values = [b"%08d" % number * 20 for number in numbers]
            yield pa.record_batch([pa.array(values, pa.binary()), pa.array(numbers)], schema)

    with client.producer() as producer:
        stream = pa.RecordBatchReader.from_batches(schema, batches())
        receipts = producer.send_arrow(topic, stream, partition=3).result(30.0)
    assert sum(receipt.count for receipt in receipts) == rows * parts
    came = [int(value[:8]) for value in read_all(client, topic)["value"].to_pylist()]
    assert came == list(range(rows * parts))


def test_a_stream_that_fails_half_way_fails_its_transaction(client, topic):
    def batches():
        yield pa.record_batch({"value": [b"never"]})
        raise ValueError("the source is gone")

    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"never")
        with pytest.raises(PenstockError, match="the source is gone"):
            producer.send_arrow(topic, broken(batches()))
        with pytest.raises(TransactionError, match="the source is gone"):
            producer.commit_transaction()
        with producer.transaction():
            producer.send_arrow(topic, pa.table({"value": [b"good"]}))
    with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"good"]


def broken(batches):
    return pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches)
