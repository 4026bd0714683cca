"""From a batch image to columns: the reading half of the body format (`sections` draws it).

A decoded batch is a handful of numpy views over the batch's own bytes; nothing is copied until a
caller asks for Python objects. Every length and offset is checked before it is used, so that bytes
from another process can raise `CorruptBatchError` and nothing worse.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from penstock.core import encode as en
from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core import work as wk
from penstock.core.crc import crc32c
from penstock.core.errors import CorruptBatchError
from penstock.core.plain import expanded
from penstock.core.storage import Window, cut_off

SMALL: Final = 8
"""Up to so many records plain Python beats a handful of numpy calls (by 8 us at one record)."""

HeaderList = tuple[tuple[str, bytes | None], ...]


class BinaryColumn(Sequence[bytes | None]):
    """n byte strings as int32 offsets[n+1] over one buffer, with an optional validity mask.

    `offsets[i]:offsets[i+1]` bounds item i in `data` (offsets need not start at 0 after slicing).
    Indexing gives `bytes` (None for a null); slicing gives a column over the same bytes.
    """

    __slots__ = ("_bounds", "_offsets", "data", "valid")

    def __init__(
        self,
        offsets: npt.NDArray[np.int32] | tuple[int, ...],
        data: memoryview,
        valid: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Takes `offsets` of a few items as plain numbers and makes an array only on request. This
        reads records that come one by one 5 us earlier."""
        self._bounds = offsets if isinstance(offsets, tuple) else None
        self._offsets = None if isinstance(offsets, tuple) else offsets
        self.data = data
        self.valid = valid

    @property
    def offsets(self) -> npt.NDArray[np.int32]:
        if self._offsets is None:
            self._offsets = np.array(self._bounds, np.int32)
        return self._offsets

    def __len__(self) -> int:
        return len(self._bounds or self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """int32[n]: the length of each item in bytes (0 for a null)."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of the items themselves."""
        bounds = self._bounds or self.offsets
        return int(bounds[-1]) - int(bounds[0])

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> BinaryColumn: ...
    def __getitem__(self, index: int | slice) -> bytes | BinaryColumn | None:
        bounds: Any = self._bounds
        if index == 0 and bounds is not None and len(bounds) == 2 and self.valid is None:
            return bytes(self.data[bounds[0] : bounds[1]])  # the only one, which is waited for
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a column is sliced in steps of 1; index `.to_list()` otherwise")
            stop = max(stop, start)
            valid = self.valid[start:stop] if self.valid is not None else None
            return BinaryColumn(self.offsets[start : stop + 1], self.data, valid)
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"item {index} of a column of {len(self)}")
        if self.valid is not None and not self.valid[position]:
            return None
        bounds = bounds or self.offsets
        return bytes(self.data[bounds[position] : bounds[position + 1]])

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.to_list())

    def to_list(self) -> list[bytes | None]:
        """All items as Python bytes, made in C: one pass, no Python code per item."""
        items: list[bytes | None]
        if self._bounds is not None:
            copy = bytes(self.data)
            items = [copy[start:stop] for start, stop in pairwise(self._bounds)]
        else:
            items = self._many(self._offsets)
        if self.valid is not None:
            for index in np.flatnonzero(~self.valid).tolist():
                items[index] = None
        return items

    def _many(self, offsets: Any) -> list[bytes | None]:
        count = len(offsets) - 1
        if count == 0:
            return []
        first, last = int(offsets[0]), int(offsets[-1])
        width = int(offsets[1]) - first
        if count > SMALL and width > 0 and last - first == width * count and self._uniform(width):
            uniform: list[bytes | None] = np.frombuffer(
                self.data, f"V{width}", count, first
            ).tolist()
            return uniform
        copy = bytes(self.data[first:last])
        bounds = (offsets - first).tolist() if first else offsets.tolist()
        return list(map(copy.__getitem__, map(slice, bounds, bounds[1:])))

    def _uniform(self, width: int) -> bool:
        return bool((np.diff(self.offsets) == width).all())

    def __repr__(self) -> str:
        return f"BinaryColumn({len(self)} items, {self.nbytes} bytes)"


