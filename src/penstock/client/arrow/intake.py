"""Reads foreign Arrow streams as columns to be sent: finds the named columns, checks them, views
them.

Columns are views of the stream's own buffers, good until the next array is asked for. A column of
this package that is cut out of them is a view, too, unless its layout had to be changed. Owns the
reading of foreign structs. Trusts them: a caller that hands over a pointer shares the process.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.client.arrow import cdata
from penstock.core.columns import BinaryColumn
from penstock.core.encode_columns import HeaderColumns
from penstock.core.errors import PenstockError
from penstock.core.gather import (
    Bytes,
    Longs,
    copy_items,
    ranges,
    take,
    without_hidden_bytes,
)

INLINE: Final = 12
"""Items of a view column up to this length are in the view itself, behind its length."""

_OFFSETS: Final = {"z": np.int32, "u": np.int32, "Z": np.int64, "U": np.int64}
_VIEWS: Final = ("vz", "vu")
_LISTS: Final = {"+l": np.int32, "+m": np.int32, "+L": np.int64}
_TIMES: Final = {"tss:": 1_000_000, "tsm:": 1_000, "tsu:": 1, "tsn:": -1_000}
_NAMES: Final = {
    "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32",
    "I": "uint32", "l": "int64", "L": "uint64", "e": "float16", "f": "float32", "g": "float64",
    "tdD": "date32", "tdm": "date64", "+s": "struct", "+l": "list", "+L": "large_list",
    "+m": "map", "n": "null",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrowKind:
    """A schema struct, read."""

    name: str
    format: str
    children: tuple[ArrowKind, ...]
    has_dictionary: bool

    def __str__(self) -> str:
        if self.has_dictionary:
            return "dictionary"
        return _NAMES.get(self.format, f"Arrow format {self.format!r}")

    @property
    def is_binary(self) -> bool:
        known = self.format in _OFFSETS or self.format in _VIEWS or self.format.startswith("w:")
        return known and not self.has_dictionary


def read_kind(address: int) -> ArrowKind:
    words = cdata.schema_at(address)
    children = cdata.pointers_at(words[5], words[4])
    return ArrowKind(
        (ctypes.string_at(words[1]) if words[1] else b"").decode("utf-8", "replace"),
        ctypes.string_at(words[0]).decode(),
        tuple(map(read_kind, children)),
        bool(words[6]),
    )


# --- columns ------------------------------------------------------------------------------------
def view(address: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns `count` items of a foreign buffer."""
    size = count * np.dtype(dtype).itemsize
    if not size:
        return np.empty(0, dtype)
    foreign = (ctypes.c_uint8 * size).from_address(address)
    found: npt.NDArray[Any] = np.frombuffer(memoryview(foreign), dtype)
    return found


