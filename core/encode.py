"""From Python sequences to one columnar batch: the producing half of the body format.

`sections` draws the body. Owns encoding only; never reads, writes or assigns offsets. See `columns`
for the way back.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core import codecs
from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core import work as wk
from penstock.core.crc import crc32c
from penstock.core.errors import RecordTooLargeError

Headers = Sequence[tuple[str, bytes | None]]
Piece = bytes | bytearray | memoryview

_VECTOR_FROM: Final = 32
"""From this many records on numpy is faster than `array` for the offsets (measured)."""
_PAD: Final = bytes(64)
_PLAIN_START: Final = sc.DIRECTORY_ENTRY.pack(sc.SECTION_TIMESTAMPS, sc.ENCODING_CONSTANT, 0)
_DIRECTORY_END: Final = sc.DIRECTORY_ENTRY.pack(0, 0, 0)
PLAIN_ONE: Final = struct.Struct("<18sHIQII")
PLAIN_ONE_START: Final = (
    _PLAIN_START
    + sc.DIRECTORY_ENTRY.pack(sc.SECTION_VALUE_OFFSETS, sc.ENCODING_PLAIN, 8)
    + sc.SECTION_VALUE_BYTES.to_bytes(2, "little")
)
"""The directory and the offsets of a plain body of one value. These 18 bytes hold encoding, length,
the directory's end, and the offsets 0 and length."""


class EncodedBatch(NamedTuple):
    """A sealed batch image in two pieces, so that nobody copies the body to put them together."""

    header: bytearray
    body: bytes

    @property
    def length(self) -> int:
        return hd.HEADER_BYTES + len(self.body)

    def image(self) -> bytes:
        """Both pieces as one bytes object (a copy)."""
        return bytes(self.header) + self.body


class PiecedBatch(EncodedBatch):
    """A batch whose body is still in pieces: views of memory that somebody may take back soon.

    Goes into a lane as it is, by one copy; `settled` makes it last.
    """

    __slots__ = ()

    @staticmethod
    def of(header: bytearray, pieces: Iterable[Piece]) -> PiecedBatch:
        return tuple.__new__(PiecedBatch, (header, *pieces))

    @property
    def body(self) -> bytes:
        pieces: tuple[Any, ...] = tuple(self)
        return b"".join(pieces[1:])

    @property
    def length(self) -> int:
        return sum(map(len, self))

    def settled(self) -> EncodedBatch:
        """The same with its body copied out."""
        return EncodedBatch(self.header, self.body)


class Section(NamedTuple):
    """A section to be: its entry in the directory, and the pieces of its bytes."""

    ident: int
    encoding: int
    length: int
    parts: Iterable[Piece]


def _offsets(column: Sequence[bytes]) -> tuple[bytes, int]:
    """int32[n+1] offsets of a column as bytes, and the column's total bytes."""
    count = len(column)
    if count < _VECTOR_FROM:
        ends = list(accumulate(map(len, column), initial=0))
        _check_total(ends[-1], count)
        return array("i", ends).tobytes(), ends[-1]
    lengths = np.fromiter(map(len, column), np.int64, count)
    total = int(lengths.sum())
    _check_total(total, count)  # before the sums below could wrap
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets.tobytes(), total


def _check_total(total: int, count: int) -> None:
    if total > hd.BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"{count} items of one column hold {total} bytes; the format's bound for a batch is "
            f"{hd.BATCH_BYTES_MAX}: send fewer or smaller records"
        )


def _bitmap(column: Sequence[object]) -> bytes:
    """An Arrow validity bitmap: bit i is set where the column is not None."""
    valid = np.fromiter((item is not None for item in column), np.bool_, len(column))
    return np.packbits(valid, bitorder="little").tobytes()


def _binary(
    column: Sequence[bytes | None], validity_id: int, offsets_id: int, bytes_id: int
) -> list[Section]:
    sections = []
    filled: Sequence[bytes]
    try:
        offsets, total = _offsets(column)  # type: ignore[arg-type]
        filled = column  # type: ignore[assignment]
    except TypeError:  # len(None): the column has nulls
        bitmap = _bitmap(column)
        filled = [item if item is not None else b"" for item in column]
        offsets, total = _offsets(filled)
        sections.append(Section(validity_id, sc.ENCODING_PLAIN, len(bitmap), (bitmap,)))
    sections.append(Section(offsets_id, sc.ENCODING_PLAIN, len(offsets), (offsets,)))
    sections.append(Section(bytes_id, sc.ENCODING_PLAIN, total, filled))
    return sections


