"""The cluster as a coordinator needs it, and the messages between brokers for it.

    coordinator's broker                          broker that leads the partition
    ControlRequest(batches) ──── control link ──► its own lanes ─► writer ─► replicated
               acks ◄──────────────────────────── each answered once that is committed

                          ◄──── control link ──── Suspects(what is open for long, of whom?)
                          ◄──── control link ──── FloorAsked(what may retention take?)

A control batch that is sent twice, or late, changes nothing: the log knows it by producer epoch and
coordinator epoch. So a request without an answer is simply sent again, to the present leader.
Owns these messages and their bounds. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from penstock.core.errors import CorruptBatchError
from penstock.core.header import ATTR_CONTROL, HEADER_BYTES
from penstock.ipc import messages as ms

BATCHES_MAX: Final = 512
"""Control batches of one request; more go by further ones."""
IMAGE_BYTES_MAX: Final = 1024
"""A control batch has one record of a few bytes."""
SUSPECTS_MAX: Final = 4_096
"""A broker has no more pages."""
REQUEST_BYTES_MAX: Final = BATCHES_MAX * (IMAGE_BYTES_MAX + 64)
_ATTRIBUTES_AT: Final = 50


class CoordinatorCluster(Protocol):
    """The cluster as a broker's coordinator sees it."""

    @property
    def broker(self) -> int:
        """The number of this broker."""

    def topics(self) -> Iterable[ms.TopicInfo]:
        """The users' topics as the committed image has them. Never older than what told this broker
        that it leads the coordinator's partition: groups forget the offsets of topics that are not
        there."""

    def leader_of(self, page: int) -> int | None:
        """Returns the known leader of this page's partition; None while there is none."""

    async def coordinator_epoch(self) -> int:
        """A number that no coordinator of the cluster had before. Raises `PenstockError`."""

    async def send_control(self, broker: int, request: bytes, timeout: float) -> bytes:
        """Hand a request to that broker's `Coordinator.take_control`; what it returned. Raises
        `PenstockError`, `PenstockTimeout` among them: it may have arrived all the same."""


class ControlBatch(msgspec.Struct, frozen=True, array_like=True):
    """`sync`: answer once it is on that broker's device, too."""

    page: int
    image: bytes
    sync: bool = False


class ControlAck(msgspec.Struct, frozen=True, array_like=True):
    """The log's answer to a batch, as `ipc.lane.Ack`. `durable`: the offset it is synced up to."""

    error: int
    base_offset: int = -1
    leader_epoch: int = 0
    durable: int = 0


class ControlRequest(msgspec.Struct, frozen=True, array_like=True, tag="control"):
    """`wait`: seconds after which a batch that is not committed yet gets `NOT_LEADER`: not now."""

    batches: list[ControlBatch]
    wait: float


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """A transaction that has been open for a while in that partition."""

    producer_id: int
    epoch: int
    topic_id: bytes
    partition: int


class Suspects(msgspec.Struct, frozen=True, array_like=True, tag="suspects"):
    """Open transactions in the sender's partitions. The coordinator has unknown ones aborted."""

    suspects: list[Suspect]


class FloorAsked(msgspec.Struct, frozen=True, array_like=True, tag="floor"):
    """How far are all groups in a partition that the sender leads?"""

    topic_id: bytes
    partition: int


class ControlAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One for each batch, in their order."""

    acks: list[ControlAck]


encode: Final = msgspec.msgpack.Encoder().encode
NOTHING: Final = encode(ControlAnswer([]))
"""The answer to `Suspects`."""
_REQUEST: Final = msgspec.msgpack.Decoder(ControlRequest | Suspects | FloorAsked)
_FLOOR: Final = msgspec.msgpack.Decoder(int)
_ANSWER: Final = msgspec.msgpack.Decoder(ControlAnswer)


def decode_request(payload: bytes) -> ControlRequest | Suspects | FloorAsked:
    """Raises `CorruptBatchError` for what no coordinator sends."""
    if len(payload) > REQUEST_BYTES_MAX:
        raise CorruptBatchError(
            f"a request of {len(payload)} bytes for control batches: at most {REQUEST_BYTES_MAX}"
        )
    try:
        request: ControlRequest | Suspects | FloorAsked = _REQUEST.decode(payload)
    except msgspec.MsgspecError as error:
        raise CorruptBatchError(f"a request for control batches cannot be read: {error}") from error
    if isinstance(request, FloorAsked):
        return request
    if isinstance(request, Suspects):
        if len(request.suspects) > SUSPECTS_MAX:
            raise CorruptBatchError(f"{len(request.suspects)} suspects in a request")
        return request
    if len(request.batches) > BATCHES_MAX:
        raise CorruptBatchError(f"{len(request.batches)} control batches in a request")
    for batch in request.batches:
        if (
            not HEADER_BYTES <= len(batch.image) <= IMAGE_BYTES_MAX
            or not batch.image[_ATTRIBUTES_AT] & ATTR_CONTROL
        ):
            raise CorruptBatchError(
                f"{len(batch.image)} bytes for page {batch.page} are no control batch: nothing "
                "else is written for another broker"
            )
    return request


def decode_floor(payload: bytes) -> int:
    """The answer to `FloorAsked`. Raises `CorruptBatchError`."""
    try:
        return _FLOOR.decode(payload)
    except msgspec.MsgspecError as error:
        raise CorruptBatchError(f"an answer about groups cannot be read: {error}") from error


def decode_answer(payload: bytes, count: int) -> list[ControlAck]:
    """The acks of a request with so many batches. Raises `CorruptBatchError`."""
    try:
        acks = _ANSWER.decode(payload).acks
    except msgspec.MsgspecError as error:
        raise CorruptBatchError(f"an answer to control batches cannot be read: {error}") from error
    if len(acks) != count:
        raise CorruptBatchError(f"{len(acks)} answers to {count} control batches")
    return acks
