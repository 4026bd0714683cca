"""A batch without some of its records: the columns of the rest, gathered and sealed again.

Offsets and sequences stay: the base offset, the last offset delta and the base sequence are those
of the whole batch. The rest of the records has offset deltas. A batch without any record is a
header alone, which still has its producer's sequence. None of them is part of a transaction any
more.

Owns the re-encoding. Never decides what goes. Imports numpy: for the cleaner's process only.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.core import encode as en
from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core.columns import BinaryColumn, Columns
from penstock.core.crc import crc32c
from penstock.core.encode_columns import HeaderColumns, RecordColumns, encode_columns
from penstock.core.errors import UnsupportedVersionError
from penstock.core.plain import behind_block, expanded

ATTRIBUTES: Final = struct.Struct("<H")

Mask = npt.NDArray[np.bool_]


def stamped(
    header: bytearray, body: hd.Buffer, head: hd.BatchHeader, horizon: int | None
) -> list[hd.Buffer]:
    """Returns a batch in the form of a compacted segment: offset, epoch and times of the broker are
    those of `head`. A delete horizon is set if one is given."""
    flags = head.flags & hd.FLAG_APPEND_TIME | hd.FLAG_COMPACTED
    if horizon is not None:
        flags |= hd.FLAG_DELETE_HORIZON
    hd.stamp(
        header,
        base_offset=head.base_offset,
        leader_epoch=head.leader_epoch,
        generation=head.generation,
        append_timestamp=head.append_timestamp,
        flags=flags,
        delete_horizon=horizon or 0,
    )
    return [header, body]


def settled(header: bytearray, body: hd.Buffer, head: hd.BatchHeader) -> bytearray:
    """The header with the attributes of `head`: of a batch whose transaction is decided."""
    ATTRIBUTES.pack_into(header, hd.ATTRIBUTES_AT, head.attributes)
    crc = crc32c(memoryview(header)[hd.BODY_CRC_FROM :])
    hd.seal_header(header, crc32c(body, crc))
    return header


def emptied(head: hd.BatchHeader) -> en.EncodedBatch:
    """The batch without any record: its header alone."""
    return en.finish_batch(
        (),
        (b"", 0),
        identity=head.identity,
        count=0,
        last_offset_delta=head.last_offset_delta,
        base_timestamp=head.base_timestamp,
        max_timestamp=head.max_timestamp,
        codec=hd.CODEC_NONE,
        attributes=hd.ATTR_SPARSE_OFFSETS,
    )


def check_sections(stored: memoryview, head: hd.BatchHeader) -> None:
    """Raises `UnsupportedVersionError` for a batch that would lose sections of a later version when
    it is written again. `stored`: its body."""
    bodies: list[hd.Buffer] = [stored if head.codec == hd.CODEC_NONE else expanded(stored, head)]
    if head.codec != hd.CODEC_NONE and head.attributes & hd.ATTR_HAS_WORK:
        bodies.append(behind_block(stored))
    for body in bodies:
        unknown = sc.directory(body).keys() - sc.SECTIONS_KNOWN
        if unknown:
            raise UnsupportedVersionError(
                f"the batch at offset {head.base_offset} has sections that this build does not "
                f"know ({', '.join(map(str, sorted(unknown)))}) and would lose in compaction: "
                "compact it with the version that wrote it, or a newer one"
            )


def thinned(columns: Columns, keep: Mask) -> en.EncodedBatch:
    """The batch with those records for which `keep` is true: at least one. The header of `columns`
    must not say that the append's time counts, or the producers' times would be lost."""
    head, rows = columns.head, np.flatnonzero(keep)
    headers = columns.header_columns
    records = RecordColumns(
        columns.values,
        columns.keys if isinstance(columns.keys, BinaryColumn) else None,
        columns.timestamps if columns.constant_timestamp is None else None,
        None if headers is None else HeaderColumns(*headers),
        columns.work,
    )
    return encode_columns(
        records.take(rows),
        head.identity,
        base_timestamp=head.base_timestamp,
        offset_deltas=(columns.offsets[rows] - head.base_offset).astype(np.int32),
        last_offset_delta=head.last_offset_delta,
        codec=head.codec,
    )
