"""The source in Spark itself: tables, streams, their checkpoints, and how errors come through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from spark_queries import WAYS, fill, filled, given


def loaded(spark, options: dict[str, str], schema: str | None = None) -> Any:
    reader = spark.read.format("penstock").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def run_now(spark, options: dict[str, str], folder: Path) -> list[int]:
    """Trigger.AvailableNow into Parquet; the rows of each batch that had some."""
    stream = spark.readStream.format("penstock").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    try:
        assert query.awaitTermination(60)
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]
    finally:
        query.stop()


def batches_of(folder: Path) -> list[int]:
    """The batches that a checkpoint knows to be done."""
    names = (each.name for each in (folder / "checkpoint" / "commits").iterdir())
    return sorted(int(name) for name in names if name.isdecimal())


def test_explain_names_the_format_and_an_alias_as_the_guide_says(spark, broker, capsys):
    topic = filled(broker, 1, 1)
    loaded(spark, given(broker, topic)).alias("orders_from_100").explain(True)
    said = capsys.readouterr().out
    assert "SubqueryAlias orders_from_100" in said
    assert "BatchScan penstock[key#" in said
    assert "(Python)" in said
    assert topic not in said, "Spark lets a source say more now: have it name topic and offsets"


@pytest.mark.parametrize("way", WAYS)
def test_a_table(spark, broker, way):
    topic = filled(broker, 300, 3)
    rows = loaded(spark, given(broker, topic, way, includeHeaders=True))
    assert rows.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert rows.count() == 300
    found = rows.where("partition = 1 and offset >= 98").selectExpr(
        "cast(value as string) as value", "topic", "offset", "key is null as keyless"
    )
    assert [tuple(row) for row in found.orderBy("offset").collect()] == [
        ("295", topic, 98, True),
        ("298", topic, 99, True),
    ]


def test_a_table_of_some_columns_in_as_many_tasks_as_are_wanted(spark, broker):
    topic = filled(broker, 300, 1)
    rows = loaded(spark, given(broker, topic, minPartitions=4), "value BINARY, offset BIGINT")
    assert rows.rdd.getNumPartitions() == 4
    total = rows.agg(fn.sum(fn.col("value").cast("string").cast("int")), fn.max("offset")).first()
    assert tuple(total) == (sum(range(300)), 299)


def test_an_empty_topic_is_an_empty_table(spark, broker):
    topic = broker.create_topic(partitions=2)
    assert loaded(spark, given(broker, topic)).count() == 0


def test_available_now_makes_exactly_three_batches(spark, broker, tmp_path):
    topic = filled(broker, 15, 3)
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5, "groupId": f"g-{topic}"}
    options = given(broker, topic, **more)  # type: ignore[arg-type]
    assert run_now(spark, options, tmp_path) == [5, 5, 5]
    assert batches_of(tmp_path) == [0, 1, 2]
    assert run_now(spark, options, tmp_path) == []
    assert batches_of(tmp_path) == [0, 1, 2]
    with broker.connect() as client, client.admin() as admin:
        assert admin.describe_group(f"g-{topic}").lag == 0
        admin.add_partitions(topic, 4)
    fill(broker, topic, 15, 15, 4)
    assert run_now(spark, options, tmp_path) == [5, 5, 5]
    assert batches_of(tmp_path) == [0, 1, 2, 3, 4, 5]
    rows = spark.read.parquet(str(tmp_path / "rows"))
    values = rows.selectExpr("cast(cast(value as string) as int) as v").orderBy("v").collect()
    assert [row.v for row in values] == list(range(30))
    offsets = (tmp_path / "checkpoint" / "offsets" / "5").read_text().splitlines()[-1]
    assert json.loads(offsets)["topics"][topic]["partitions"]["3"]["offset"] == 4


def test_latest_is_where_the_stream_began(spark, broker, tmp_path):
    topic = filled(broker, 5, 2)
    options = given(broker, topic)
    assert run_now(spark, options, tmp_path) == []
    fill(broker, topic, 5, 4, 2)
    assert run_now(spark, options, tmp_path) == [4]


def test_what_retention_took_from_a_stream_is_an_error_unless_told_otherwise(
    spark, broker, tmp_path
):
    topic = filled(broker, 10, 1)
    options = given(broker, topic, startingOffsets="earliest")
    assert run_now(spark, options, tmp_path) == [10]
    fill(broker, topic, 10, 10, 1)
    with broker.connect() as client, client.admin() as admin:
        admin.trim(topic, before=15)
    with pytest.raises(PySparkException, match=f"{topic}-0: the query is to go on at offset 10"):
        run_now(spark, options, tmp_path)
    assert run_now(spark, {**options, "failondataloss": "false"}, tmp_path) == [5]


def test_errors_of_options_come_through_in_their_own_words(spark, broker):
    with pytest.raises(PySparkException, match="no option 'startingofset'; did you mean starting"):
        loaded(spark, given(broker, "t", startingOfset="earliest")).count()
    with pytest.raises(PySparkException, match="column value is binary and not string: cast it"):
        loaded(spark, given(broker, "t"), "value STRING").count()
    with pytest.raises(PySparkException, match=r"topic 'nope' is not on the node at .* make it"):
        loaded(spark, given(broker, "nope")).count()
