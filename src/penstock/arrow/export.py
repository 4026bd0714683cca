"""Chunks of decoded columns as an Arrow stream, one record batch a chunk.

| column | type | |
|---|---|---|
| topic | dictionary<int32, string> | |
| partition | int32 | |
| offset | int64 | |
| timestamp | timestamp[us, UTC] | |
| key | binary | null: the record has none |
| value | binary | null: a tombstone |
| headers | list<struct<name: string, value: binary>> | empty: none |

The bytes and offsets of keys and values are not copied: Arrow's `binary` layout is what stands in
the log, and the buffers point into the mapped segment (or into the body that was decompressed),
which lives as long as an array over it. All else is made, in a few numpy calls a batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from penstock.arrow import cdata
from penstock.core.columns import BinaryColumn, NullColumn

if TYPE_CHECKING:
    from penstock.records import Chunk


@dataclass(frozen=True, slots=True)
class Field:
    """One node of a schema; `format` in the letters of the C data interface."""

    name: str
    format: str
    nullable: bool = False
    children: tuple[Field, ...] = ()
    dictionary: Field | None = None


SCHEMA: Final = Field(
    "",
    "+s",
    children=(
        Field("topic", "i", dictionary=Field("", "u")),
        Field("partition", "i"),
        Field("offset", "l"),
        Field("timestamp", "tsu:UTC"),
        Field("key", "z", nullable=True),
        Field("value", "z", nullable=True),
        Field(
            "headers",
            "+l",
            children=(
                Field(
                    "item",
                    "+s",
                    children=(Field("name", "u"), Field("value", "z", nullable=True)),
                ),
            ),
        ),
    ),
)

_NOTHING: Final = ctypes.create_string_buffer(64)
"""Where buffers without bytes point to: some consumers take no null pointer."""
_NOWHERE: Final = ctypes.addressof(_NOTHING)


# --- schema -------------------------------------------------------------------------------------
def fill_schema(words: cdata.Words, field: Field = SCHEMA) -> None:
    """Write a schema struct and those below it."""
    below = [*field.children, *filter(None, [field.dictionary])]
    number = len(field.children)
    structs = (ctypes.c_uint64 * (cdata.SCHEMA_WORDS * len(below) + number))()
    base = ctypes.addressof(structs)
    size = cdata.SCHEMA_WORDS * cdata.WORD
    places = [base + size * index for index in range(len(below))]
    for child, place in zip(below, places, strict=True):
        fill_schema(cdata.schema_at(place), child)
    for index, place in enumerate(places[:number], cdata.SCHEMA_WORDS * len(below)):
        structs[index] = place
    texts = [ctypes.create_string_buffer(text.encode()) for text in (field.format, field.name)]
    words[:] = [
        *map(ctypes.addressof, texts),
        0,
        cdata.FLAG_NULLABLE if field.nullable else 0,
        number,
        base + size * len(below) if number else 0,
        places[-1] if field.dictionary else 0,
        cdata.RELEASE_SCHEMA,
        cdata.keep((structs, texts)),
    ]


# --- arrays -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Node:
    """One array: `buffers` are addresses, `owner` is what keeps them."""

    length: int
    buffers: tuple[int, ...]
    owner: object = None
    nulls: int = 0
    children: tuple[Node, ...] = ()
    dictionary: Node | None = None


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's first element stands."""
    return int(array.__array_interface__["data"][0]) if array.size else _NOWHERE


def data_address(data: memoryview) -> int:
    return address_of(np.frombuffer(data, np.uint8)) if len(data) else _NOWHERE


def fill_array(words: cdata.Words, node: Node) -> None:
    """Write an array struct and those below it."""
    below = [*node.children, *filter(None, [node.dictionary])]
    number, buffers = len(node.children), len(node.buffers)
    lists = cdata.ARRAY_WORDS * len(below)
    structs = (ctypes.c_uint64 * (lists + number + buffers))()
    base = ctypes.addressof(structs)
    size = cdata.ARRAY_WORDS * cdata.WORD
    places = [base + size * index for index in range(len(below))]
    for child, place in zip(below, places, strict=True):
        fill_array(cdata.array_at(place), child)
    structs[lists:] = [*places[:number], *node.buffers]
    children_at = base + cdata.WORD * lists
    words[:] = [
        node.length, node.nulls, 0, buffers, number, children_at + cdata.WORD * number,
        children_at if number else 0, places[-1] if node.dictionary else 0, cdata.RELEASE_ARRAY,
        cdata.keep((structs, node.owner)),
    ]  # fmt: skip