def validity(words: cdata.Words, offset: int, count: int) -> npt.NDArray[np.bool_] | None:
    """Returns an array's bitmap as bool[count]; None where nothing is null."""
    bitmap = cdata.pointers_at(words[5], 1)[0] if words[3] else 0
    if not bitmap or words[1] == 0:
        return None
    bits = view(bitmap, (offset + count + 7) // 8, np.uint8)[offset // 8 :]
    start = offset % 8
    valid = np.unpackbits(bits, count=start + count, bitorder="little")[start:].view(np.bool_)
    return None if valid.all() else valid


class Items(ABC):
    """A foreign column of byte strings: int64[n] `lengths` (0 for a null), and `valid`."""

    lengths: Longs
    valid: npt.NDArray[np.bool_] | None

    @abstractmethod
    def cut(self, start: int, stop: int) -> BinaryColumn:
        """Rows as a column whose offsets fit int32."""


class OffsetItems(Items):
    """binary, string and their large kinds; fixed-size binary with offsets made for it."""

    def __init__(
        self, offsets: npt.NDArray[Any], data: Bytes, valid: npt.NDArray[np.bool_] | None
    ) -> None:
        self._offsets = offsets
        self._data = data
        self.valid = valid
        self.lengths = np.diff(offsets).astype(np.int64, copy=False)

    def cut(self, start: int, stop: int) -> BinaryColumn:
        offsets = self._offsets[start : stop + 1]
        valid = None if self.valid is None else self.valid[start:stop]
        first, last = int(offsets[0]), int(offsets[-1])
        data = self._data[first:last].data
        return without_hidden_bytes(BinaryColumn((offsets - first).astype(np.int32), data, valid))


class ViewItems(Items):
    """binary_view and string_view: (length, 12 bytes, or prefix, buffer and offset) for each."""

    def __init__(
        self, views: Bytes, buffers: list[Bytes], valid: npt.NDArray[np.bool_] | None
    ) -> None:
        self._raw = views
        self._views = views.view(np.int32).reshape(-1, 4)
        self._buffers = buffers
        self.valid = valid
        self.lengths = self._views[:, 0].astype(np.int64)
        if valid is not None:
            self.lengths[~valid] = 0

    def cut(self, start: int, stop: int) -> BinaryColumn:
        lengths, views = self.lengths[start:stop], self._views[start:stop]
        valid = None if self.valid is None else self.valid[start:stop]
        offsets = np.zeros(stop - start + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        out = np.empty(int(offsets[-1]), np.uint8)
        to = offsets[:-1].astype(np.int64)
        inline = lengths <= INLINE
        rows = np.flatnonzero(inline)
        copy_items(out, to[rows], self._raw, 16 * (start + rows) + 4, lengths[rows])
        for number in np.unique(views[~inline, 2]).tolist():
            rows = np.flatnonzero(~inline & (views[:, 2] == number))
            starts = views[rows, 3].astype(np.int64)
            copy_items(out, to[rows], self._buffers[number], starts, lengths[rows])
        return BinaryColumn(offsets, out.data, valid)


class Headers:
    """A foreign column of lists (or a map) of names and values."""

    def __init__(
        self, bounds: Longs, names: Items, values: Items, valid: npt.NDArray[np.bool_] | None
    ) -> None:
        self._starts = bounds[:-1]
        self.counts = np.diff(bounds)
        if valid is not None:
            self.counts = np.where(valid, self.counts, 0)
        self._names = names
        self._values = values

    def cut(self, start: int, stop: int) -> HeaderColumns:
        counts, starts = self.counts[start:stop], self._starts[start:stop]
        bounds = np.zeros(stop - start + 1, np.int32)
        np.cumsum(counts, out=bounds[1:])
        entries = ranges(starts, counts)
        low, high = (int(entries.min()), int(entries.max()) + 1) if len(entries) else (0, 0)
        entries -= low
        return HeaderColumns(
            bounds,
            take(self._names.cut(low, high), entries),
            take(self._values.cut(low, high), entries),
        )


def read_items(kind: ArrowKind, address: int, offset: int, count: int) -> Items:
    """Returns a column of byte strings of an array struct, its rows from `offset` on."""
    words = cdata.array_at(address)
    offset += words[2]
    valid = validity(words, offset, count)
    buffers = cdata.pointers_at(words[5], words[3])
    if kind.format.startswith("w:"):
        width = int(kind.format[2:])
        offsets = np.arange(count + 1, dtype=np.int64) * width
        return OffsetItems(offsets, view(buffers[1] + offset * width, count * width, "u1"), valid)
    if kind.format in _VIEWS:
        sizes = view(buffers[-1], len(buffers) - 3, np.int64).tolist()
        data = [view(at, size, "u1") for at, size in zip(buffers[2:-1], sizes, strict=True)]
        return ViewItems(view(buffers[1] + 16 * offset, 16 * count, "u1"), data, valid)
    dtype = np.dtype(_OFFSETS[kind.format])
    if not count:
        return OffsetItems(np.zeros(1, dtype), np.empty(0, np.uint8), None)
    offsets = view(buffers[1] + dtype.itemsize * offset, count + 1, dtype)
    return OffsetItems(offsets, view(buffers[2], int(offsets[-1]), "u1"), valid)


def read_times(kind: ArrowKind, address: int, offset: int, count: int, missing: int) -> Longs:
    """Returns microseconds as int64[count]; `missing` where null."""
    words = cdata.array_at(address)
    offset += words[2]
    valid = validity(words, offset, count)
    stamps = view(cdata.pointers_at(words[5], 2)[1] + 8 * offset, count, np.int64)
    factor = _TIMES.get(kind.format[:4], 1)
    found: Longs = stamps * factor if factor > 0 else stamps // -factor
    return found if valid is None else np.where(valid, found, missing)


def read_headers(kind: ArrowKind, address: int, offset: int, count: int) -> Headers:
    words = cdata.array_at(address)
    offset += words[2]
    dtype = np.dtype(_LISTS[kind.format])
    bounds = np.zeros(1, np.int64)
    if count:
        at = cdata.pointers_at(words[5], 2)[1] + dtype.itemsize * offset
        bounds = view(at, count + 1, dtype).astype(np.int64)
    entries_at = cdata.pointers_at(words[6], 1)[0]
    entries = cdata.array_at(entries_at)
    name, value = (
        read_items(child, at, entries[2], entries[0])
        for child, at in zip(
            kind.children[0].children, cdata.pointers_at(entries[6], 2), strict=True
        )
    )
    if name.valid is not None:
        raise ValueError("a header without a name (null) cannot be sent")
    return Headers(bounds, name, value, validity(words, offset, count))


# --- streams ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Wanted:
    """The names of the columns to send."""

    value: str
    key: str | None = None
    timestamp: str | None = None
    headers: str | None = None


@dataclass(slots=True)
class Part:
    """One array of a stream: its columns, good until the next one is asked for."""

    count: int
    values: Items
    keys: Items | None
    timestamps: Longs | None
    headers: Headers | None


class Intake:
    """A foreign stream being read. Made by `opened`."""

    def __init__(self, stream: int, schema: ArrowKind, wanted: Wanted, what: str) -> None:
        self._stream = stream
        self._what = what
        names = [child.name for child in schema.children]
        if schema.format != "+s":
            raise TypeError(f"{what} is a stream of {schema} and not of columns: send a table")
        self._places: dict[str, tuple[int, ArrowKind]] = {}
        for role, name in (
            ("value", wanted.value), ("key", wanted.key), ("timestamp", wanted.timestamp),
            ("headers", wanted.headers),
        ):  # fmt: skip
            if name is None:
                continue
            if (count := names.count(name)) != 1:
                found = f"{count} columns" if count else "no column"
                raise ValueError(
                    f"{what} has {found} {name!r} (the {role}_column); it has "
                    f"{', '.join(map(repr, names)) or 'none'}"
                )
            place = names.index(name)
            _check(role, schema.children[place], what)
            self._places[role] = (place, schema.children[place])

    def parts(self, missing_time: int) -> Generator[Part, None, None]:
        """Yields the arrays of the stream. Records without a time get `missing_time`."""
        array = (ctypes.c_uint64 * cdata.ARRAY_WORDS)()
        at = ctypes.addressof(array)
        get_next = cdata.GET(cdata.stream_at(self._stream)[1])
        while True:
            array[cdata.ARRAY_RELEASE] = 0
            check(self._stream, get_next(self._stream, at), self._what)
            if not array[cdata.ARRAY_RELEASE]:
                return
            try:
                if array[0]:
                    yield self._part(array, missing_time)
            finally:
                release_array(at)

    def _part(self, array: cdata.Words, missing_time: int) -> Part:
        count, offset = array[0], array[2]
        children = cdata.pointers_at(array[6], array[4])

        def found(role: str) -> tuple[ArrowKind, int] | None:
            if role not in self._places:
                return None
            place, kind = self._places[role]
            return kind, children[place]

        value, key, time, pairs = map(found, ("value", "key", "timestamp", "headers"))
        assert value is not None
        return Part(
            count,
            read_items(*value, offset, count),
            read_items(*key, offset, count) if key else None,
            read_times(*time, offset, count, missing_time) if time else None,
            read_headers(*pairs, offset, count) if pairs else None,
        )


def _check(role: str, kind: ArrowKind, what: str) -> None:
    """Checks that a column fits its role. Raises TypeError with advice otherwise."""
    if role in ("value", "key"):
        good, needed = kind.is_binary, "binary or string"
        hint = (
            "cast it, in pyarrow by column.cast(pyarrow.binary()), in Polars by "
            f"pl.col({kind.name!r}).cast(pl.Binary), in SQL by CAST(... AS BLOB)"
        )
    elif role == "timestamp":
        good = not kind.has_dictionary and (kind.format == "l" or kind.format[:4] in _TIMES)
        needed, hint = "timestamp or int64 (microseconds)", "cast it"
    else:
        entries = kind.children[0].children if kind.children else ()
        good = kind.format in _LISTS and len(entries) == 2 and all(e.is_binary for e in entries)
        needed = "list<struct<name, value>> or map, of binary or string"
        hint = "cast it"
    if not good:
        raise TypeError(
            f"column {kind.name!r} of {what} is {kind}; a {role}_column must be {needed}: {hint}"
        )


def check(stream: int, code: int, what: str) -> None:
    """Raises the error that a stream reports."""
    if not code:
        return
    text = cdata.GET_ERROR(cdata.stream_at(stream)[2])(stream)
    detail = ctypes.string_at(text).decode("utf-8", "replace") if text else f"error {code}"
    raise PenstockError(f"{what} failed while it was read: {detail}")


def release_array(address: int) -> None:
    release = cdata.array_at(address)[cdata.ARRAY_RELEASE]
    if release:
        cdata.RELEASE(release)(address)


@contextmanager
def opened(data: Any, wanted: Wanted) -> Iterator[Intake]:
    """Reads `data`, which has `__arrow_c_stream__`, and releases the stream at the end, whether
    read to its end or not.

    Raises TypeError for what is no Arrow stream and for columns of types that cannot be sent,
    ValueError for columns that are not there.
    """
    what = type(data).__name__
    make = getattr(data, "__arrow_c_stream__", None)
    if make is None:
        raise TypeError(
            f"send_arrow takes what has __arrow_c_stream__ (tables and batches of pyarrow, Polars, "
            f"DuckDB relations, Penstock's own batches), and {what} has not"
        )
    capsule = make()
    stream = cdata.pointer(capsule, cdata.STREAM_NAME)
    schema = (ctypes.c_uint64 * cdata.SCHEMA_WORDS)()
    at = ctypes.addressof(schema)
    try:
        check(stream, cdata.GET(cdata.stream_at(stream)[0])(stream, at), what)
        try:
            kind = read_kind(at)
        finally:
            cdata.RELEASE(schema[cdata.SCHEMA_RELEASE])(at)
        yield Intake(stream, kind, wanted, what)
    finally:
        release = cdata.stream_at(stream)[cdata.STREAM_RELEASE]
        if release:
            cdata.RELEASE(release)(stream)