def _timestamps(timestamps: Sequence[int] | None, base: int) -> tuple[Section, int, int]:
    """The timestamp section with its base and maximum."""
    if timestamps is None:
        return Section(sc.SECTION_TIMESTAMPS, sc.ENCODING_CONSTANT, 0, ()), base, base
    base, top = min(timestamps), max(timestamps)
    stamps = np.fromiter(timestamps, np.int64, len(timestamps)) if base != top else None
    return timestamp_section(stamps, base, top)


def timestamp_section(
    timestamps: npt.NDArray[np.int64] | None, base: int, top: int
) -> tuple[Section, int, int]:
    """The section of timestamps from `base` to `top`; returns these too."""
    if timestamps is None or base == top:
        return Section(sc.SECTION_TIMESTAMPS, sc.ENCODING_CONSTANT, 0, ()), base, top
    deltas = timestamps - base
    narrow = top - base < 1 << 31
    data = deltas.astype(np.int32 if narrow else np.int64).tobytes()
    encoding = sc.ENCODING_INT32 if narrow else sc.ENCODING_INT64
    return Section(sc.SECTION_TIMESTAMPS, encoding, len(data), (data,)), base, top


def _header_sections(headers: Sequence[Headers | None]) -> list[Section]:
    lists = [entry or () for entry in headers]
    offsets, _ = _offsets(lists)  # type: ignore[arg-type]
    flat = list(chain.from_iterable(lists))
    names = [name.encode() for name, _ in flat]
    values = [value for _, value in flat]
    return [
        Section(sc.SECTION_HEADER_LISTS, sc.ENCODING_PLAIN, len(offsets), (offsets,)),
        *_binary(names, 0, sc.SECTION_HEADER_NAME_OFFSETS, sc.SECTION_HEADER_NAME_BYTES),
        *_binary(
            values,
            sc.SECTION_HEADER_VALUE_VALIDITY,
            sc.SECTION_HEADER_VALUE_OFFSETS,
            sc.SECTION_HEADER_VALUE_BYTES,
        ),
    ]


def _sections(
    values: Sequence[bytes | None],
    base_timestamp: int,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    timestamps: Sequence[int] | None,
    offset_deltas: Sequence[int] | None,
) -> tuple[list[Section], int, int, int]:
    """All sections of a batch with base and maximum timestamp and what they add to attributes."""
    attributes = 0
    time_section, base_timestamp, max_timestamp = _timestamps(timestamps, base_timestamp)
    sections = [time_section]
    if offset_deltas is not None:
        deltas = array("i", offset_deltas).tobytes()
        sections.append(
            Section(sc.SECTION_OFFSET_DELTAS, sc.ENCODING_PLAIN, len(deltas), (deltas,))
        )
        attributes |= hd.ATTR_SPARSE_OFFSETS
    if keys is not None:
        sections += _binary(
            keys, sc.SECTION_KEY_VALIDITY, sc.SECTION_KEY_OFFSETS, sc.SECTION_KEY_BYTES
        )
        attributes |= hd.ATTR_HAS_KEYS
    sections += _binary(
        values, sc.SECTION_VALUE_VALIDITY, sc.SECTION_VALUE_OFFSETS, sc.SECTION_VALUE_BYTES
    )
    if headers is not None:
        sections += _header_sections(headers)
        attributes |= hd.ATTR_HAS_HEADERS
    return sections, base_timestamp, max_timestamp, attributes


def _pieces(sections: Sequence[Section], tail_align: int) -> list[Piece]:
    """Directory and columns, padded to 8 within and to `tail_align` at the end."""
    parts: list[Iterable[Piece]] = []
    directory = bytearray()
    for ident, encoding, length, pieces in sections:
        directory += sc.DIRECTORY_ENTRY.pack(ident, encoding, length)
        parts.append(pieces)
        if rest := -length & 7:
            parts.append((_PAD[:rest],))
    directory += sc.DIRECTORY_ENTRY.pack(0, 0, 0)
    raw_length = len(directory) + sum((section.length + 7) & -8 for section in sections)
    tail = _PAD[: -raw_length & (tail_align - 1)]
    return list(chain((directory,), chain.from_iterable(parts), (tail,)))