def plain(array: npt.NDArray[Any]) -> Node:
    """A column of numbers without nulls."""
    return Node(len(array), (0, address_of(array)), array)


def binary(column: BinaryColumn | NullColumn) -> Node:
    """A column of byte strings, in place."""
    count = len(column)
    if isinstance(column, NullColumn):
        bitmap, offsets = np.zeros((count + 7) // 8, np.uint8), np.zeros(count + 1, np.int32)
        return Node(count, (address_of(bitmap), address_of(offsets), _NOWHERE), (bitmap, offsets),
                    nulls=count)  # fmt: skip
    bits, nulls = None, 0
    if column.valid is not None:
        nulls = count - int(np.count_nonzero(column.valid))
        bits = np.packbits(column.valid, bitorder="little") if nulls else None
    return Node(
        count,
        (
            0 if bits is None else address_of(bits),
            address_of(column.offsets),
            data_address(column.data),
        ),
        (bits, column.offsets, column.data),
        nulls,
    )


def texts(strings: BinaryColumn) -> Node:
    """A column of UTF-8; what is none (the log takes any bytes) is repaired in a copy."""
    data = strings.data
    if not bytes(data).isascii():
        repaired = [
            b"" if item is None else str(item, "utf-8", "replace").encode() for item in strings
        ]
        strings = column_of(repaired)
    return binary(BinaryColumn(strings.offsets, strings.data))


def column_of(items: Iterable[bytes]) -> BinaryColumn:
    """A column of Python byte strings."""
    found = list(items)
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, found), np.int32, len(found)), out=offsets[1:])
    return BinaryColumn(offsets, memoryview(b"".join(found)))


def headers(chunk: Chunk) -> Node:
    """Lists of names and values: views where the batch has headers, and nothing otherwise."""
    found = chunk.columns.header_columns
    if found is None:
        lists = np.zeros(len(chunk) + 1, np.int32)
        names = values = column_of(())
    else:
        lists, names, values = found
        lists = lists[chunk.start : chunk.stop + 1]
    pairs = Node(len(names), (0,), children=(texts(names), binary(values)))
    return Node(len(chunk), (0, address_of(lists)), lists, children=(pairs,))


def chunk_array(chunk: Chunk, topic: int, topics: Node) -> Node:
    """A chunk as one array of structs. `topic` is its place in the dictionary `topics`."""
    count = len(chunk)
    number = np.full(count, topic, np.int32)
    return Node(
        count,
        (0,),
        children=(
            Node(count, (0, address_of(number)), number, dictionary=topics),
            plain(np.full(count, chunk.partition, np.int32)),
            plain(chunk.offsets),
            plain(chunk.timestamps),
            binary(chunk.keys),
            binary(chunk.values),
            headers(chunk),
        ),
    )


def arrays_of(
    chunks: Iterable[Chunk], topics: Iterable[str]
) -> Iterator[Callable[[cdata.Words], None]]:
    names = list(dict.fromkeys(topics))
    places = {name: place for place, name in enumerate(names)}
    dictionary = texts(column_of(name.encode() for name in names))
    for chunk in chunks:
        node = chunk_array(chunk, places[chunk.topic], dictionary)
        yield lambda words, node=node: fill_array(words, node)  # type: ignore[misc]


def stream(chunks: Iterable[Chunk], topics: Iterable[str]) -> object:
    """The capsule of a stream of chunks, all of which belong to `topics`. Chunks are taken as the
    consumer asks for them, by whatever thread does."""
    return cdata.stream_capsule(cdata.Source(fill_schema, arrays_of(chunks, topics)))


def table(source: object) -> Any:
    """A `pyarrow.Table` of anything with `__arrow_c_stream__`."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "to_arrow() makes a pyarrow.Table and pyarrow is not installed: "
            "pip install 'penstock[arrow]'. Polars, DuckDB and others take the batch itself, by "
            "its __arrow_c_stream__"
        ) from error
    return pyarrow.RecordBatchReader.from_stream(source).read_all()
