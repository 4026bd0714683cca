"""Batches made by hand for tests of the format: positions and checksums written out once more.

Nothing here that makes a batch is imported from the code under test, so that a position that moves
there is seen here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from penstock.core import header as hd
from penstock.core.columns import decode

HEADER_BYTES = 128
CRC_AT, LENGTH_AT, BASE_OFFSET_AT, BODY_CRC_AT, BODY_CRC_FROM = 8, 12, 16, 44, 48

# name -> (position, struct code): the table of the format, field for field.
FIELDS = {
    "magic": (0, "4s"),
    "version": (4, "B"),
    "header_units": (5, "B"),
    "flags": (6, "H"),
    "header_crc": (8, "I"),
    "length": (12, "I"),
    "base_offset": (16, "Q"),
    "leader_epoch": (24, "I"),
    "generation": (28, "I"),
    "append_timestamp": (32, "q"),
    "delete_horizon": (40, "I"),
    "body_crc": (44, "I"),
    "codec": (48, "B"),
    "checksum_kind": (49, "B"),
    "attributes": (50, "H"),
    "last_offset_delta": (52, "I"),
    "record_count": (56, "I"),
    "producer_epoch": (60, "I"),
    "producer_id": (64, "Q"),
    "base_sequence": (72, "Q"),
    "base_timestamp": (80, "q"),
    "max_timestamp": (88, "q"),
    "raw_body_length": (96, "I"),
    "partition": (100, "I"),
    "topic_id": (104, "16s"),
    "reserved_end": (120, "Q"),
}


def identified(**fields: Any) -> dict[str, Any]:
    """Arguments of an encoder: those fields that identify a batch become its `identity`."""
    own = {name: fields.pop(name) for name in hd.BatchIdentity._fields if name in fields}
    return {"identity": hd.BatchIdentity(**own), **fields}


def put(image: bytearray, **fields: int | bytes) -> None:
    """Overwrite header fields where the format has them; checksums are left as they are."""
    for name, value in fields.items():
        position, code = FIELDS[name]
        struct.pack_into("<" + code, image, position, value)


def get(image: bytes | bytearray, name: str) -> int | bytes:
    position, code = FIELDS[name]
    value: int | bytes = struct.unpack_from("<" + code, image, position)[0]
    return value


def reseal(image: bytearray) -> bytearray:
    """Make both checksums right, so that only what they cover can be found wrong."""
    struct.pack_into("<I", image, BODY_CRC_AT, crc32c(bytes(image[BODY_CRC_FROM:])))
    struct.pack_into("<I", image, CRC_AT, 0)
    struct.pack_into("<I", image, CRC_AT, crc32c(bytes(image[:HEADER_BYTES])))
    return image


def directory(*entries: tuple[int, int, int], end: bool = True) -> bytes:
    """(id, encoding, length) of each section, and the entry of zeros."""
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    return packed + bytes(8) * end


def body_of(sections: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A plain body: directory, then every section padded to 8."""
    listed = list(sections)
    head = directory(*((ident, encoding, len(data)) for ident, encoding, data in listed))
    return head + b"".join(data + bytes(-len(data) % 8) for _, _, data in listed)


def batch(body: bytes, **fields: int | bytes) -> bytearray:
    """A batch with good checksums around `body`; every header field can be overruled."""
    padded = body + bytes(-len(body) % 64)
    image = bytearray(HEADER_BYTES) + padded
    records = int(fields.get("record_count", 0))
    defaults: dict[str, int | bytes] = {
        "magic": b"PSTK",
        "version": 1,
        "header_units": 8,
        "length": len(image),
        "record_count": records,
        "last_offset_delta": max(records - 1, 0),
        "raw_body_length": len(body),
    }
    put(image, **{**defaults, **fields})
    return reseal(image)


def int32s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def read_all(image: bytes | bytearray, *, verify: bool = True) -> tuple[Any, ...]:
    """Everything that a consumer may ask of a batch."""
    view = memoryview(bytes(image))
    columns = decode(view, 0, hd.checked(view), verify=verify)
    return (
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        columns.constant_timestamp,
        columns.keys.to_list(),
        columns.values.to_list(),
        columns.headers(),
        [columns.first_at(offset) for offset in (0, columns.head.next_offset)],
    )
