"""The results of a consumer: single records, and batches of them as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from operator import index as as_index
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, overload

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.client.public_view import shortened
from penstock.client.typed import K_co, Typed, V_co
from penstock.core.columns import BinaryColumn, Columns, HeaderList, NullColumn
from penstock.core.work import WorkColumns, WorkFields

if TYPE_CHECKING:
    import pyarrow


def _arrow() -> ModuleType:
    """Loads the Arrow export when it is first needed: most consumers never do."""
    from penstock.client.arrow import export

    return export


_NO_WORK: Final[list[Iterable[Any]]] = []


class RecordPlace(Protocol):
    """A record, or a job, as far as its place goes."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


def place_of(record: RecordPlace) -> str:
    """Names the place of a record, for messages."""
    return f"{record.topic}-{record.partition} offset {record.offset}"


class Record(Typed[V_co, K_co], msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp` in microseconds since the epoch; `value` None is a tombstone.

    `Record[Order]`, of a consumer with serializers: `value` is decoded when it is asked for, which
    raises `DecodeError` where it cannot be.

    A msgspec struct: made in C from columns at half the cost of a named tuple (measured 63 ns
    against 144), and its fields read twice as fast. Nothing in it can form a reference cycle.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K_co
    value: V_co
    headers: HeaderList = ()

    @property
    def raw_value(self) -> bytes | None:
        """The value as it is in the log."""
        return self.value  # type: ignore[return-value]  # without serializers it is the same

    @property
    def raw_key(self) -> bytes | None:
        """The key as it is in the log."""
        return self.key  # type: ignore[return-value]

    @property
    def datetime(self) -> datetime:
        """The timestamp as an aware datetime (UTC)."""
        return datetime.fromtimestamp(self.timestamp / 1e6, UTC)

    @property
    def due(self) -> int | None:
        """Returns when a work queue may deliver it, in microseconds since the epoch. None:
        at once."""
        return None

    @property
    def expires(self) -> int | None:
        """From when on a work queue delivers it no more. None: never."""
        return None

    @property
    def priority(self) -> int | None:
        """0 to 9, as its producer gave it, or None."""
        return None

    @property
    def dedup_id(self) -> bytes | None:
        """By which a work queue knows it again, or None."""
        return None

    @property
    def work(self) -> WorkFields | None:
        """These four as one, for `send(..., work=record.work)` of a program that passes it on."""
        return None


class WorkRecord(Record[V_co, K_co], frozen=True, gc=False):
    """A record of a batch with columns for work queues. Others have no room for what they lack:
    four more fields make each 8 % slower to make (measured)."""

    due: int | None = None
    expires: int | None = None
    priority: int | None = None
    dedup_id: bytes | None = None

    @property
    def work(self) -> WorkFields | None:
        return WorkFields(self.due, self.expires, self.priority, self.dedup_id)


class RecordDecoders(Protocol):
    """Makes decoded records; see `penstock.client.consumer.decoding`."""

    @property
    def kind(self) -> type[Record[Any, Any]]: ...
    def columns(self, work: Sequence[Iterable[Any]]) -> list[Iterable[Any]]: ...
    def values(self, chunk: Chunk) -> list[Any]: ...


class Chunk:
    """Rows `start` to `stop` of one decoded log batch of one partition. `decoders`: of its records'
    values and keys; None: these are bytes."""

    __slots__ = ("columns", "decoders", "partition", "start", "stop", "topic")

    def __init__(
        self, topic: str, partition: int, columns: Columns, start: int = 0, stop: int | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.columns = columns
        self.start = start
        self.stop = columns.count if stop is None else stop
        self.decoders: RecordDecoders | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> Chunk:
        """Returns other rows of the same batch."""
        piece = Chunk(self.topic, self.partition, self.columns, start, stop)
        piece.decoders = self.decoders
        return piece

    @property
    def size(self) -> int:
        """Bytes that its whole batch takes, expanded."""
        head = self.columns.head
        return max(head.length, head.raw_body_length)

    @property
    def _is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.columns.count

    @property
    def leader_epoch(self) -> int:
        return self.columns.head.leader_epoch

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self.columns.offsets[self.start : self.stop]

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        return self.columns.timestamps[self.start : self.stop]

    @property
    def values(self) -> BinaryColumn:
        values = self.columns.values
        return values if self._is_whole else values[self.start : self.stop]

    @property
    def keys(self) -> BinaryColumn | NullColumn:
        keys = self.columns.keys
        return keys if self._is_whole else keys[self.start : self.stop]

    def headers(self) -> list[HeaderList] | None:
        """Returns per record a tuple of pairs; None where the batch has none at all."""
        return self.columns.headers(self.start, self.stop)

    @property
    def work(self) -> WorkColumns | None:
        """Columns for work queues; None where the batch has none at all."""
        work = self.columns.work
        return work if work is None or self._is_whole else work.run(self.start, self.stop)

    def to_arrow(self) -> pyarrow.Table:
        """Converts as `RecordBatch.to_arrow`."""
        return RecordBatch([self]).to_arrow()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports as `RecordBatch.__arrow_c_stream__`."""
        return RecordBatch([self]).__arrow_c_stream__(requested_schema)

    @property
    def next_offset(self) -> int:
        """The offset to go on at once these rows are done."""
        if self.stop == self.columns.count:
            return self.columns.head.next_offset
        return self.row_offset(self.stop)

    def row_offset(self, row: int) -> int:
        """Returns the offset of a row, counted in the whole batch."""
        if self.columns.is_dense:
            return self.columns.head.base_offset + row
        return int(self.columns.offsets[row])

    def records(self) -> list[Record[Any, Any]]:
        """Returns all rows as records, made without Python code per record. Raises `StorageError`
        where their file was cut since it was read."""
        columns = self.columns
        columns.check_mapped()
        head = columns.head
        stamps = columns.constant_timestamp
        decoders = self.decoders
        is_one = columns.count == 1 == self.stop - self.start and columns.is_dense
        is_one = is_one and decoders is None
        if is_one and stamps is not None and columns.work is None:
            # Nobody wants to wait for machinery made for many.
            only_key = None if isinstance(columns.keys, NullColumn) else columns.keys[0]
            lists = columns.headers() if columns.header_columns is not None else None
            return [
                Record(
                    self.topic, self.partition, head.base_offset, stamps, only_key,
                    columns.values[0], lists[0] if lists else (),
                )
            ]  # fmt: skip
        offsets: Sequence[int]
        if columns.is_dense:
            offsets = range(head.base_offset + self.start, head.base_offset + self.stop)
        else:
            offsets = self.offsets.tolist()
        headers = self.headers()
        keys = self.keys
        kind, more = Record, _NO_WORK
        if (work := self.work) is not None:
            kind = WorkRecord
            more = [repeat(None) if column is None else column for column in work]
        if decoders is not None:
            kind, more = decoders.kind, decoders.columns(more)
        rows: map[Record[Any, Any]] = map(
            kind,
            repeat(self.topic),
            repeat(self.partition),
            offsets,
            repeat(stamps) if stamps is not None else self.timestamps.tolist(),
            keys if isinstance(keys, NullColumn) else keys.to_list(),
            self.values.to_list(),
            repeat(()) if headers is None else headers,
            *more,
        )
        return list(rows)


class RecordBatch(Typed[V_co, K_co]):
    """The result of one `poll`: records of one or several partitions, as columns.

    `len()` counts records; an empty batch is false. Iterating gives `Record`s, `batch[0]` one of
    them, and `batch[2:5]` a batch of these, in place. The columns run over all chunks in order:
    `offsets`, `timestamps` (microseconds) and `partitions` are int64[n] and int32[n]; `values` and
    `keys` behave as sequences of `bytes | None`. `due`, `expires`, `priorities` and `dedup_ids` are
    lists, and None where no record has anything there.
    """

    __slots__ = ("chunks",)

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        self.chunks = tuple(chunks)

    def __bool__(self) -> bool:
        for chunk in self.chunks:  # noqa: SIM110 - asked of every poll: no calls for each chunk
            if chunk.stop > chunk.start:
                return True
        return False

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[Record[V_co, K_co]]:
        return chain.from_iterable(chunk.records() for chunk in self.chunks)

    def decode(self) -> list[V_co]:
        """Returns the values of all records, decoded by the serializer of the consumer: list by
        list, which is faster than record by record. Raises `DecodeError` naming the first record
        that cannot be."""
        found: list[Any] = []
        for chunk in self.chunks:
            decoders = chunk.decoders
            found += chunk.values.to_list() if decoders is None else decoders.values(chunk)
        return found

    @overload
    def __getitem__(self, index: int) -> Record[V_co, K_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Record[V_co, K_co] | Self:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"a batch is sliced in steps of 1, not of {step}")
            return self._with(self._cut(start, stop))
        row = as_index(index)
        row += len(self) if row < 0 else 0
        found = self._cut(row, row + 1) if row >= 0 else []
        if not found:
            raise IndexError(f"record {index} of a batch of {len(self)}")
        return found[0].records()[0]

    def _cut(self, start: int, stop: int) -> list[Chunk]:
        """Returns the chunks of these rows, counted over all."""
        found = []
        for chunk in self.chunks:
            count = len(chunk)
            first, last = max(start, 0), min(stop, count)
            if first < last:
                found.append(chunk.cut(chunk.start + first, chunk.start + last))
            start, stop = start - count, stop - count
        return found

    def _with(self, chunks: Sequence[Chunk]) -> Self:
        """Returns such a batch of other chunks."""
        return type(self)(chunks)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return _concatenated([chunk.offsets for chunk in self.chunks])

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        return _concatenated([chunk.timestamps for chunk in self.chunks])

    @property
    def partitions(self) -> npt.NDArray[np.int32]:
        counts = [len(chunk) for chunk in self.chunks]
        return np.repeat(np.array([chunk.partition for chunk in self.chunks], np.int32), counts)

    @property
    def values(self) -> ChunkedColumn:
        return ChunkedColumn([chunk.values for chunk in self.chunks])

    @property
    def keys(self) -> ChunkedColumn:
        return ChunkedColumn([chunk.keys for chunk in self.chunks])

    @property
    def due(self) -> list[int | None] | None:
        """Returns when work queues may deliver each record; None where none of them has such a
        time."""
        return self._of_work("due")

    @property
    def expires(self) -> list[int | None] | None:
        """See `due`."""
        return self._of_work("expires")

    @property
    def priorities(self) -> list[int | None] | None:
        """See `due`."""
        return self._of_work("priorities")

    @property
    def dedup_ids(self) -> list[bytes | None] | None:
        """See `due`."""
        return self._of_work("dedup_ids")

    def _of_work(self, name: str) -> list[Any] | None:
        columns = [getattr(chunk.work, name, None) for chunk in self.chunks]
        if all(column is None for column in columns):
            return None
        filled = (
            repeat(None, len(chunk)) if column is None else column
            for chunk, column in zip(self.chunks, columns, strict=True)
        )
        return list(chain.from_iterable(filled))

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(chunk.values.nbytes for chunk in self.chunks)

    def to_numpy(self, dtype: npt.DTypeLike | None = None) -> dict[str, npt.NDArray[Any]]:
        """Returns one array a column: `partitions` int32[n], `offsets` int64[n], `timestamps`
        datetime64[us][n] (UTC), and `values`, which must all be of one width and not null.

        `values` are uint8[n, width], and with a `dtype` dtype[n] (dtype[n, k] if a value holds k of
        them): read-only and in place where the batch has one chunk, else joined by one copy. Raises
        ValueError where values differ in width, are null or do not divide into `dtype`.
        """
        from penstock.client.arrow.to_numpy import values

        return {
            "partitions": self.partitions,
            "offsets": self.offsets,
            "timestamps": self.timestamps.view("datetime64[us]"),
            "values": values([chunk.values for chunk in self.chunks], dtype),
        }

    def to_arrow(self) -> pyarrow.Table:
        """Returns a `pyarrow.Table`, keys and values in place (`penstock.client.arrow.export` has
        the columns). Raises ImportError without pyarrow (`penstock[arrow]`)."""
        return _arrow().table(self.chunks, [chunk.topic for chunk in self.chunks])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports the batch to libraries that read Arrow: `pyarrow.table(batch)`,
        `polars.DataFrame(batch)`, DuckDB. The same columns as `to_arrow` has, and the same needs.
        """
        reader = _arrow().reader(self.chunks, [chunk.topic for chunk in self.chunks])
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} records{self._said()}>"

    def _said(self) -> str:
        """Returns first and last offset of each partition, of many only some."""
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for chunk in self.chunks:
            if len(chunk):
                name, last = (chunk.topic, chunk.partition), chunk.row_offset(chunk.stop - 1)
                spans[name] = spans.get(name, (chunk.row_offset(chunk.start), 0))[0], last
        parts = [f"{topic}-{number} {a} to {b}" for (topic, number), (a, b) in spans.items()]
        return ": " + shortened(parts) if parts else ""


def _concatenated(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    if not parts:
        return np.empty(0, np.int64)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class ChunkedColumn(Sequence[bytes | None]):
    """Several columns one after the other. `chunks` are the parts, each over its own bytes."""

    __slots__ = ("_ends", "chunks")

    def __init__(self, chunks: Sequence[BinaryColumn | NullColumn]) -> None:
        self.chunks = tuple(chunks)
        self._ends = np.cumsum([len(chunk) for chunk in self.chunks], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.to_list()[index]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"item {index} of a column of {len(self)}")
        which = int(np.searchsorted(self._ends, position, side="right"))
        before = int(self._ends[which - 1]) if which else 0
        return self.chunks[which][position - before]

    def __iter__(self) -> Iterator[bytes | None]:
        return chain.from_iterable(self.chunks)

    def to_list(self) -> list[bytes | None]:
        return list(chain.from_iterable(chunk.to_list() for chunk in self.chunks))

    def __repr__(self) -> str:
        return f"ChunkedColumn({len(self)} items in {len(self.chunks)} chunks)"
