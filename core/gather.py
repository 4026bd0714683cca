"""Byte strings out of buffers into columns: rows in another order, without Python code per row.

Items are given by where they start and how long they are. Owns moving bytes; knows nothing of
batches or of where buffers come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.core.columns import BinaryColumn

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_SMALL: Final = 1 << 16
_ROWS_A_WIDTH: Final = 32
"""Rows of one width are moved together where there are so many of each; else joined one by one."""


def windows(data: Bytes, width: int) -> npt.NDArray[Any]:
    """Item i is the `width` bytes from byte i on: an array that overlaps itself, to be indexed."""
    return np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))


def by_width(lengths: Longs) -> Iterator[tuple[int, Longs]]:
    """(width, rows of that width), for every width there is."""
    small = len(lengths) and int(lengths.max()) < _SMALL  # numpy sorts 16 bits by radix
    order = np.argsort(lengths.astype(np.uint16) if small else lengths, kind="stable")
    ranked = lengths[order]
    edges = np.flatnonzero(np.diff(ranked)) + 1
    for rows in np.split(order, edges):
        if len(rows):
            yield int(lengths[rows[0]]), rows


def copy_items(out: Bytes, out_starts: Longs, data: Bytes, starts: Longs, lengths: Longs) -> None:
    """Copy item i from `data[starts[i]:]` to `out[out_starts[i]:]`."""
    if not len(lengths):
        return
    if _follow(starts, lengths) and _follow(out_starts, lengths):
        total = int(lengths.sum())
        at, to = int(starts[0]), int(out_starts[0])
        out[to : to + total] = data[at : at + total]
        return
    if _widths(lengths) * _ROWS_A_WIDTH < len(lengths) + _ROWS_A_WIDTH:
        for width, rows in by_width(lengths):
            if width:
                windows(out, width)[out_starts[rows]] = windows(data, width)[starts[rows]]
        return
    low, high = int(starts.min()), int((starts + lengths).max())
    whole = data[low:high].tobytes()
    first = starts - low
    bounds = map(slice, first.tolist(), (first + lengths).tolist())
    joined = np.frombuffer(b"".join(map(whole.__getitem__, bounds)), np.uint8)
    if _follow(out_starts, lengths):
        to = int(out_starts[0])
        out[to : to + len(joined)] = joined
    else:
        out[ranges(out_starts, lengths)] = joined


def _widths(lengths: Longs) -> int:
    """How many different widths there are."""
    if int(lengths.max()) < _SMALL:
        return int(np.count_nonzero(np.bincount(lengths)))
    return len(np.unique(lengths))


def _follow(starts: Longs, lengths: Longs) -> bool:
    """Whether each item begins where the one before it ends."""
    return bool((starts[:-1] + lengths[:-1] == starts[1:]).all())


def ranges(starts: Longs, lengths: Longs) -> Longs:
    """int64[sum(lengths)]: starts[0], starts[0] + 1, ... of every item, one after the other."""
    ends = np.cumsum(lengths)
    found: Longs = np.repeat(starts - (ends - lengths), lengths) + np.arange(
        int(ends[-1]) if len(ends) else 0
    )
    return found


def gather(
    data: Bytes, starts: Longs, lengths: Longs, valid: npt.NDArray[np.bool_] | None = None
) -> BinaryColumn:
    """Returns a column of these items in this order; its bytes are a view where they already lie
    so."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total and _follow(starts, lengths):
        found = data[int(starts[0]) : int(starts[0]) + total]
    else:
        found = np.empty(total, np.uint8)
        copy_items(found, offsets[:-1].astype(np.int64), data, starts, lengths)
    return BinaryColumn(offsets, found.data, valid)


def take(column: BinaryColumn, rows: Longs) -> BinaryColumn:
    """Rows of a column in another order."""
    valid = column.valid[rows] if column.valid is not None else None
    width = int(column.lengths[0]) if len(column) else 0
    if width and (column.lengths == width).all():
        kind, count = np.dtype(f"V{width}"), len(column)
        items = np.frombuffer(column.data, kind, count, int(column.offsets[0])).take(rows)
        bounds = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width)
        return BinaryColumn(bounds, items.view(np.uint8).data, valid)
    starts = column.offsets[:-1][rows].astype(np.int64)
    lengths = column.offsets[1:][rows].astype(np.int64) - starts
    return gather(np.frombuffer(column.data, np.uint8), starts, lengths, valid)


def without_hidden_bytes(column: BinaryColumn) -> BinaryColumn:
    """Returns the column with nothing behind its nulls (Arrow allows any bytes there)."""
    if column.valid is None:
        return column
    lengths = np.diff(column.offsets).astype(np.int64)
    if not lengths[~column.valid].any():
        return column
    starts = column.offsets[:-1].astype(np.int64)
    data = np.frombuffer(column.data, np.uint8)
    return gather(data, starts, np.where(column.valid, lengths, 0), column.valid)
