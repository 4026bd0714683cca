"""Batch queries without Spark's own processes: what is planned, what a task reads, by both ways."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from spark_queries import WAYS, filled, given, schema_of, table, values

from penstock.core import errors as er
from penstock.spark import columns
from penstock.spark.batchreader import PenstockBatchReader
from penstock.spark.positions import DataLossError
from penstock.testing import Broker


# --- columns ---
@pytest.mark.parametrize("way", WAYS)
def test_all_columns_have_the_very_types_that_spark_wants(broker, way):
    topic = broker.create_topic(partitions=1)
    with broker.connect() as client, client.producer() as producer:
        headers = {"trace": b"1", "none": None}
        producer.send(topic, b"v", key=b"k", headers=headers, timestamp=1_700_000_000_123_456)
        producer.send(topic, None, key=b"gone")
        producer.send(topic, b"", headers={"a": b"2"})
    options = given(broker, topic, way, includeHeaders="true")
    found = table(options).to_pylist()
    assert found[0] == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(1_700_000_000.123456, UTC),
        "timestampType": 0,
        "headers": [{"key": "trace", "value": b"1"}, {"key": "none", "value": None}],
    }
    assert [(r["key"], r["value"], r["headers"]) for r in found[1:]] == [
        (b"gone", None, None),
        (None, b"", [{"key": "a", "value": b"2"}]),
    ]


def test_headers_are_a_column_only_where_they_are_asked_for(broker):
    topic = filled(broker, 1, 1)
    assert "headers" not in table(given(broker, topic)).schema.names
    found = table(given(broker, topic), "headers")
    assert found.to_pylist() == [{"headers": None}]


def test_columns_in_the_order_that_is_asked_for_and_no_others(broker):
    topic = filled(broker, 4, 1)
    found = table(given(broker, topic), "offset value")
    assert found.schema == pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    assert found.column("offset").to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (schema_of("valeu", valeu=StringType()), "no column 'valeu': a schema is made of key, va"),
        (schema_of("value", value=StringType()), "column value is binary and not string: cast it"),
        (schema_of("value value"), "names a column twice"),
    ],
)
def test_a_schema_that_cannot_be_is_told_at_once(schema, match):
    with pytest.raises(er.ConfigError, match=match):
        PenstockBatchReader(schema, {"subscribe": "t", "bootstrap": "shm://nowhere"})


def test_times_of_the_log_say_so(broker):
    topic = filled(broker, 2, 1, timestamp_type="append")
    assert table(given(broker, topic), "timestampType").column(0).to_pylist() == [1, 1]


def test_filters_are_left_to_spark():
    """A reader that takes filters is refused by Spark unless a setting of the session allows it."""
    assert PenstockBatchReader.pushFilters is DataSourceReader.pushFilters


def test_the_arrow_types_are_those_that_spark_makes():
    for include_headers in (False, True):
        whole = columns.schema(include_headers=include_headers)
        strict = StructType([StructField(f.name, f.dataType, False) for f in whole])
        assert columns.Layout(strict).schema == to_arrow_schema(strict, timezone="UTC")
        assert columns.Layout(whole).schema == to_arrow_schema(whole, timezone="UTC")


# --- what is read ---
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_reads_all_there_is(broker, way):
    topic = filled(broker, 1000, 3)
    found = table(given(broker, topic, way))
    assert values(found) == list(range(1000))
    for number in range(3):
        mask = pc.equal(found.column("partition"), number)
        offsets = found.filter(mask).column("offset").to_pylist()
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("way", WAYS)
def test_offsets_bound_a_batch_to_the_record(broker, way):
    topic = filled(broker, 100, 2)
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 10, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": -1, "1": 3}}),
    }
    expected = [*range(20, 100, 2), 1, 3, 5]
    assert values(table(given(broker, topic, way, **bounds))) == sorted(expected)


def test_a_batch_ends_within_a_batch_of_the_log(broker):
    topic = broker.create_topic(partitions=1)
    with broker.connect() as client, client.producer() as producer:
        producer.send_batch(topic, values=[b"%d" % number for number in range(10)])
    for end in (1, 5, 9, 10):
        bounds = {"endingOffsets": json.dumps({topic: {"0": end}})}
        assert values(table(given(broker, topic, **bounds))) == list(range(end))


@pytest.mark.parametrize("way", WAYS)
def test_more_tasks_than_partitions_read_each_record_once(broker, way):
    topic = filled(broker, 1000, 2)
    options = given(broker, topic, way, minPartitions=7)
    assert len(PenstockBatchReader(schema_of("value"), options).partitions()) == 7
    assert values(table(options)) == list(range(1000))


def test_batch_rows_bound_what_a_batch_holds(broker):
    topic = broker.create_topic(partitions=1)
    with broker.connect() as client, client.producer() as producer:
        for count in (1, 25, 7, 40):
            producer.send_batch(topic, values=[b"x"] * count)
            producer.flush(10)
    reader = PenstockBatchReader(schema_of("value"), given(broker, topic, batchRows=10))
    (task,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(task)] == [10] * 7 + [3]


def test_topics_by_pattern_and_single_partitions(broker):
    first, second = filled(broker, 4, 2), filled(broker, 4, 2)
    options = given(broker, "", subscribePattern=f"({first}|{second})")
    assert values(table(options)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert values(table(given(broker, "", assign=json.dumps({first: [1]})))) == [1, 3]
    assert table(given(broker, "", subscribePattern="none-.*")).num_rows == 0


def test_nothing_planned_is_nothing_read(broker):
    from pyspark.sql.datasource import InputPartition

    topic = broker.create_topic(partitions=2)
    reader = PenstockBatchReader(schema_of("value"), given(broker, topic))
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of that


# --- by time ---
@pytest.mark.parametrize("way", WAYS)
def test_times_find_the_first_record_that_is_as_late(broker, way):
    topic = broker.create_topic(partitions=1)
    with broker.connect() as client, client.producer() as producer:
        for second in range(100):  # many in one batch
            producer.send(topic, b"%d" % second, timestamp=(1_000_000 + second) * 1_000_000)
    options = given(
        broker, topic, way, startingTimestamp=1_000_040_000, endingTimestamp=1_000_060_000
    )
    assert values(table(options)) == list(range(40, 60))
    by_partition = json.dumps({topic: {"0": 1_000_097_001}})
    assert values(table(given(broker, topic, way, startingOffsetsByTimestamp=by_partition))) == [
        98, 99,
    ]  # fmt: skip
    late: dict[str, object] = {"startingTimestamp": 2_000_000_000}
    with pytest.raises(er.OffsetOutOfRangeError, match=f"{topic}-0 has no record as late"):
        table(given(broker, topic, way, **late))
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert table(given(broker, topic, way, **late)).num_rows == 0


# --- transactions ---
@pytest.mark.parametrize("way", WAYS)
def test_committed_records_only_unless_told_otherwise(broker, way):
    topic = broker.create_topic(partitions=1)
    with broker.connect() as client:
        with client.producer(transactional_id=f"tx-{topic}") as producer:
            with producer.transaction():
                producer.send(topic, b"1")
            with contextlib.suppress(KeyError), producer.transaction():
                producer.send(topic, b"2")
                producer.flush(10)
                raise KeyError
            with producer.transaction():
                producer.send(topic, b"3")
            with client.producer(transactional_id=f"open-{topic}") as other:
                begun = other.transaction()
                begun.__enter__()
                other.send(topic, b"4")
                other.flush(10)
                began = time.monotonic()
                assert values(table(given(broker, topic, way))) == [1, 3]
                assert time.monotonic() - began < 30  # markers at the end are not waited behind
                options = given(broker, topic, way, isolation="read_uncommitted")
                assert values(table(options)) == [1, 2, 3, 4]
                begun.__exit__(None, None, None)
        assert values(table(given(broker, topic, way))) == [1, 3, 4]


# --- what is not there ---
def test_a_topic_that_is_not_there_is_named(broker):
    with pytest.raises(er.UnknownTopicError, match=r"'nope' is not on the node at .*topic create"):
        table(given(broker, "nope"))
    topic = filled(broker, 1, 1)
    with pytest.raises(er.UnknownTopicError, match=f"assign names {topic}-7, but topic"):
        table(given(broker, "", assign=json.dumps({topic: [7]})))


def test_offsets_are_to_name_every_partition(broker):
    topic = filled(broker, 4, 2)
    with pytest.raises(er.ConfigError, match=f"startingOffsets does not name {topic}-1"):
        table(given(broker, topic, startingOffsets=json.dumps({topic: {"0": 0}})))
    three = json.dumps({topic: {"0": 0, "1": 0, "2": 0}})
    with pytest.raises(er.ConfigError, match=f"endingOffsets names {topic}-2, which the query"):
        table(given(broker, topic, endingOffsets=three))


def test_ends_that_are_not_there(broker):
    topic = filled(broker, 4, 1)
    with pytest.raises(er.OffsetOutOfRangeError, match="is 9, but the log ends at 4"):
        table(given(broker, topic, endingOffsets=json.dumps({topic: {"0": 9}})))
    bounds = {name: json.dumps({topic: {"0": n}}) for name, n in
              (("startingOffsets", 3), ("endingOffsets", 2))}  # fmt: skip
    with pytest.raises(er.ConfigError, match="startingOffsets 3 lies behind endingOffsets 2"):
        table(given(broker, topic, **bounds))


def test_a_node_that_is_not_there_says_what_to_set(monkeypatch):
    from penstock.spark import clients

    monkeypatch.setattr(clients, "CONNECT_WITHIN", 600.0)
    monkeypatch.setattr(clients, "AWAY_MAX", 600.0)
    with pytest.raises(er.NotConnectedError, match="Set the option bootstrap to a URL that every"):
        table({"bootstrap": "tcp://127.0.0.1:9", "subscribe": "t"})


@pytest.mark.parametrize("url", ["shm://never-was", "shm:///never/was"])
def test_a_node_that_never_was_on_this_host_is_asked_for_once(monkeypatch, url):
    from penstock.spark import clients

    monkeypatch.setattr(clients, "CONNECT_WITHIN", 600.0)
    monkeypatch.setattr(clients, "AWAY_MAX", 600.0)
    with pytest.raises(er.NotConnectedError, match="start one with `penstock serve") as caught:
        table({"bootstrap": url, "subscribe": "t"})
    assert "Set the option bootstrap" in str(caught.value)
    with pytest.raises(er.NotConnectedError):
        clients.client_of(clients.NodeAddress(url))


def test_a_node_that_was_on_this_host_may_be_back():
    from penstock.spark import clients

    with Broker() as made:
        topic = filled(made, 4, 1)
        made.stop()
        starting = threading.Timer(0.3, made.start)
        starting.start()
        try:
            assert values(table(given(made, topic, "shm"))) == list(range(4))
        finally:
            starting.join()
            clients.forget()


@pytest.mark.parametrize("way", WAYS)
def test_what_retention_took_is_an_error_unless_told_otherwise(broker, way):
    topic = filled(broker, 20, 1)
    with broker.connect() as client, client.admin() as admin:
        admin.trim(topic, before=8)
    begin: dict[str, object] = {"startingOffsets": json.dumps({topic: {"0": 3}})}
    with pytest.raises(DataLossError, match=f"{topic}-0: the query is to go on at offset 3, but"):
        table(given(broker, topic, way, **begin))
    begin["failOnDataLoss"] = False
    assert values(table(given(broker, topic, way, **begin))) == list(range(8, 20))


@pytest.mark.parametrize("way", WAYS)
def test_what_retention_took_between_plan_and_task_is_an_error(broker, way, caplog):
    topic = filled(broker, 20, 1)
    found = []
    for told in ("true", "false"):
        reader = PenstockBatchReader(
            schema_of("value"), given(broker, topic, way, failOnDataLoss=told)
        )
        found.append((reader, reader.partitions()))
    with broker.connect() as client, client.admin() as admin:
        admin.trim(topic, before=8)
    (strict, tasks), (lenient, others) = found
    with pytest.raises(DataLossError, match="offset 0 is gone, the log starts at 8: retention"):
        list(strict.read(tasks[0]))
    assert sum(batch.num_rows for batch in lenient.read(others[0])) == 12
    assert "data loss, going on with what is there" in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_made_anew_after_the_plan_is_not_read_for_the_old_one(broker, way):
    topic = filled(broker, 20, 1)
    reader = PenstockBatchReader(schema_of("value"), given(broker, topic, way))
    tasks = reader.partitions()
    with broker.connect() as client, client.admin() as admin:
        admin.delete_topic(topic)
        with pytest.raises(DataLossError, match=topic):
            list(reader.read(tasks[0]))
        admin.create_topic(topic)
        with client.producer() as producer:
            producer.send_batch(topic, values=[b"other"] * 30)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted since this batch was"):
        list(reader.read(tasks[0]))
