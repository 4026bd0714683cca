"""From columns to one batch: `encode` for records that come as offsets and bytes already.

The body is the same to the byte; the columns are copied into it once, or not at all where it may
stay in pieces. Owns encoding of
columns; never splits them and never chooses a partition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core import encode as en
from penstock.core import header as hd
from penstock.core import sections as sc
from penstock.core import work as wk
from penstock.core.columns import BinaryColumn
from penstock.core.gather import ranges, take


class HeaderColumns(NamedTuple):
    """Headers of n records: int32[n+1] bounds of each one's in the columns of names and values."""

    bounds: npt.NDArray[np.int32]
    names: BinaryColumn
    values: BinaryColumn


class RecordColumns(NamedTuple):
    """Records as columns of one length; None for what none of them has. `timestamps` in
    microseconds. Nulls have no bytes behind them."""

    values: BinaryColumn
    keys: BinaryColumn | None = None
    timestamps: npt.NDArray[np.int64] | None = None
    headers: HeaderColumns | None = None
    work: wk.WorkColumns | None = None

    def run(self, start: int, stop: int) -> RecordColumns:
        """These rows, in place."""
        headers = self.headers
        if headers is not None:
            headers = headers._replace(bounds=headers.bounds[start : stop + 1])
        return RecordColumns(
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.timestamps is None else self.timestamps[start:stop],
            headers,
            None if self.work is None else self.work.run(start, stop),
        )

    def take(self, rows: npt.NDArray[np.int64]) -> RecordColumns:
        """These rows in this order."""
        headers = self.headers
        if headers is not None:
            starts = headers.bounds[:-1][rows].astype(np.int64)
            counts = headers.bounds[1:][rows].astype(np.int64) - starts
            entries = ranges(starts, counts)
            bounds = np.zeros(len(rows) + 1, np.int32)
            np.cumsum(counts, out=bounds[1:])
            headers = HeaderColumns(
                bounds, take(headers.names, entries), take(headers.values, entries)
            )
        return RecordColumns(
            take(self.values, rows),
            None if self.keys is None else take(self.keys, rows),
            None if self.timestamps is None else self.timestamps[rows],
            headers,
            None if self.work is None else self.work.take(rows.tolist()),
        )

    def sizes(self) -> npt.NDArray[np.int64]:
        """int64[n]: the most that each record adds to a body, in bytes."""
        found = self.values.lengths.astype(np.int64) + 5
        if self.keys is not None:
            found += self.keys.lengths
            found += 5
        if self.timestamps is not None:
            found += 8
        if self.headers is not None:
            bounds, names, values = self.headers
            ends = names.offsets.astype(np.int64) + values.offsets
            found += np.diff(ends[bounds]) + 9 * np.diff(bounds) + 4
        if self.work is not None:
            found += np.fromiter(self.work.sizes(len(found)), np.int64, len(found))
        return found


def encode_columns(
    records: RecordColumns,
    identity: hd.BatchIdentity,
    *,
    base_timestamp: int,
    codec: int = hd.CODEC_NONE,
    attributes: int = 0,
    offset_deltas: npt.NDArray[np.int32] | None = None,
    last_offset_delta: int | None = None,
    in_pieces: bool = False,
) -> en.EncodedBatch:
    """One sealed batch of these records; see `encode_batch`, which makes the same bytes.
    `in_pieces`: see `PiecedBatch`."""
    time_section, base_timestamp, max_timestamp = _times(records.timestamps, base_timestamp)
    sections = [time_section]
    if offset_deltas is not None:
        deltas = offset_deltas.tobytes()
        sections.append(
            en.Section(sc.SECTION_OFFSET_DELTAS, sc.ENCODING_PLAIN, len(deltas), (deltas,))
        )
        attributes |= hd.ATTR_SPARSE_OFFSETS
    if records.keys is not None:
        sections += _binary(
            records.keys, sc.SECTION_KEY_VALIDITY, sc.SECTION_KEY_OFFSETS, sc.SECTION_KEY_BYTES
        )
        attributes |= hd.ATTR_HAS_KEYS
    sections += _binary(
        records.values, sc.SECTION_VALUE_VALIDITY, sc.SECTION_VALUE_OFFSETS, sc.SECTION_VALUE_BYTES
    )
    if records.headers is not None:
        sections += _headers(records.headers)
        attributes |= hd.ATTR_HAS_HEADERS
    return en.finish_batch(
        sections,
        identity=identity,
        count=len(records.values),
        last_offset_delta=(
            len(records.values) - 1 if last_offset_delta is None else last_offset_delta
        ),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        work=records.work,
        codec=codec,
        attributes=attributes,
        in_pieces=in_pieces,
    )


def _times(timestamps: npt.NDArray[np.int64] | None, base: int) -> tuple[en.Section, int, int]:
    if timestamps is None:
        return en.timestamp_section(None, base, base)
    return en.timestamp_section(timestamps, int(timestamps.min()), int(timestamps.max()))


def _binary(
    column: BinaryColumn, validity_id: int, offsets_id: int, bytes_id: int
) -> list[en.Section]:
    sections = []
    if column.valid is not None and not column.valid.all():
        bitmap = np.packbits(column.valid, bitorder="little").tobytes()
        sections.append(en.Section(validity_id, sc.ENCODING_PLAIN, len(bitmap), (bitmap,)))
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    offsets = _from_zero(column.offsets)
    sections.append(en.Section(offsets_id, sc.ENCODING_PLAIN, len(offsets), (offsets,)))
    data = column.data[first:last]
    sections.append(en.Section(bytes_id, sc.ENCODING_PLAIN, last - first, (data,)))
    return sections


def _from_zero(offsets: npt.NDArray[np.int32]) -> bytes:
    return (offsets - offsets[0] if offsets[0] else offsets).tobytes()


def _headers(headers: HeaderColumns) -> list[en.Section]:
    first, last = int(headers.bounds[0]), int(headers.bounds[-1])
    bounds = _from_zero(headers.bounds)
    return [
        en.Section(sc.SECTION_HEADER_LISTS, sc.ENCODING_PLAIN, len(bounds), (bounds,)),
        *_binary(
            headers.names[first:last],
            0,
            sc.SECTION_HEADER_NAME_OFFSETS,
            sc.SECTION_HEADER_NAME_BYTES,
        ),
        *_binary(
            headers.values[first:last],
            sc.SECTION_HEADER_VALUE_VALIDITY,
            sc.SECTION_HEADER_VALUE_OFFSETS,
            sc.SECTION_HEADER_VALUE_BYTES,
        ),
    ]
