"""The body of a batch, drawn once: a section directory and 8-aligned columns.

    ┌──────────────────────────────┐  entries of (id u16, encoding u16, length u32), ended by an
    │ directory                    │  entry of zeros
    ├──────────────────────────────┤
    │ timestamps    constant: 0 B  │  int32 or int64 deltas to the base timestamp, microseconds
    │ offset deltas (sparse only)  │  int32 deltas to the base offset
    │ key validity, value validity │  Arrow bitmaps, least significant bit first; absent = all valid
    │ key offsets,  key bytes      │  int32[n+1] + bytes: Arrow's `binary` layout as it is
    │ value offsets, value bytes   │
    │ header columns               │  int32[n+1] into the header entries, then names and values
    │ columns for work queues      │  due and expiry times, priorities, dedup ids: see `work`
    └──────────────────────────────┘

A null value is a tombstone. A compressed body is `<stored length u32> <0 u32> <codec block>`; the
batch header's `raw_body_length` bounds what it may expand to. A body is stored without a codec if
the codec does not shrink it, or if it is larger than `RAW_BODY_MAX`. Columns for work queues are
not compressed. They follow behind the block, from the next multiple of 8 on, with a directory of
their own.

A reader passes over sections that it does not know. Code that writes a batch again has to know them
all.

Owns the numbers. Encoding is `encode` and `columns`; `plain` is the same without numpy.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.errors import CorruptBatchError

SECTION_TIMESTAMPS: Final = 1
SECTION_OFFSET_DELTAS: Final = 2
SECTION_KEY_VALIDITY: Final = 3
SECTION_VALUE_VALIDITY: Final = 4
SECTION_KEY_OFFSETS: Final = 5
SECTION_KEY_BYTES: Final = 6
SECTION_VALUE_OFFSETS: Final = 7
SECTION_VALUE_BYTES: Final = 8
SECTION_HEADER_LISTS: Final = 9
SECTION_HEADER_NAME_OFFSETS: Final = 10
SECTION_HEADER_NAME_BYTES: Final = 11
SECTION_HEADER_VALUE_VALIDITY: Final = 12
SECTION_HEADER_VALUE_OFFSETS: Final = 13
SECTION_HEADER_VALUE_BYTES: Final = 14
SECTION_DUE_TIMES: Final = 15
SECTION_EXPIRY_TIMES: Final = 16
SECTION_PRIORITIES: Final = 17
SECTION_DEDUP_ID_VALIDITY: Final = 18
SECTION_DEDUP_ID_OFFSETS: Final = 19
SECTION_DEDUP_ID_BYTES: Final = 20
SECTIONS_KNOWN: Final = frozenset(range(SECTION_TIMESTAMPS, SECTION_DEDUP_ID_BYTES + 1))
SECTIONS_MAX: Final = 32

ENCODING_PLAIN: Final = 0
ENCODING_CONSTANT: Final = 1
ENCODING_INT32: Final = 2
ENCODING_INT64: Final = 3

DIRECTORY_ENTRY: Final = struct.Struct("<HHI")
STORED: Final = struct.Struct("<II")

Directory = dict[int, tuple[int, int, int]]
"""Section id -> (encoding, start, length), every one inside the body."""


def directory(body: bytes | bytearray | memoryview) -> Directory:
    """The sections of a body. Raises `CorruptBatchError` where they do not fit into it."""
    listed = []
    position = 0
    for _ in range(SECTIONS_MAX):
        if position + DIRECTORY_ENTRY.size > len(body):
            raise CorruptBatchError("the section directory runs past its body")
        ident, encoding, length = DIRECTORY_ENTRY.unpack_from(body, position)
        position += DIRECTORY_ENTRY.size
        if ident == 0:
            break
        listed.append((ident, encoding, length))
    else:
        raise CorruptBatchError(f"more than {SECTIONS_MAX} sections in a batch")
    found = {}
    for ident, encoding, length in listed:
        if position + length > len(body):
            raise CorruptBatchError(f"section {ident} runs past its body")
        found[ident] = (encoding, position, length)
        position += (length + 7) & -8
    return found
