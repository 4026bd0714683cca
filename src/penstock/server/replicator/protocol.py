"""The messages between replicators, and their frames over ZeroMQ.

    follower (DEALER)                       leader (ROUTER)
      Hello(cluster id, broker, epoch)  ->
                                        <-  Welcome(broker, epoch) | Refused(why)
      Fetch(serial, requests)           ->
                                        <-  Answers(heard, ...) + batches, as soon as there are any

The first frame is the message as msgpack, of bounded size. Behind `Answers` follow the batches of
its `fetched`, in their order and as the leader's log has them. Each entry says in how many frames.

Both send at least every `BEAT` seconds, even without news. A follower learns from `heard` how many
of its messages have arrived. So it finds out about a connection that is cut one way only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from penstock.cluster.replica.messages import (
    BrokerId,
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    Number,
)
from penstock.core.errors import PenstockError
from penstock.ipc import layout as lo

VERSION: Final = 1
BEAT: Final = 0.25
"""Seconds."""
SILENCE: Final = 1.0
"""Seconds after which a connection by which nothing came is given up."""
HEADER_MAX: Final = 128 << 10
"""Bytes of a message's first frame."""
ITEMS_MAX: Final = 1024
"""Partitions that one message tells of."""
RUNS_MAX: Final = 256
"""Frames of batches in one message."""
CLUSTER_ID_BYTES: Final = 64

Page = Annotated[int, msgspec.Meta(ge=0, lt=lo.PAGES_MAX)]
TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Runs = Annotated[int, msgspec.Meta(ge=0, le=RUNS_MAX)]
AtMost = msgspec.Meta(max_length=ITEMS_MAX)
Piece = bytes | bytearray | memoryview


class WireError(PenstockError):
    """The received frames are no message of this protocol, or none that may come now."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """`to`: the broker that is meant; another one may have its address by now."""

    version: int
    cluster_id: Annotated[bytes, msgspec.Meta(max_length=CLUSTER_ID_BYTES)]
    broker: BrokerId
    broker_epoch: Number
    to: BrokerId


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """`serial` counts these up in a connection, from 1."""

    serial: Number
    requests: Annotated[list[tuple[Page, TopicId, FetchRequest]], AtMost]


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    version: int
    broker: BrokerId
    broker_epoch: Number


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """It is not served: it has to say hello, or again, or is wrong here."""

    why: Annotated[str, msgspec.Meta(max_length=1000)]


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """`heard`: the last serial that came. `fetched`: with the number of its frames of batches."""

    heard: Number
    fetched: Annotated[list[tuple[Page, Runs, Fetched]], AtMost] = []
    diverged: Annotated[list[tuple[Page, Diverged]], AtMost] = []
    refused: Annotated[list[tuple[Page, FetchRefused]], AtMost] = []


FromFollower = Hello | Fetch
FromLeader = Welcome | Refused | Answers

_ENCODER: Final = msgspec.msgpack.Encoder()
_FOLLOWER: Final = msgspec.msgpack.Decoder(FromFollower)
_LEADER: Final = msgspec.msgpack.Decoder(FromLeader)


def encode(message: msgspec.Struct) -> bytes:
    """The first frame."""
    return _ENCODER.encode(message)


def from_follower(frames: Sequence[Piece]) -> FromFollower:
    """Decodes a follower's message. Raises `WireError`."""
    if len(frames) != 1 or len(frames[0]) > HEADER_MAX:
        raise WireError(f"{len(frames)} frames with {sum(map(len, frames))} bytes came for one")
    try:
        message: FromFollower = _FOLLOWER.decode(frames[0])
        return message
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"a message of {len(frames[0])} bytes is malformed: {error}") from error


def from_leader(frames: Sequence[Piece]) -> FromLeader:
    """Decodes a leader's message; frames behind the first are those of `Answers`. Raises
    `WireError`."""
    if not 1 <= len(frames) <= 1 + RUNS_MAX or len(frames[0]) > HEADER_MAX:
        raise WireError(f"{len(frames)} frames came, or too long a first one")
    try:
        message: FromLeader = _LEADER.decode(frames[0])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"a message of {len(frames[0])} bytes is malformed: {error}") from error
    runs = sum(count for _, count, _ in message.fetched) if isinstance(message, Answers) else 0
    if runs != len(frames) - 1:
        raise WireError(f"{len(frames) - 1} frames of batches came where {runs} were told of")
    return message