class NullColumn(Sequence[None]):
    """A column of n nulls: the keys of a batch that has none."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> None: ...
    @overload
    def __getitem__(self, index: slice) -> NullColumn: ...
    def __getitem__(self, index: int | slice) -> NullColumn | None:
        if isinstance(index, slice):
            return NullColumn(len(range(*index.indices(self._count))))
        if not -self._count <= index < self._count:
            raise IndexError(f"item {index} of a column of {self._count}")
        return None

    def __iter__(self) -> Iterator[None]:
        return repeat(None, self._count)

    def to_list(self) -> list[None]:
        return [None] * self._count


class Columns:
    """One decoded batch. Offsets and timestamps are made when asked for.

    `values`: BinaryColumn[n]; `keys`: BinaryColumn[n] or NullColumn[n]; `offsets`: int64[n];
    `timestamps`: int64[n], microseconds since the epoch, and `constant_timestamp` the only one of
    them, None where they differ. `is_dense`: whether record i has offset base + i.
    `header_columns`: int32[n+1] bounds of each record's headers in the columns of names and values;
    None where the batch has no headers at all. `work`: columns for work queues, None where it has
    none of them. `mapped_end`: where the batch ends in the buffer
    that the columns view, 0 where they view none.
    """

    __slots__ = ("_sparse", "_times", "constant_timestamp", "count", "head", "header_columns",
                 "is_dense", "keys", "mapped_end", "values", "work")  # fmt: skip

    constant_timestamp: int | None

    def __init__(
        self,
        head: hd.BatchHeader,
        values: BinaryColumn,
        keys: BinaryColumn | NullColumn,
        sparse: npt.NDArray[np.int32] | None,
        times: npt.NDArray[np.int32] | npt.NDArray[np.int64] | None,
        header_columns: tuple[npt.NDArray[np.int32], BinaryColumn, BinaryColumn] | None,
        work: wk.WorkColumns | None = None,
    ) -> None:
        self.head = head
        self.count = head.record_count
        self.values = values
        self.keys = keys
        self._sparse = sparse
        self.is_dense = sparse is None
        self._times = times
        if head.flags & hd.FLAG_APPEND_TIME:
            self.constant_timestamp = head.append_timestamp
        else:
            self.constant_timestamp = head.base_timestamp if times is None else None
        self.header_columns = header_columns
        self.work = work
        self.mapped_end = 0

    @property
    def is_mapped(self) -> bool:
        """Whether they view a file, and take no memory for its bytes."""
        return bool(self.mapped_end) and isinstance(self.values.data.obj, Window)

    def check_mapped(self) -> None:
        """Raises `StorageError` where the file that they view was cut since it was read."""
        window = self.values.data.obj
        if self.mapped_end and isinstance(window, Window):
            size, end = window.size(), window.position + self.mapped_end
            if size < end:  # touching what is cut off is SIGBUS
                raise cut_off(window.path, size, end)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        base = self.head.base_offset
        if self._sparse is not None:
            return self._sparse.astype(np.int64) + base
        return np.arange(base, base + self.count, dtype=np.int64)

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        if self.constant_timestamp is not None:
            return np.full(self.count, self.constant_timestamp, np.int64)
        assert self._times is not None
        return self._times.astype(np.int64) + self.head.base_timestamp

    def first_at(self, offset: int) -> int:
        """Index of the first record at or above `offset`."""
        if self._sparse is None:
            return min(max(offset - self.head.base_offset, 0), self.count)
        return int(np.searchsorted(self._sparse, offset - self.head.base_offset))

    def headers(self, start: int = 0, stop: int | None = None) -> list[HeaderList] | None:
        """Per record, of these rows, a tuple of (name, value) pairs; None where the batch has no
        headers at all."""
        if self.header_columns is None:
            return None
        lists, names, values = self.header_columns
        bounds = lists[start : (self.count if stop is None else stop) + 1].tolist()
        first, end = bounds[0], bounds[-1]
        named = names[first:end].to_list()
        texts = [str(name, "utf-8", "replace") for name in named if name is not None]
        pairs = list(zip(texts, values[first:end].to_list(), strict=True))
        return [tuple(pairs[low - first : high - first]) for low, high in pairwise(bounds)]


def _ints(
    body: memoryview, start: int, length: int, count: int, what: str
) -> npt.NDArray[np.int32]:
    if length != 4 * count:
        raise CorruptBatchError(f"{what} hold {length} bytes where {4 * count} belong")
    return np.frombuffer(body, "<i4", count, start)


def _rising(
    body: memoryview, start: int, length: int, count: int, end: int
) -> npt.NDArray[np.int32] | tuple[int, ...]:
    """The `count` offsets at byte `start` of `body`, of which a few are plain numbers. They go from
    0 to `end` without ever falling."""
    rises: bool
    if count <= SMALL and length == 4 * count:
        few = struct.unpack_from(f"<{count}i", body, start)
        rises = few[0] == 0 and few[-1] == end and list(few) == sorted(few)
        if rises:
            return few
    else:
        offsets = _ints(body, start, length, count, "column offsets")
        rises = offsets[0] == 0 and offsets[-1] == end
        if rises and not (offsets[1:] < offsets[:-1]).any():
            return offsets
    raise CorruptBatchError("column offsets do not rise from 0 to the length of their bytes")


def _binary_column(
    body: memoryview,
    found: dict[int, tuple[int, int, int]],
    validity_id: int,
    offsets_id: int,
    bytes_id: int,
    count: int,
) -> BinaryColumn:
    if offsets_id not in found or bytes_id not in found:
        raise CorruptBatchError(f"the batch lacks its sections {offsets_id} and {bytes_id}")
    _, start, length = found[offsets_id]
    _, data_start, data_length = found[bytes_id]
    offsets = _rising(body, start, length, count + 1, data_length)
    valid = None
    if validity_id in found:
        _, bits_start, bits_length = found[validity_id]
        if bits_length != (count + 7) // 8:
            raise CorruptBatchError("a validity bitmap has the wrong length")
        bits = np.frombuffer(body, np.uint8, bits_length, bits_start)
        valid = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
    return BinaryColumn(offsets, body[data_start : data_start + data_length], valid)


def decode(
    buffer: memoryview,
    position: int,
    head: hd.BatchHeader,
    *,
    verify: bool = True,
) -> Columns:
    """The columns of the batch at `position`, whose header was checked (`header.checked`).

    With `verify` the body crc is checked first. The columns view `buffer` unless the body was
    compressed. Raises `CorruptBatchError` or `UnsupportedVersionError`.
    """
    if len(buffer) - position < head.length:
        raise CorruptBatchError(
            f"batch at byte {position} is {head.length} bytes long, {len(buffer) - position} are "
            "there"
        )
    if verify and crc32c(buffer[position + hd.BODY_CRC_FROM : position + head.length]) != (
        head.body_crc
    ):
        raise CorruptBatchError(
            f"body checksum of the batch at byte {position} (base offset {head.base_offset}) is "
            "wrong"
        )
    stored = body = buffer[position + hd.HEADER_BYTES : position + head.length]
    mapped_end = position + head.length
    if head.codec != hd.CODEC_NONE:
        body, mapped_end = memoryview(expanded(stored, head)), 0
    count = head.record_count
    if count == 1 and not head.attributes & _NOT_PLAIN:
        only = _plain_one(body, head)
        if only is not None:
            only.mapped_end = mapped_end
            return only
    found = sc.directory(body)
    values = _binary_column(
        body,
        found,
        sc.SECTION_VALUE_VALIDITY,
        sc.SECTION_VALUE_OFFSETS,
        sc.SECTION_VALUE_BYTES,
        count,
    )
    keys: BinaryColumn | NullColumn
    if head.attributes & hd.ATTR_HAS_KEYS:
        keys = _binary_column(
            body,
            found,
            sc.SECTION_KEY_VALIDITY,
            sc.SECTION_KEY_OFFSETS,
            sc.SECTION_KEY_BYTES,
            count,
        )
    else:
        keys = NullColumn(count)
    columns = Columns(
        head, values, keys, _sparse(body, found, head), _times(body, found, count),
        _headers(body, found, head),
    )  # fmt: skip
    if head.attributes & hd.ATTR_HAS_WORK:
        columns.work = wk.read_work(stored, head, _ends).columns(count)
    columns.mapped_end = mapped_end
    return columns


def _ends(deltas: array[int]) -> tuple[int, int]:
    numbers = np.frombuffer(deltas, f"i{deltas.itemsize}")
    return int(numbers.min()), int(numbers.max())


_NOT_PLAIN: Final = (
    hd.ATTR_HAS_KEYS | hd.ATTR_HAS_HEADERS | hd.ATTR_SPARSE_OFFSETS | hd.ATTR_HAS_WORK
)
_NO_KEY: Final = NullColumn(1)


def _plain_one(body: memoryview, head: hd.BatchHeader) -> Columns | None:
    """The columns of a batch of one value as `encode_one` makes it; None where it is another."""
    plain = en.PLAIN_ONE
    if len(body) < plain.size:
        return None
    start, encoding, length, end, first, last = plain.unpack_from(body)
    if start != en.PLAIN_ONE_START or encoding or end or first or last != length:
        return None
    if plain.size + length > len(body) or head.last_offset_delta:
        return None
    values = BinaryColumn((0, length), body[plain.size : plain.size + length])
    return Columns(head, values, _NO_KEY, None, None, None)


def _sparse(
    body: memoryview, found: dict[int, tuple[int, int, int]], head: hd.BatchHeader
) -> npt.NDArray[np.int32] | None:
    if not head.attributes & hd.ATTR_SPARSE_OFFSETS:
        if head.record_count != head.last_offset_delta + 1 and head.record_count:
            raise CorruptBatchError("a dense batch has fewer records than offsets")
        return None
    if sc.SECTION_OFFSET_DELTAS not in found:
        raise CorruptBatchError("a sparse batch lacks its offset deltas")
    _, start, length = found[sc.SECTION_OFFSET_DELTAS]
    deltas = _ints(body, start, length, head.record_count, "offset deltas")
    if len(deltas) and (
        deltas[0] < 0
        or deltas[-1] > head.last_offset_delta
        or bool((deltas[1:] <= deltas[:-1]).any())
    ):
        raise CorruptBatchError("offset deltas do not rise within their batch")
    return deltas


def _times(
    body: memoryview, found: dict[int, tuple[int, int, int]], count: int
) -> npt.NDArray[np.int32] | npt.NDArray[np.int64] | None:
    encoding, start, length = found.get(sc.SECTION_TIMESTAMPS, (sc.ENCODING_CONSTANT, 0, 0))
    if encoding == sc.ENCODING_CONSTANT:
        return None
    if encoding == sc.ENCODING_INT32 and length == 4 * count:
        return np.frombuffer(body, "<i4", count, start)
    if encoding == sc.ENCODING_INT64 and length == 8 * count:
        return np.frombuffer(body, "<i8", count, start)
    raise CorruptBatchError(f"timestamps in encoding {encoding} hold {length} bytes")


def _headers(
    body: memoryview, found: dict[int, tuple[int, int, int]], head: hd.BatchHeader
) -> tuple[npt.NDArray[np.int32], BinaryColumn, BinaryColumn] | None:
    if not head.attributes & hd.ATTR_HAS_HEADERS:
        return None
    if sc.SECTION_HEADER_LISTS not in found:
        raise CorruptBatchError("a batch with headers lacks its header lists")
    _, start, length = found[sc.SECTION_HEADER_LISTS]
    lists = _ints(body, start, length, head.record_count + 1, "header lists")
    total = int(lists[-1])
    if lists[0] != 0 or total < 0 or bool((lists[1:] < lists[:-1]).any()):
        raise CorruptBatchError("header lists do not rise from 0")
    names = _binary_column(
        body, found, 0, sc.SECTION_HEADER_NAME_OFFSETS, sc.SECTION_HEADER_NAME_BYTES, total
    )
    values = _binary_column(
        body,
        found,
        sc.SECTION_HEADER_VALUE_VALIDITY,
        sc.SECTION_HEADER_VALUE_OFFSETS,
        sc.SECTION_HEADER_VALUE_BYTES,
        total,
    )
    return lists, names, values
