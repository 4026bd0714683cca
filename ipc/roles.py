"""What a replication lane tells a replicated partition besides batches: the control frames.

One struct a frame of `layout.KIND_ROLE`, packed; they are obeyed in the order in which they and the
batches stand in their lane (rule 22). All of them name the leader epoch of the role that they were
written for: one whose epoch is over is refused, and one that comes twice changes nothing.

Owns these structs and their bytes. What they do to a partition is `replicated`'s business.
"""

from __future__ import annotations

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

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(RoleOrder)


def encode_order(order: RoleOrder) -> bytes:
    """The payload of a control frame."""
    return _encoder.encode(order)


def decode_order(payload: memoryview) -> RoleOrder:
    """Raises `CorruptBatchError` for bytes that are none."""
    try:
        order: RoleOrder = _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptBatchError(f"a control frame of {len(payload)} bytes: {error}") from error
    return order
