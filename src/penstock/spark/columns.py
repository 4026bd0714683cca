"""Chunks of a log as Arrow record batches of just the columns that a query asked for.

The types are exactly those that Spark makes of its schema, or it refuses the batch. Keys and values
of a single chunk are not copied; several chunks become one batch by one copy of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.client.arrow.export import binary, constant, numbers, texts
from penstock.client.consumer.records import Chunk
from penstock.core.errors import ConfigError
from penstock.core.header import FLAG_APPEND_TIME

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""All columns there are, in the order of Spark's Kafka connector."""

_PAIRS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_LISTS: Final = pa.list_(pa.field("element", pa.struct(_PAIRS)))
_ARROW: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": _LISTS,
}
_CREATED, _APPENDED = 0, 1
"""Values of the column timestampType: the producer's time, or the log's."""


def schema(*, include_headers: bool) -> StructType:
    """Returns the columns that a query without a schema of its own reads."""
    names = [name for name in TYPES if name != "headers" or include_headers]
    return StructType([StructField(name, TYPES[name]) for name in names])


class Layout:
    """The columns of one query, in the order of its schema."""

    def __init__(self, asked: StructType) -> None:
        """Raises `ConfigError` for a column that is not there, or has another type."""
        for field in asked.fields:
            kind = TYPES.get(field.name)
            if kind is None:
                raise ConfigError(
                    f"the source penstock has no column {field.name!r}: a schema is made of "
                    f"{', '.join(TYPES)}"
                )
            if field.dataType.simpleString() != kind.simpleString():
                raise ConfigError(
                    f"column {field.name} is {kind.simpleString()} and not "
                    f"{field.dataType.simpleString()}: cast it after reading"
                )
        names = asked.fieldNames()
        if len(set(names)) < len(names):
            raise ConfigError(f"the schema names a column twice: {', '.join(names)}")
        self.schema = pa.schema(
            [pa.field(field.name, _ARROW[field.name], field.nullable) for field in asked.fields]
        )
        self._make = [_COLUMNS[name] for name in names]

    def batch(self, chunks: Sequence[Chunk]) -> pa.RecordBatch:
        """Returns the rows of chunks of one partition as one record batch."""
        columns = []
        for make in self._make:
            parts = [make(chunk) for chunk in chunks]
            columns.append(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


# --- columns of one chunk -------------------------------------------------------------------------
@lru_cache(64)
def _same(length: int, kind: Any, value: object) -> Any:
    return pa.repeat(pa.scalar(value, kind), length)


@lru_cache(8)
def _nulls(length: int) -> Any:
    return pa.nulls(length, _LISTS)


def _repeated(name: str, value: object, count: int) -> Any:
    return constant(_same, count, _ARROW[name], value)


def _timestamp_type(chunk: Chunk) -> Any:
    is_append_time = chunk.columns.head.flags & FLAG_APPEND_TIME
    return _repeated("timestampType", _APPENDED if is_append_time else _CREATED, len(chunk))


def _headers(chunk: Chunk) -> Any:
    """Returns the headers of a chunk; null where a record has none, as in Spark's Kafka
    connector."""
    found = chunk.columns.header_columns
    count = len(chunk)
    if found is None:
        return constant(_nulls, count)
    lists, names, values = found
    bounds = lists[chunk.start : chunk.stop + 1]
    has = np.diff(bounds) > 0
    nulls = count - int(np.count_nonzero(has))
    bits = pa.py_buffer(np.packbits(has, bitorder="little")) if nulls else None
    pairs = pa.StructArray.from_arrays([texts(names), binary(values)], fields=_PAIRS)
    buffers = [bits, pa.py_buffer(bounds)]
    return pa.Array.from_buffers(_LISTS, count, buffers, nulls, children=[pairs])


_COLUMNS: Final[dict[str, Callable[[Chunk], Any]]] = {
    "key": lambda chunk: binary(chunk.keys),
    "value": lambda chunk: binary(chunk.values),
    "topic": lambda chunk: _repeated("topic", chunk.topic, len(chunk)),
    "partition": lambda chunk: _repeated("partition", chunk.partition, len(chunk)),
    "offset": lambda chunk: numbers(_ARROW["offset"], chunk.offsets),
    "timestamp": lambda chunk: numbers(_ARROW["timestamp"], chunk.timestamps),
    "timestampType": _timestamp_type,
    "headers": _headers,
}