def _plain_body(values: Sequence[bytes | None], codec: int) -> tuple[bytes, int] | None:
    """The body of the commonest batch, values alone with one timestamp, without the generic way
    around (it saves a third); None where a value is null."""
    try:
        offsets, total = _offsets(values)  # type: ignore[arg-type]
    except TypeError:
        return None
    start = b"".join(
        (
            _PLAIN_START,
            sc.DIRECTORY_ENTRY.pack(sc.SECTION_VALUE_OFFSETS, sc.ENCODING_PLAIN, len(offsets)),
            sc.DIRECTORY_ENTRY.pack(sc.SECTION_VALUE_BYTES, sc.ENCODING_PLAIN, total),
            _DIRECTORY_END,
            offsets,
            _PAD[: -len(offsets) & 7],
        )
    )
    raw_length = len(start) + ((total + 7) & -8)
    align = hd.BATCH_ALIGN if codec == hd.CODEC_NONE else 8
    tail = _PAD[: -(len(start) + total) & (align - 1)]
    return b"".join([start, *values, tail]), raw_length  # type: ignore[list-item]


def encode_batch(
    values: Sequence[bytes | None],
    identity: hd.BatchIdentity,
    *,
    base_timestamp: int,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    timestamps: Sequence[int] | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    work: wk.WorkColumns | None = None,
    codec: int = hd.CODEC_NONE,
    attributes: int = 0,
) -> EncodedBatch:
    """One sealed batch of `len(values)` records.

    `keys`, `headers`, `timestamps` and the columns of `work` are None or as long as `values`;
    `timestamps` in microseconds since the epoch, and where None every record carries
    `base_timestamp`. `offset_deltas` makes a sparse batch (compaction) whose `last_offset_delta`
    must then be given. Raises `RecordTooLargeError` above `BATCH_BYTES_MAX` and `ConfigError` for a
    codec this build lacks.
    """
    count = len(values)
    plain = None
    is_plain = keys is None and headers is None and timestamps is None and work is None
    if is_plain and offset_deltas is None:
        plain = _plain_body(values, codec)
    max_timestamp = base_timestamp
    sections: list[Section] = []
    if plain is None:
        sections, base_timestamp, max_timestamp, more = _sections(
            values, base_timestamp, keys, headers, timestamps, offset_deltas
        )
        attributes |= more
    return finish_batch(
        sections,
        plain,
        identity=identity,
        count=count,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        work=work,
        codec=codec,
        attributes=attributes,
    )


def finish_batch(
    sections: Sequence[Section],
    plain: tuple[bytes, int] | None = None,
    *,
    identity: hd.BatchIdentity,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: int,
    attributes: int,
    work: wk.WorkColumns | None = None,
    in_pieces: bool = False,
) -> EncodedBatch:
    """A batch of these sections, or of a `plain` body and its raw length: compressed, with its
    header, sealed. `in_pieces` leaves the body of one that is not compressed in its pieces."""
    pieces: list[Piece] = []
    beside = [] if work is None else _work_sections(work)
    if beside:
        attributes |= hd.ATTR_HAS_WORK
    if plain is not None:
        body, raw_length = plain
    else:
        raw_length = _raw_length(*sections, *beside)
        if codec == hd.CODEC_NONE:
            pieces = _pieces((*sections, *beside), hd.BATCH_ALIGN)
        else:
            pieces, in_pieces = _pieces(sections, 8), False
        body = b"" if in_pieces else b"".join(pieces)
    if raw_length > hd.BATCH_BYTES_MAX - 2 * hd.HEADER_BYTES:
        raise RecordTooLargeError(
            f"a batch of {count} records would need {raw_length} bytes; the format's bound is "
            f"{hd.BATCH_BYTES_MAX}: send fewer or smaller records"
        )
    if codec != hd.CODEC_NONE:
        stored = _compress(codec, body, beside, raw_length)
        if stored is not None:
            body, raw_length = stored, len(body)
        else:
            codec = hd.CODEC_NONE
            if beside:
                body = b"".join(_pieces((*sections, *beside), hd.BATCH_ALIGN))
            else:
                body += _PAD[: -raw_length & (hd.BATCH_ALIGN - 1)]
    head = hd.pack_header(
        identity,
        length=hd.HEADER_BYTES + (sum(map(len, pieces)) if in_pieces else len(body)),
        codec=codec,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        record_count=count,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        raw_body_length=raw_length,
    )
    crc = crc32c(memoryview(head)[hd.BODY_CRC_FROM :])
    for piece in pieces if in_pieces else (body,):
        crc = crc32c(piece, crc)
    hd.seal_header(head, crc)
    return PiecedBatch.of(head, pieces) if in_pieces else EncodedBatch(head, body)


