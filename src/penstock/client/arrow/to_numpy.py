"""Columns of values as numpy arrays: of one width, as a matrix or as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.core.columns import BinaryColumn


def values(columns: Sequence[BinaryColumn], dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    """Returns uint8[n, width], or `dtype`[n] (or [n, width / itemsize]): a view where there is one
    column, joined by one copy where there are several. Raises ValueError where widths differ or
    values are null.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    parts = [matrix(column) for column in columns if len(column)]
    if not parts:
        empty = np.empty((0, 0), np.uint8)
        return empty if wanted is None else np.empty(0, wanted)
    widths = sorted({part.shape[1] for part in parts})
    if len(widths) > 1:
        raise _ragged(widths[0], widths[-1])
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if wanted is None:
        return joined
    width = widths[0]
    if wanted.hasobject or not wanted.itemsize or not width or width % wanted.itemsize:
        raise ValueError(
            f"values of {width} bytes are no whole number of {wanted} ({wanted.itemsize} bytes "
            "each): pass a dtype that divides them, or none for uint8[n, width]"
        )
    found = joined.view(wanted)
    return found[:, 0] if width == wanted.itemsize else found


def matrix(column: BinaryColumn) -> npt.NDArray[np.uint8]:
    """Returns uint8[n, width] over the bytes of a column in place."""
    if column.valid is not None and not column.valid.all():
        raise ValueError(
            f"{int(np.count_nonzero(~column.valid))} of {len(column)} values are null "
            "(tombstones), which a numpy array cannot hold: use .values, or to_arrow()"
        )
    lengths = column.lengths
    width = int(lengths[0])
    if (lengths != width).any():
        raise _ragged(int(lengths.min()), int(lengths.max()))
    found: npt.NDArray[np.uint8] = np.ndarray(
        (len(column), width), np.uint8, column.data, int(column.offsets[0])
    )
    return found


def _ragged(shortest: int, longest: int) -> ValueError:
    return ValueError(
        f"values of {shortest} to {longest} bytes make no array of one width: use .values (bytes "
        "by bytes, or .chunks with offsets and data), or to_arrow()"
    )
