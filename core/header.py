"""The 128-byte batch header, drawn once; the same bytes in a lane, on disk and on the wire.

     0 ┌────────────────┬────┬────┬─────────┬────────────────┬────────────────┐
       │ magic  PSTK    │ver │hdr │ flags   │ header crc32c  │ batch length   │  stamped by the
    16 ├────────────────┴────┴────┴─────────┼────────────────┼────────────────┤   broker: 0-43,
       │ base offset                        │ leader epoch   │ generation     │  in a private
    32 ├────────────────────────────────────┼────────────────┼────────────────┤
       │ append timestamp                   │ delete horizon │ body crc32c    │
    48 ├────┬────┬─────────┬────────────────┼────────────────┼────────────────┤
       │cod │chk │ attrib. │ last off delta │ record count   │ producer epoch │  set by the
    64 ├────┴────┴─────────┴────────────────┼────────────────┴────────────────┤  producer (44-127),
       │ producer id                        │ base sequence                   │  body crc from 48
    80 ├────────────────────────────────────┼─────────────────────────────────┤
       │ base timestamp                     │ max timestamp                   │
    96 ├────────────────┬────────────────┬──┴─────────────────────────────────┤
       │ raw body length│ partition      │ topic id                           │
   112 ├────────────────┴────────────────┼────────────────────────────────────┤
       │ topic id (cont.)                │ reserved                           │
   128 └─────────────────────────────────┴────────────────────────────────────┘

Little-endian. The header crc covers bytes 0-127 with its own four zeroed and is checked before any
length is trusted. The body crc covers bytes 48 to the end, so it survives the broker's stamp.
Batches are a multiple of 64 bytes long. Timestamps are microseconds since the epoch. The delete
horizon, in whole seconds, counts only with its flag: from then on tombstones in the batch may go.

Owns positions, packing and checksums of the header. Never looks into the body and never imports
numpy, so that writer processes stay small.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from penstock.core.crc import crc32c
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"PSTK"
VERSION: Final = 1
HEADER_BYTES: Final = 128
BATCH_ALIGN: Final = 64
BODY_CRC_FROM: Final = 48
BATCH_BYTES_MAX: Final = 1 << 28
"""A batch longer than this is taken for garbage, whatever its checksum says."""
RECORDS_MAX: Final = 1 << 24
RAW_BODY_MAX: Final = 1 << 26
"""The bytes to which a compressed body may expand, at most. Encoders leave larger ones plain. A
batch that claims more is refused before it gets into a log, where nobody could read it."""
OFFSET_MAX: Final = 1 << 62
"""No log gets so far: above it an offset would not fit the int64 columns it is read into."""

CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
CODEC_ZSTD: Final = 2
CODEC_NAMES: Final = {CODEC_NONE: "none", CODEC_LZ4: "lz4", CODEC_ZSTD: "zstd"}
CHECKSUM_CRC32C: Final = 0

ATTR_TRANSACTIONAL: Final = 1
ATTR_CONTROL: Final = 2
ATTR_HAS_KEYS: Final = 4
ATTR_HAS_HEADERS: Final = 8
ATTR_SPARSE_OFFSETS: Final = 16
ATTR_HAS_WORK: Final = 32
"""Has columns for work queues (`work`)."""

FLAG_APPEND_TIME: Final = 1
FLAG_COMPACTED: Final = 2
FLAG_DELETE_HORIZON: Final = 4

HEADER: Final = struct.Struct("<4sBBHIIQIIqIIBBHIIIQQqqII16sQ")
BROKER_PART: Final = struct.Struct("<4sBBHIIQIIqI")
CRC_AT: Final = 8
LENGTH_AT: Final = 12
ATTRIBUTES_AT: Final = 50
BODY_CRC_AT: Final = 44
_U32: Final = struct.Struct("<I")
assert HEADER.size == HEADER_BYTES
assert BROKER_PART.size == BODY_CRC_AT


class BatchHeader(NamedTuple):
    """A parsed header, field for field. `length` counts header, body and padding, in bytes."""

    magic: bytes
    version: int
    header_units: int
    flags: int
    header_crc: int
    length: int
    base_offset: int
    leader_epoch: int
    generation: int
    append_timestamp: int
    delete_horizon: int
    body_crc: int
    codec: int
    checksum_kind: int
    attributes: int
    last_offset_delta: int
    record_count: int
    producer_epoch: int
    producer_id: int
    base_sequence: int
    base_timestamp: int
    max_timestamp: int
    raw_body_length: int
    partition: int
    topic_id: bytes
    reserved_end: int

    @property
    def identity(self) -> BatchIdentity:
        return BatchIdentity(
            self.topic_id, self.partition, self.producer_id, self.producer_epoch, self.base_sequence
        )

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


class BatchIdentity(NamedTuple):
    """Where a batch belongs, and which batch of its producer it is."""

    topic_id: bytes
    partition: int
    producer_id: int = 0
    producer_epoch: int = 0
    base_sequence: int = 0


def pack_header(
    identity: BatchIdentity,
    *,
    length: int,
    codec: int = CODEC_NONE,
    attributes: int = 0,
    last_offset_delta: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    raw_body_length: int,
) -> bytearray:
    """Packs the producer's header. The broker's part is blank; `seal` sets both checksums once the
    body is behind it."""
    topic_id, partition, producer_id, producer_epoch, base_sequence = identity
    return bytearray(
        HEADER.pack(
            MAGIC, VERSION, HEADER_BYTES // 16, 0, 0, length, 0, 0, 0, 0, 0, 0,
            codec, CHECKSUM_CRC32C, attributes, last_offset_delta, record_count, producer_epoch,
            producer_id, base_sequence, base_timestamp, max_timestamp, raw_body_length, partition,
            topic_id, 0,
        )
    )  # fmt: skip


def seal_header(header: bytearray, body_crc: int) -> None:
    """Write the body crc, then the header crc over the whole, into a private header."""
    _U32.pack_into(header, BODY_CRC_AT, body_crc)
    _U32.pack_into(header, CRC_AT, 0)
    _U32.pack_into(header, CRC_AT, crc32c(header))


def stamp(
    header: bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    generation: int,
    append_timestamp: int,
    flags: int = 0,
    delete_horizon: int = 0,
) -> None:
    """Write the broker's part (bytes 0-43) into a *private* copy of a header and re-seal it."""
    (length,) = _U32.unpack_from(header, LENGTH_AT)
    BROKER_PART.pack_into(
        header, 0, MAGIC, VERSION, HEADER_BYTES // 16, flags, 0, length, base_offset, leader_epoch,
        generation, append_timestamp, delete_horizon,
    )  # fmt: skip
    _U32.pack_into(header, CRC_AT, crc32c(header))


