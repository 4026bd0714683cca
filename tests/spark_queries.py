"""Queries of the source `penstock` as Spark would run them, without Spark's own processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.spark.batchreader import PenstockBatchReader
from penstock.spark.columns import TYPES
from penstock.spark.source import PenstockDataSource
from penstock.testing import Broker

WAYS = ("shm", "tcp")


def given(broker: Broker, topic: str, way: str = "shm", **more: object) -> dict[str, str]:
    """Options as Spark hands them over: names in lower case, values as text."""
    found: dict[str, object] = {
        "bootstrap": broker.url if way == "shm" else broker.tcp_url,
        "transport": "auto" if way == "shm" else "tcp",
        **more,
    }
    if "subscribePattern" not in found and "assign" not in found:
        found["subscribe"] = topic
    return {name.lower(): str(value) for name, value in found.items()}


def schema_of(names: str, **types: Any) -> StructType:
    """Some columns with their own types, or others."""
    return StructType([StructField(name, types.get(name) or TYPES[name]) for name in names.split()])


def read_all(reader: Any, tasks: Iterable[InputPartition]) -> list[pa.RecordBatch]:
    """What tasks read, planned here and pickled on their way."""
    copy = pickle.loads(pickle.dumps(reader))
    return [batch for task in pickle.loads(pickle.dumps(list(tasks))) for batch in copy.read(task)]


def table(options: dict[str, str], names: str | None = None) -> pa.Table:
    """What a batch query reads."""
    kind = PenstockDataSource(options).schema() if names is None else schema_of(names)
    reader = PenstockBatchReader(kind, options)
    batches = read_all(reader, reader.partitions())
    return pa.Table.from_batches(batches, to_arrow_schema(kind, timezone="UTC"))


def filled(broker: Broker, count: int = 20, partitions: int = 2, **settings: Any) -> str:
    """A topic whose values are "0" to count - 1, in turn over its partitions."""
    topic = broker.create_topic(partitions=partitions, **settings)
    fill(broker, topic, 0, count, partitions)
    return topic


def fill(broker: Broker, topic: str, first: int, count: int, partitions: int) -> None:
    with broker.connect() as client, client.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def values(found: pa.Table) -> list[int]:
    return sorted(map(int, found.column("value").to_pylist()))
