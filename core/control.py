"""Control batches: where a transaction begins and ends in a partition's log.

A batch of one record, one offset long, that reaches no reader. Its header says all that a writer
and a recovery have to know, so that neither looks into bodies:

    attributes       control | transactional | has keys
    producer id      the owner of the transaction
    producer epoch   BEGIN: that of the transaction; COMMIT, ABORT: one above it
    base sequence  ┌────────────────────────────┬────────────────────────────┐
                   │ type                   u32 │ coordinator epoch      u32 │
                   └────────────────────────────┴────────────────────────────┘

A control batch takes no sequence number of its producer's data, so that field is free for it. The
record says the same again, for tools that read records:

    key    ┌──────────────┬──────────────┐   value  ┌──────────────┬──────────────┐
           │ version  u16 │ type     u16 │          │ reserved u32 │ coordinator  │
           └──────────────┴──────────────┘          └──────────────┴─ epoch  u32 ─┘

Owns these bytes. `producers` decides the effect of a marker on a transaction. Without numpy.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.core import header as hd
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.plain import decode_records, encode_records

CONTROL_KEY: Final = struct.Struct("<HH")
CONTROL_VALUE: Final = struct.Struct("<II")
CONTROL_VERSION: Final = 1
_TYPE_BITS: Final = 32
_TYPE_MASK: Final = (1 << _TYPE_BITS) - 1
_CONTROL: Final = hd.ATTR_CONTROL | hd.ATTR_TRANSACTIONAL


class ControlType(IntEnum):
    """Frozen: numbers are never reused."""

    BEGIN = 1
    COMMIT = 2
    ABORT = 3


class Control(NamedTuple):
    """The contents of a control batch. `epoch` is that of the transaction, whichever the header
    has."""

    type: ControlType
    producer_id: int
    epoch: int
    coordinator_epoch: int


def encode_control(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    topic_id: bytes,
    partition: int,
) -> bytes:
    """A sealed control batch. `producer_epoch` is the header's: for COMMIT and ABORT the epoch of
    the transaction + 1."""
    return encode_records(
        [(CONTROL_KEY.pack(CONTROL_VERSION, kind), CONTROL_VALUE.pack(0, coordinator_epoch))],
        hd.BatchIdentity(
            topic_id, partition, producer_id, producer_epoch, coordinator_epoch << _TYPE_BITS | kind
        ),
        base_timestamp=timestamp,
        attributes=_CONTROL,
    )


def is_control(head: hd.BatchHeader) -> bool:
    return bool(head.attributes & hd.ATTR_CONTROL)


def control_of(head: hd.BatchHeader) -> Control:
    """Parses the header of a control batch. Raises `UnsupportedVersionError` for a type that this
    build does not know, and `CorruptBatchError` for an impossible header."""
    number = head.base_sequence & _TYPE_MASK
    try:
        kind = ControlType(number)
    except ValueError:
        raise UnsupportedVersionError(
            f"a control batch of type {number}: this build knows "
            f"{', '.join(f'{each.value} {each.name}' for each in ControlType)}"
        ) from None
    ends = kind is not ControlType.BEGIN
    if (
        head.last_offset_delta
        or head.attributes & _CONTROL != _CONTROL
        or (ends and not head.producer_epoch)
    ):
        raise CorruptBatchError(
            f"an impossible control batch: {kind.name} of producer {head.producer_id} epoch "
            f"{head.producer_epoch} with {head.last_offset_delta + 1} offsets and attributes "
            f"{head.attributes}"
        )
    return Control(
        kind,
        head.producer_id,
        head.producer_epoch - ends,
        head.base_sequence >> _TYPE_BITS,
    )


def read_control(view: hd.Buffer, position: int, head: hd.BatchHeader) -> Control:
    """`control_of`, after the record was found to say the same. Raises also `CorruptBatchError`
    where it does not."""
    control = control_of(head)
    records = decode_records(view, position, head)
    try:
        ((_, key, value),) = records
        version, kind = CONTROL_KEY.unpack(key or b"")
        _, coordinator_epoch = CONTROL_VALUE.unpack(value or b"")
    except (ValueError, struct.error) as error:
        raise CorruptBatchError("a control batch without its one record") from error
    if version != CONTROL_VERSION:
        raise UnsupportedVersionError(
            f"a control record of version {version}, this build reads {CONTROL_VERSION}"
        )
    if (kind, coordinator_epoch) != (control.type, control.coordinator_epoch):
        raise CorruptBatchError(
            f"a control batch whose header says {control.type.name} of coordinator epoch "
            f"{control.coordinator_epoch}, and its record type {kind} of {coordinator_epoch}"
        )
    return control