def encode_one(
    value: bytes,
    stamp: int,
    topic_id: bytes,
    partition: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
) -> EncodedBatch:
    """Encodes a single value without key, headers or codec in one step, as `encode_batch` does in
    several. After 1 ms of silence the CPU caches hold none of this code, and a reader waits for the
    record. It takes the five fields of a `BatchIdentity` as they are: making one costs a fifth to a
    quarter more (measured)."""
    total = len(value)
    unpadded = PLAIN_ONE.size + total
    if unpadded > hd.BATCH_BYTES_MAX - 2 * hd.HEADER_BYTES:
        _check_total(unpadded + 2 * hd.HEADER_BYTES, 1)
    body = b"".join(
        (
            PLAIN_ONE.pack(PLAIN_ONE_START, sc.ENCODING_PLAIN, total, 0, 0, total),
            value,
            _PAD[: -unpadded & (hd.BATCH_ALIGN - 1)],
        )
    )
    head = bytearray(
        hd.HEADER.pack(
            hd.MAGIC, hd.VERSION, hd.HEADER_BYTES // 16, 0, 0, hd.HEADER_BYTES + len(body),
            0, 0, 0, 0, 0, 0, hd.CODEC_NONE, hd.CHECKSUM_CRC32C, 0, 0, 1, producer_epoch,
            producer_id, sequence, stamp, stamp, (unpadded + 7) & -8, partition, topic_id, 0,
        )
    )  # fmt: skip
    hd.seal_header(head, crc32c(body, crc32c(head[hd.BODY_CRC_FROM :])))
    return tuple.__new__(EncodedBatch, (head, body))  # `EncodedBatch()` is one more call


def _raw_length(*sections: Section) -> int:
    return 8 * (len(sections) + 1) + sum((section.length + 7) & -8 for section in sections)


def _work_sections(work: wk.WorkColumns) -> list[Section]:
    return [Section(ident, kind, len(data), (data,)) for ident, kind, data in wk.packed(work)]


def _compress(codec: int, body: bytes, beside: Sequence[Section], raw_length: int) -> bytes | None:
    """Returns the stored form of a body under `codec`, with the sections `beside` it. Returns None
    where that is not smaller than the `raw_length` of both, or the body is too large."""
    codecs.require(codec)
    if len(body) > hd.RAW_BODY_MAX:
        return None
    packed = codecs.compress(codec, body)
    pieces: list[Piece] = [sc.STORED.pack(len(packed), 0), packed]
    if beside:
        pieces += (_PAD[: -len(packed) & 7], *_pieces(beside, 8))
    stored = sum(map(len, pieces))
    if hd.aligned(stored) >= hd.aligned(raw_length):
        return None
    return b"".join((*pieces, _PAD[: -stored & (hd.BATCH_ALIGN - 1)]))


RECORD_OVERHEAD: Final = 24
"""Bytes at most of a record beside its value, key, headers and fields for work queues: three
offsets, a timestamp and the validity bits."""


def record_overhead(
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    work: wk.WorkFields | None = None,
) -> int:
    """Returns an upper bound of the bytes that a record adds to a body."""
    size = RECORD_OVERHEAD + (len(value) if value is not None else 0)
    size += len(key) if key is not None else 0
    for name, content in headers or ():
        size += 12 + 4 * len(name) + (len(content) if content is not None else 0)
    return size if work is None else size + work.size
