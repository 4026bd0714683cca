"""Batches of keyed records without numpy: for the node and the writers, which do not load it.

The bytes are exactly those that `encode` makes of the same records. This module reads the same
records out of a batch as `columns`. A test holds both to that. Meant for few small records: a
coordinator's decisions, a control batch.

Owns nothing but the way there and back. Reads any batch (compressed, sparse, emptied); writes dense
ones without codec and headers, all of one timestamp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.core import codecs
from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core.crc import crc32c
from penstock.core.errors import CorruptBatchError, RecordTooLargeError

_PAD: Final = bytes(64)

Pair = tuple[bytes, bytes | None]


class PlainRecord(NamedTuple):
    """A record as `decode_records` gives it. `value` None: a tombstone."""

    offset: int
    key: bytes | None
    value: bytes | None


def encode_records(
    pairs: Sequence[Pair],
    identity: hd.BatchIdentity,
    *,
    base_timestamp: int,
    attributes: int = 0,
) -> bytes:
    """One sealed batch image of these (key, value) pairs, at least one.

    Raises `RecordTooLargeError` above the format's bound; where a lane or a topic has a lower one,
    its owner says so.
    """
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    body, raw_length = _body(keys, values)
    head = hd.pack_header(
        identity,
        length=hd.HEADER_BYTES + len(body),
        attributes=attributes | hd.ATTR_HAS_KEYS,
        last_offset_delta=len(pairs) - 1,
        record_count=len(pairs),
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp,
        raw_body_length=raw_length,
    )
    hd.seal_header(head, crc32c(body, crc32c(memoryview(head)[hd.BODY_CRC_FROM :])))
    return bytes(head) + body


def _body(keys: list[bytes], values: list[bytes | None]) -> tuple[bytes, int]:
    """The body, padded, and its length without the padding of the batch."""
    parts: list[tuple[int, int, bytes]] = [(sc.SECTION_TIMESTAMPS, sc.ENCODING_CONSTANT, b"")]
    parts += column_sections(
        keys, sc.SECTION_KEY_VALIDITY, sc.SECTION_KEY_OFFSETS, sc.SECTION_KEY_BYTES
    )
    parts += column_sections(
        values, sc.SECTION_VALUE_VALIDITY, sc.SECTION_VALUE_OFFSETS, sc.SECTION_VALUE_BYTES
    )
    pieces = [sc.DIRECTORY_ENTRY.pack(ident, kind, len(data)) for ident, kind, data in parts]
    pieces.append(sc.DIRECTORY_ENTRY.pack(0, 0, 0))
    for _, _, data in parts:
        pieces += (data, _PAD[: -len(data) & 7])
    body = b"".join(pieces)
    if len(body) > hd.BATCH_BYTES_MAX - 2 * hd.HEADER_BYTES:
        raise RecordTooLargeError(
            f"a batch of {len(keys)} records would need {len(body)} bytes; the format's bound is "
            f"{hd.BATCH_BYTES_MAX}: send fewer or smaller records"
        )
    return body + _PAD[: -len(body) & (hd.BATCH_ALIGN - 1)], len(body)


def column_sections(
    column: Sequence[bytes | None], validity_id: int, offsets_id: int, bytes_id: int
) -> list[tuple[int, int, bytes]]:
    """(id, encoding, bytes) of a column's sections: validity where it has nulls, offsets, bytes."""
    parts = []
    if None in column:
        bits = "".join(["01"[item is not None] for item in reversed(column)])
        bitmap = int(bits, 2).to_bytes((len(column) + 7) // 8, "little")
        parts.append((validity_id, sc.ENCODING_PLAIN, bitmap))
    filled = [item or b"" for item in column]
    data = b"".join(filled)
    if len(data) > hd.BATCH_BYTES_MAX:  # before the int32 offsets could wrap
        raise RecordTooLargeError(
            f"{len(column)} items of one column hold {len(data)} bytes; the format's bound for a "
            f"batch is {hd.BATCH_BYTES_MAX}: send fewer or smaller records"
        )
    offsets = array("i", accumulate(map(len, filled), initial=0)).tobytes()
    parts.append((offsets_id, sc.ENCODING_PLAIN, offsets))
    parts.append((bytes_id, sc.ENCODING_PLAIN, data))
    return parts


# ---- back


def decode_records(view: hd.Buffer, position: int, head: hd.BatchHeader) -> list[PlainRecord]:
    """The records of the batch at `position`, whose header was checked (`header.checked`).

    Raises `CorruptBatchError`, and `UnsupportedVersionError` for a codec that this build lacks.
    """
    with memoryview(view) as whole:
        if len(whole) - position < head.length:
            raise CorruptBatchError(
                f"batch at byte {position} is {head.length} bytes long, {len(whole) - position} "
                "are there"
            )
        if not hd.body_is_good(whole, position, head):
            raise CorruptBatchError(
                f"body checksum of the batch at byte {position} (base offset {head.base_offset}) "
                "is wrong"
            )
        body = bytes(whole[position + hd.HEADER_BYTES : position + head.length])
    if not head.record_count:
        return []
    if head.codec != hd.CODEC_NONE:
        body = expanded(body, head)
    found = sc.directory(body)
    count = head.record_count
    values = column(
        body,
        found,
        sc.SECTION_VALUE_VALIDITY,
        sc.SECTION_VALUE_OFFSETS,
        sc.SECTION_VALUE_BYTES,
        count,
    )
    keys: Sequence[bytes | None] = [None] * count
    if head.attributes & hd.ATTR_HAS_KEYS:
        keys = column(
            body,
            found,
            sc.SECTION_KEY_VALIDITY,
            sc.SECTION_KEY_OFFSETS,
            sc.SECTION_KEY_BYTES,
            count,
        )
    return list(map(PlainRecord, _offsets(body, found, head), keys, values))


def expanded(stored: bytes | memoryview, head: hd.BatchHeader) -> bytes:
    """A compressed body expanded. `header.checked` has bounded what it may expand to."""
    block = memoryview(stored)[sc.STORED.size : _block_end(stored)]
    return bytes(codecs.expand(head.codec, block, head.raw_body_length))


def behind_block(stored: bytes | memoryview) -> bytes | memoryview:
    """Returns the uncompressed bytes behind the block of a compressed body."""
    return stored[(_block_end(stored) + 7) & -8 :]


def _block_end(stored: bytes | memoryview) -> int:
    packed: int
    packed, _ = sc.STORED.unpack_from(stored) if len(stored) >= sc.STORED.size else (-1, 0)
    if not 0 <= packed <= len(stored) - sc.STORED.size:
        raise CorruptBatchError("a compressed body is longer than its batch")
    return sc.STORED.size + packed


def _ints(body: hd.Buffer, found: sc.Directory, ident: int, count: int) -> tuple[int, ...]:
    if ident not in found:
        raise CorruptBatchError(f"the batch lacks its section {ident}")
    _, start, length = found[ident]
    if length != 4 * count:
        raise CorruptBatchError(f"section {ident} holds {length} bytes where {4 * count} belong")
    return struct.unpack_from(f"<{count}i", body, start)


def _offsets(body: bytes, found: sc.Directory, head: hd.BatchHeader) -> Sequence[int]:
    base, count = head.base_offset, head.record_count
    if not head.attributes & hd.ATTR_SPARSE_OFFSETS:
        if count != head.last_offset_delta + 1:
            raise CorruptBatchError("a dense batch has fewer records than offsets")
        return range(base, base + count)
    deltas = _ints(body, found, sc.SECTION_OFFSET_DELTAS, count)
    rises = list(deltas) == sorted(set(deltas))
    if not rises or deltas[0] < 0 or deltas[-1] > head.last_offset_delta:
        raise CorruptBatchError("offset deltas do not rise within their batch")
    return [base + delta for delta in deltas]


def column(
    body: hd.Buffer,
    found: sc.Directory,
    validity_id: int,
    offsets_id: int,
    bytes_id: int,
    count: int,
) -> list[bytes | None]:
    """The items of a column of byte strings. Raises `CorruptBatchError`."""
    bounds = _ints(body, found, offsets_id, count + 1)
    if bytes_id not in found:
        raise CorruptBatchError(f"the batch lacks its section {bytes_id}")
    _, start, length = found[bytes_id]
    if bounds[0] != 0 or bounds[-1] != length or list(bounds) != sorted(bounds):
        raise CorruptBatchError("column offsets do not rise from 0 to the length of their bytes")
    data = bytes(body[start : start + length])
    items: list[bytes | None] = list(map(data.__getitem__, map(slice, bounds, bounds[1:])))
    if validity_id in found:
        _, start, length = found[validity_id]
        if length != (count + 7) // 8:
            raise CorruptBatchError("a validity bitmap has the wrong length")
        bits = int.from_bytes(body[start : start + length], "little")
        valid = format(bits, f"0{count}b")[: -count - 1 : -1]
        items = [item if bit == "1" else None for item, bit in zip(items, valid, strict=True)]
    return items
