"""Chunks of decoded columns as Arrow record batches, one a chunk.

| column | type | |
|---|---|---|
| topic | dictionary<int32, string> | |
| partition | int32 | |
| offset | int64 | |
| timestamp | timestamp[us, UTC] | |
| key | binary | null: the record has none |
| value | binary | null: a tombstone |
| headers | list<struct<name: string, value: binary>> | empty: none |

The bytes and offsets of keys and values are not copied: the log has Arrow's `binary` layout. The
buffers are the mapped segment (or the body that was decompressed), which lives as long as an array
over it. All else is made, in a few numpy calls a batch.

Needs pyarrow, which holds the buffers and makes the streams (docs/decisions/0010 says why no other
way is safe). Imported only when Arrow is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock.core.columns import BinaryColumn, Columns, NullColumn

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(
        "batches become Arrow by pyarrow, which is not installed: pip install 'penstock[arrow]'"
    ) from error


class BatchRows(Protocol):
    """Rows `start` to `stop` of one decoded log batch: a `Chunk` of what a consumer gets."""

    topic: str
    partition: int
    columns: Columns
    start: int
    stop: int

    def __len__(self) -> int: ...

    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...

    @property
    def timestamps(self) -> npt.NDArray[np.int64]: ...

    @property
    def keys(self) -> BinaryColumn | NullColumn: ...

    @property
    def values(self) -> BinaryColumn: ...


_BINARY: Final = pa.binary()
_PAIRS: Final = pa.struct(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
_NO_PAIRS: Final = pa.array([], _PAIRS)
_LISTS: Final = pa.list_(pa.field("item", _PAIRS, nullable=False))
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _LISTS, nullable=False),
    ]
)


# --- columns that say the same for every record: made once, and cut to length ---------------------
CONSTANT_MAX: Final = 1 << 16
"""Longer ones are made again each time, so that the caches stay within some MiB."""


def _length(count: int) -> int:
    """Returns the length to keep for columns of `count` rows: there are few different ones."""
    return 1 << max(10, (count - 1).bit_length())


def constant(make: Callable[..., Any], count: int, *what: Any) -> Any:
    """Returns `count` rows of a constant column; `make` is one of the functions below."""
    if count > CONSTANT_MAX:
        return make.__wrapped__(count, *what)  # type: ignore[attr-defined]
    return make(_length(count), *what).slice(0, count)


@lru_cache(64)
def _partition(length: int, partition: int) -> Any:
    return numbers(pa.int32(), np.full(length, partition, np.int32))


@lru_cache(64)
def _topic(length: int, place: int, names: tuple[str, ...]) -> Any:
    indices = numbers(pa.int32(), np.full(length, place, np.int32))
    return pa.DictionaryArray.from_arrays(indices, _dictionary(names), safe=False)


@lru_cache(64)
def _dictionary(names: tuple[str, ...]) -> Any:
    return pa.array(names, pa.string())


@lru_cache(8)
def _nulls(length: int) -> Any:
    return pa.nulls(length, _BINARY)


@lru_cache(8)
def _no_headers(length: int) -> Any:
    bounds = pa.py_buffer(np.zeros(length + 1, np.int32))
    return pa.Array.from_buffers(_LISTS, length, [None, bounds], 0, children=[_NO_PAIRS])


# --- columns of records ---------------------------------------------------------------------------
def numbers(kind: Any, array: npt.NDArray[Any]) -> Any:
    """Returns a column of fixed width without nulls, over the array's own bytes."""
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)], 0)


def binary(column: BinaryColumn | NullColumn, kind: Any = _BINARY) -> Any:
    """Returns a column of byte strings, in place."""
    count = len(column)
    if isinstance(column, NullColumn):
        return constant(_nulls, count)
    bits, nulls = None, 0
    if column.valid is not None:
        nulls = count - int(np.count_nonzero(column.valid))
        bits = pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def texts(strings: BinaryColumn) -> Any:
    """Returns a column of UTF-8; text that is none (the log takes any bytes) is repaired in
    a copy."""
    if bytes(strings.data).isascii():
        return binary(strings, pa.string())
    return pa.array(
        [str(item, "utf-8", "replace") for item in strings if item is not None], pa.string()
    )


def headers(chunk: BatchRows) -> Any:
    """Lists of names and values: views where the batch has headers, and nothing otherwise."""
    found = chunk.columns.header_columns
    count = len(chunk)
    if found is None:
        return constant(_no_headers, count)
    lists, names, values = found
    bounds = lists[chunk.start : chunk.stop + 1]
    pairs = pa.StructArray.from_arrays([texts(names), binary(values)], fields=list(_PAIRS))
    return pa.Array.from_buffers(_LISTS, count, [None, pa.py_buffer(bounds)], 0, children=[pairs])


_OFFSET: Final = SCHEMA.field("offset").type
_TIMESTAMP: Final = SCHEMA.field("timestamp").type


def record_batch(chunk: BatchRows, topics: tuple[str, ...]) -> Any:
    """Converts a chunk to a `pyarrow.RecordBatch`. Its topic is one of `topics`, the dictionary."""
    count = len(chunk)
    return pa.RecordBatch.from_arrays(
        [
            constant(_topic, count, topics.index(chunk.topic), topics),
            constant(_partition, count, chunk.partition),
            numbers(_OFFSET, chunk.offsets),
            numbers(_TIMESTAMP, chunk.timestamps),
            binary(chunk.keys),
            binary(chunk.values),
            headers(chunk),
        ],
        schema=SCHEMA,
    )


def record_batches(chunks: Iterable[BatchRows], topics: Iterable[str]) -> Iterator[Any]:
    """Chunks, all of which belong to `topics`, as they are asked for."""
    names = tuple(dict.fromkeys(topics))
    for chunk in chunks:
        yield record_batch(chunk, names)


def table(chunks: Iterable[BatchRows], topics: Iterable[str]) -> pa.Table:
    return pa.Table.from_batches(record_batches(chunks, topics), SCHEMA)


def reader(chunks: Iterable[BatchRows], topics: Iterable[str]) -> pa.RecordBatchReader:
    """Returns a stream that takes chunks as it is read, by any thread."""
    return pa.RecordBatchReader.from_batches(SCHEMA, record_batches(chunks, topics))
