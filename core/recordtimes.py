"""Which record of a batch is the first at or after a time, without numpy.

Reads the columns of times and offsets, and of a compressed batch the whole body, which the header
bounds (`header.RAW_BODY_MAX`). Owns this one question. `columns` reads the same for consumers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core.errors import CorruptBatchError
from penstock.core.plain import expanded

PIECE: Final = 4096
"""Times that one call of C compares: other threads get their turn between two."""


def first_at_or_after(
    view: memoryview, position: int, head: hd.BatchHeader, timestamp: int, start: int
) -> int | None:
    """The offset of the first record from offset `start` on that is as late; None if none is.

    The header of the batch at `position` was checked. Raises `CorruptBatchError`, and
    `UnsupportedVersionError` for a codec that this build lacks.
    """
    if not hd.body_is_good(view, position, head):
        raise CorruptBatchError(
            f"body checksum of the batch at byte {position} (base offset {head.base_offset}) is "
            "wrong"
        )
    body = view[position + hd.HEADER_BYTES : position + head.length]
    if head.codec != hd.CODEC_NONE:
        body = memoryview(expanded(body, head))
    found = sc.directory(body)
    deltas = _offset_deltas(body, found, head)
    begin = bisect_left(deltas, start - head.base_offset)
    times, base = _times(body, found, head)
    if times is not None:
        begin = _reaching(times, timestamp - base, begin)
    elif base < timestamp:
        return None
    return head.base_offset + deltas[begin] if begin < len(deltas) else None


def _offset_deltas(body: memoryview, found: sc.Directory, head: hd.BatchHeader) -> Sequence[int]:
    count = head.record_count
    if not head.attributes & hd.ATTR_SPARSE_OFFSETS:
        if count != head.last_offset_delta + 1:
            raise CorruptBatchError("a dense batch has fewer records than offsets")
        return range(count)
    _, start, length = found.get(sc.SECTION_OFFSET_DELTAS, (0, 0, 0))
    if length != 4 * count:
        raise CorruptBatchError(f"offset deltas hold {length} bytes where {4 * count} belong")
    deltas = body[start : start + length].cast("i")
    if count and not 0 <= deltas[0] <= deltas[-1] <= head.last_offset_delta:
        raise CorruptBatchError("offset deltas do not rise within their batch")
    return deltas


def _times(
    body: memoryview, found: sc.Directory, head: hd.BatchHeader
) -> tuple[memoryview | None, int]:
    """The records' times, counted from the second value; None: that is the time of all."""
    if head.flags & hd.FLAG_APPEND_TIME:
        return None, head.append_timestamp
    encoding, start, length = found.get(sc.SECTION_TIMESTAMPS, (sc.ENCODING_CONSTANT, 0, 0))
    if encoding == sc.ENCODING_CONSTANT:
        return None, head.base_timestamp
    code, size = {sc.ENCODING_INT32: ("i", 4), sc.ENCODING_INT64: ("q", 8)}.get(encoding, ("", 0))
    if not size or length != size * head.record_count:
        raise CorruptBatchError(f"timestamps in encoding {encoding} hold {length} bytes")
    return body[start : start + length].cast(code), head.base_timestamp  # type: ignore[call-overload]


def _reaching(times: memoryview, wanted: int, begin: int) -> int:
    """The index of the first from `begin` on that is `wanted` or more; behind the last if none."""
    for at in range(begin, len(times), PIECE):
        piece = times[at : at + PIECE]
        if max(piece) >= wanted:
            return at + next(index for index, time in enumerate(piece) if time >= wanted)
    return len(times)