def parse(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked. Raises `CorruptBatchError` for too few bytes."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatchError(
            f"batch header needs {HEADER_BYTES} bytes, {max(0, len(buffer) - position)} are there"
        )
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def checked(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position` after its own checksum, version and lengths were found good.

    Does not touch the body (see `body_is_good`). Raises `CorruptBatchError` or
    `UnsupportedVersionError`.
    """
    return checked_private(bytearray(buffer[position : position + HEADER_BYTES]), position)


def checked_private(private: bytearray, position: int = 0) -> BatchHeader:
    """`checked` for a header that is the caller's own copy; its checksum field is left zeroed.
    `position` is where it stood, for messages."""
    fields: tuple[Any, ...]
    fields = HEADER.unpack(private) if len(private) == HEADER_BYTES else parse(private)
    (
        magic, version, header_units, _, header_crc, length, base_offset, _, _, _, _, _, codec,
        checksum_kind, _, last_offset_delta, record_count, _, _, _, _, _, raw_body_length, _, _, _,
    ) = fields  # fmt: skip
    if magic != MAGIC:
        raise CorruptBatchError(f"no batch at byte {position}: magic is {magic!r}")
    _U32.pack_into(private, CRC_AT, 0)
    if crc32c(private) != header_crc:
        raise CorruptBatchError(f"header checksum of the batch at byte {position} is wrong")
    if version != VERSION or header_units != HEADER_BYTES // 16:
        raise UnsupportedVersionError(
            f"batch at byte {position} has format version {version} and a header of "
            f"{16 * header_units} bytes; this build reads version {VERSION} with {HEADER_BYTES}"
        )
    if (
        length < HEADER_BYTES
        or length % BATCH_ALIGN
        or length > BATCH_BYTES_MAX
        or record_count > last_offset_delta + 1
        or last_offset_delta >= RECORDS_MAX
        or base_offset > OFFSET_MAX
        or raw_body_length > (RAW_BODY_MAX if codec else length - HEADER_BYTES)
        or checksum_kind != CHECKSUM_CRC32C
        or codec not in CODEC_NAMES
    ):
        raise CorruptBatchError(
            f"batch at byte {position} has impossible fields: length {length}, {record_count} "
            f"records in {last_offset_delta + 1} offsets from {base_offset}, a body of "
            f"{raw_body_length} bytes in codec {codec}, checksum kind {checksum_kind}"
        )
    return tuple.__new__(BatchHeader, fields)  # `_make` is one more call


def body_is_good(buffer: Buffer, position: int, head: BatchHeader) -> bool:
    """Whether the body crc matches. `buffer` must be sliceable without copy (a memoryview)."""
    return crc32c(buffer[position + BODY_CRC_FROM : position + head.length]) == head.body_crc


def aligned(length: int) -> int:
    """`length` rounded up to the batch alignment."""
    return (length + BATCH_ALIGN - 1) & -BATCH_ALIGN
