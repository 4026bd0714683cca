"""Hashes of keys and of headers, by which a share group knows records of one key or tenant.

64 bits each, a batch at once; 0 where a record has none. All workers of a group make the same ones:
they are told in messages, and kept in the coordinator's log.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.client.consumer.records import Chunk
from penstock.core.columns import BinaryColumn, NullColumn
from penstock.core.gather import Bytes, Longs, by_width, windows

Hashes = npt.NDArray[np.uint64]

WIDE: Final = 256
"""From so many bytes on an item is hashed by itself."""
_SEED: Final = 0x9747B28C5BD1E995
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_M: Final = np.uint64(_MULTIPLIER)
_MASK: Final = (1 << 64) - 1
_R: Final = np.uint64(47)


def key_hashes(chunk: Chunk) -> Hashes:
    """By rows of the chunk."""
    keys = chunk.keys
    return np.zeros(len(chunk), np.uint64) if isinstance(keys, NullColumn) else hashes_of(keys)


def header_hashes(chunk: Chunk, name: bytes) -> Hashes:
    """The same, of the first header of that name; one without a value is none."""
    found = np.zeros(chunk.columns.count, np.uint64)
    if chunk.columns.header_columns is not None:
        lists, names, values = chunk.columns.header_columns
        of_name = np.flatnonzero(names.lengths == len(name))
        starts = names.offsets[:-1][of_name].astype(np.int64)
        data = np.frombuffer(names.data, np.uint8)
        if len(starts):
            is_it = _block(data, starts, len(name)) == np.frombuffer(name, np.uint8)
            of_name = of_name[is_it.all(axis=1)]
        rows, firsts = np.unique(
            np.searchsorted(lists, of_name, side="right") - 1, return_index=True
        )
        found[rows] = hashes_of(values)[of_name[firsts]]
    return found[chunk.start : chunk.stop]


def hashes_of(column: BinaryColumn) -> Hashes:
    """Of each item; 0 of a null, and of nothing else."""
    bounds = column.offsets.astype(np.int64)
    found = _hashed(np.frombuffer(column.data, np.uint8), bounds[:-1], np.diff(bounds))
    found[found == 0] = 1
    if column.valid is not None:
        found[~column.valid] = 0
    return found


def _hashed(data: Bytes, starts: Longs, lengths: Longs) -> Hashes:
    found = np.empty(len(lengths), np.uint64)
    for width, rows in by_width(lengths):
        if width >= WIDE:
            items = (data[at : at + width].tobytes() for at in starts[rows].tolist())
            digests = b"".join(blake2b(item, digest_size=8).digest() for item in items)
            found[rows] = np.frombuffer(digests, "<u8")
        else:
            found[rows] = _hash_rows(_block(data, starts[rows], width), width)
    return found


def _block(data: Bytes, starts: Longs, width: int) -> Bytes:
    """The `width` bytes from each of these places on, as rows."""
    if not width:
        return np.empty((len(starts), 0), np.uint8)
    return windows(data, width)[starts].view(np.uint8).reshape(-1, width)


def _hash_rows(block: Bytes, width: int) -> Hashes:
    """The 64-bit murmur hash of each row, with zeros behind its end."""
    padded = np.zeros((len(block), -(-width // 8) * 8), np.uint8)
    padded[:, :width] = block
    found = np.full(len(block), _SEED ^ (width * _MULTIPLIER & _MASK), np.uint64)
    for words in padded.view("<u8").T:
        mixed = words * _M
        mixed ^= mixed >> _R
        found ^= mixed * _M
        found *= _M
    found ^= found >> _R
    found *= _M
    found ^= found >> _R
    return found
