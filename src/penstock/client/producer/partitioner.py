"""Chooses a partition by a record's key: murmur2, as in Kafka's default partitioner.

A key's partition is `(murmur2(key) & 0x7fffffff) % partitions`, so keys land where users of Kafka
expect them. The vectorised form hashes a column of keys at once, grouped by key length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.core.gather import Bytes, Longs, by_width, windows

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_VECTOR_FROM: Final = 24
"""From this many keys on the vectorised form is faster (measured)."""


def murmur2(key: bytes) -> int:
    """Returns the 32-bit murmur2 hash of one key, signed (murmur2(b"21") == -973932308)."""
    length = len(key)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def murmur2_column(keys: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Returns the murmur2 hash of every key, as uint32[n]."""
    count = len(keys)
    if count < _VECTOR_FROM:
        return np.fromiter((murmur2(key) & _MASK for key in keys), np.uint32, count)
    lengths = np.fromiter(map(len, keys), np.int64, count)
    starts = np.zeros(count, np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return murmur2_items(np.frombuffer(b"".join(keys), np.uint8), starts, lengths)


def murmur2_items(data: Bytes, starts: Longs, lengths: Longs) -> npt.NDArray[np.uint32]:
    """Returns the murmur2 hash of every key, as uint32[n]. Key i is `lengths[i]` bytes of `data`
    from `starts[i]` on."""
    hashes = np.empty(len(lengths), np.uint32)
    for width, rows in by_width(lengths):
        block = np.empty((len(rows), 0), np.uint8)
        if width:
            block = windows(data, width)[starts[rows]].view(np.uint8).reshape(-1, width)
        hashes[rows] = _hash_rows(block, width)
    return hashes


def _hash_rows(block: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.uint32]:
    """Hashes the rows of a uint8[rows, length] block."""
    m = np.uint32(_M)
    h = np.full(len(block), (_SEED ^ length) & _MASK, np.uint32)
    whole = length & ~3
    if whole:
        words = np.ascontiguousarray(block[:, :whole]).view("<u4")
        for column in range(whole // 4):
            k = words[:, column] * m
            k ^= k >> np.uint32(24)
            k *= m
            h *= m
            h ^= k
    for place in range(length - whole):
        h ^= block[:, whole + place].astype(np.uint32) << np.uint32(8 * place)
    if length != whole:
        h *= m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    return h


def partitions_of(keys: Sequence[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """Returns the partition of every key, as int64[n]."""
    return _partitions(murmur2_column(keys), partitions)


def partitions_of_items(data: Bytes, starts: Longs, lengths: Longs, partitions: int) -> Longs:
    """Returns the partition of every key, as int64[n]; keys as in `murmur2_items`."""
    return _partitions(murmur2_items(data, starts, lengths), partitions)


def _partitions(hashes: npt.NDArray[np.uint32], partitions: int) -> Longs:
    positive = hashes & np.uint32(0x7FFFFFFF)
    return (positive % np.uint32(partitions)).astype(np.int64)


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of one key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions if partitions > 1 else 0
