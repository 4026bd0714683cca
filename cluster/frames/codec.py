"""A message as the frames of a ZeroMQ multipart message, and back.

The first frame is the struct as msgpack, of bounded size; at most one payload follows.
Whatever bytes come, decoding raises `FrameError` or gives a message whose numbers are within their
bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError

Piece = bytes | bytearray | memoryview
M = TypeVar("M")

_ENCODER: Final = msgspec.msgpack.Encoder()
_CLIENT: Final = msgspec.msgpack.Decoder(fr.ClientMessage)
_GATEWAY: Final = msgspec.msgpack.Decoder(fr.GatewayMessage)
WITH_PAYLOAD: Final = (fr.Produce, fr.Fetched)


class FrameError(PenstockError):
    """The received frames are no message of this protocol."""


def encode(message: msgspec.Struct) -> bytes:
    """The first frame."""
    return _ENCODER.encode(message)


def from_client(frames: Sequence[Piece]) -> tuple[fr.ClientMessage, Piece | None]:
    """Decodes a client's message; returns it and its payload."""
    return _decode(_CLIENT, frames, fr.CLIENT_HEADER_MAX)


def from_gateway(frames: Sequence[Piece]) -> tuple[fr.GatewayMessage, Piece | None]:
    """Decodes a gateway's message; returns it and its payload."""
    return _decode(_GATEWAY, frames, fr.GATEWAY_HEADER_MAX)


def _decode(
    decoder: msgspec.msgpack.Decoder[M], frames: Sequence[Piece], head_max: int
) -> tuple[M, Piece | None]:
    if not 1 <= len(frames) <= 1 + fr.PAYLOADS_MAX:
        raise FrameError(f"a message of {len(frames)} frames: 1 to {1 + fr.PAYLOADS_MAX} are due")
    head = frames[0]
    if len(head) > head_max:
        raise FrameError(f"a header of {len(head)} bytes is over {head_max}")
    try:
        message = decoder.decode(head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"a header of {len(head)} bytes is malformed: {error}") from error
    payload = frames[1] if len(frames) > 1 else None
    if payload is not None and not isinstance(message, WITH_PAYLOAD):
        raise FrameError(f"{type(message).__name__} has no payload, and one came")
    return message, payload
