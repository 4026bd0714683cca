"""The control frames that a replication lane carries to a replicated partition besides batches.

Each frame of `layout.KIND_ROLE` has one struct, packed. The topic and the partition precede it, as
in a batch header: pages are used again. A role obeys frames and batches in the order of their lane
(rule 22). All name the leader epoch of their role. A frame of a past epoch is refused, and a
repeated one changes nothing.

Owns these structs and their bytes. `replicated` decides their effect on a partition.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Final

import msgspec

from penstock.core.errors import CorruptBatchError
from penstock.core.header import OFFSET_MAX

Epoch = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


class Lead(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Lead in this epoch, from the log's end on."""

    epoch: Epoch


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Somebody else leads in this epoch, or nobody."""

    epoch: Epoch


class Truncate(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The leader's log is another one from `end` on. For a follower."""

    epoch: Epoch
    end: Offset


class BeginAnew(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Nothing of this log is in the leader's any more, which starts at `log_start`. For a
    follower."""

    epoch: Epoch
    log_start: Offset


class HighWatermark(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """All below is on every replica that counts."""

    epoch: Epoch
    offset: Offset


class Trim(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The leader's log starts there now. For a follower."""

    epoch: Epoch
    log_start: Offset


RoleOrder = Lead | Follow | Truncate | BeginAnew | HighWatermark | Trim

_OWNER: Final = Struct("<16sI")  # topic id, partition
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(RoleOrder)


def encode_order(order: RoleOrder, topic_id: bytes, partition: int) -> bytes:
    """The payload of a control frame."""
    return _OWNER.pack(topic_id, partition) + _encoder.encode(order)


def decode_order(payload: memoryview, topic_id: bytes, partition: int) -> RoleOrder:
    """Raises `CorruptBatchError` for bytes that are none, or are for another partition."""
    if len(payload) < _OWNER.size:
        raise CorruptBatchError(f"a control frame of {len(payload)} bytes: it names no partition")
    owner = _OWNER.unpack_from(payload)
    if owner != (topic_id, partition):
        raise CorruptBatchError(
            f"a control frame for partition {owner[1]} of topic {owner[0].hex()}, on the page of "
            f"partition {partition} of {topic_id.hex()}"
        )
    try:
        order: RoleOrder = _decoder.decode(payload[_OWNER.size :])
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptBatchError(f"a control frame of {len(payload)} bytes: {error}") from error
    return order
