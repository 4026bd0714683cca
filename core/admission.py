"""Checks that an image is a whole, good batch of this partition, before the log appends it.

Owns the checks that need nothing but the batch, and the words of their refusals. `producers` judges
the sender and the sequence.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.control import read_control
from penstock.core.crc import crc32c
from penstock.core.errors import CorruptBatchError, ErrorCode, UnsupportedVersionError
from penstock.core.header import (
    ATTR_CONTROL,
    ATTR_HAS_WORK,
    BODY_CRC_FROM,
    HEADER_BYTES,
    BatchHeader,
    checked,
    checked_private,
)
from penstock.core.work import read_work

_LOOKED_INTO: Final = ATTR_CONTROL | ATTR_HAS_WORK


class AppendResult(NamedTuple):
    """The answer to one batch. Refused (`error` not NONE): offsets are -1 and it is not in the log.
    `duplicate`: it was in the log already, at these offsets."""

    base_offset: int
    next_offset: int
    append_timestamp: int
    error: int
    duplicate: bool
    message: str


class Refusal(NamedTuple):
    """A batch that is not good. `head` if its header could be trusted."""

    result: AppendResult
    head: BatchHeader | None


def refused(error: ErrorCode, message: str) -> AppendResult:
    return AppendResult(-1, -1, 0, int(error), False, message)


def verify(
    batch: memoryview, topic_id: bytes, partition: int, batch_bytes_max: int
) -> tuple[bytearray, BatchHeader] | Refusal:
    """Returns a private copy of the header and the parsed header, or the reason for a refusal.

    All checks and later stamps use the copy: the batch itself may lie in memory that its producer
    can still write.
    """
    private = bytearray(batch[:HEADER_BYTES])
    try:
        head = checked_private(private)
    except CorruptBatchError as error:
        return Refusal(refused(ErrorCode.CORRUPT_BATCH, str(error)), None)
    except UnsupportedVersionError as error:
        return Refusal(refused(ErrorCode.UNSUPPORTED_VERSION, str(error)), None)
    if (
        head.topic_id == topic_id
        and head.partition == partition
        and head.length == len(batch)
        and head.length <= batch_bytes_max
        and head.base_timestamp <= head.max_timestamp
        and crc32c(batch[BODY_CRC_FROM:]) == head.body_crc
    ):
        if head.attributes & _LOOKED_INTO:
            return _verify_body(batch, private, head)
        return private, head
    return Refusal(_why(batch, head, topic_id, partition, batch_bytes_max), head)


def verify_verbatim(
    batch: memoryview, topic_id: bytes, partition: int
) -> BatchHeader | AppendResult:
    """Returns the header of a leader's batch, or the reason for a refusal. The topic's present
    bounds do not count, because the leader accepted the batch."""
    try:
        head = checked(batch)
        if (
            head.topic_id != topic_id
            or head.partition != partition
            or head.length != len(batch)
            or crc32c(batch[BODY_CRC_FROM:]) != head.body_crc
        ):
            return _why(batch, head, topic_id, partition, head.length)
        if head.attributes & ATTR_CONTROL:
            read_control(bytes(batch), 0, head)
    except CorruptBatchError as error:
        return refused(ErrorCode.CORRUPT_BATCH, str(error))
    except UnsupportedVersionError as error:
        return refused(ErrorCode.UNSUPPORTED_VERSION, str(error))
    return head


def _verify_body(
    batch: memoryview, private: bytearray, head: BatchHeader
) -> tuple[bytearray, BatchHeader] | Refusal:
    """Checks the parts of a body that the node reads: control records, and columns for work
    queues."""
    try:
        if head.attributes & ATTR_CONTROL:
            read_control(bytes(batch), 0, head)
        if head.attributes & ATTR_HAS_WORK:
            read_work(batch[HEADER_BYTES:], head)
    except CorruptBatchError as error:
        return Refusal(refused(ErrorCode.CORRUPT_BATCH, str(error)), head)
    except UnsupportedVersionError as error:
        return Refusal(refused(ErrorCode.UNSUPPORTED_VERSION, str(error)), head)
    return private, head


def _why(
    batch: memoryview, head: BatchHeader, topic_id: bytes, partition: int, batch_bytes_max: int
) -> AppendResult:
    """Which of the checks failed, and how to say so."""
    if head.topic_id != topic_id:
        return refused(
            ErrorCode.WRONG_TOPIC_ID,
            f"the batch is for topic {head.topic_id.hex()}, this log is of {topic_id.hex()}: was "
            "the topic created again?",
        )
    if head.partition != partition:
        return refused(
            ErrorCode.UNKNOWN_PARTITION,
            f"the batch is for partition {head.partition}, this log is of {partition}",
        )
    if head.length != len(batch):
        return refused(
            ErrorCode.CORRUPT_BATCH,
            f"the header says {head.length} bytes, the frame holds {len(batch)}",
        )
    if head.length > batch_bytes_max:
        return refused(
            ErrorCode.BATCH_TOO_LARGE,
            f"the batch has {head.length} bytes, batch_bytes_max is {batch_bytes_max}",
        )
    if head.base_timestamp > head.max_timestamp:
        return refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"base timestamp {head.base_timestamp} lies above the maximum {head.max_timestamp} of "
            "its batch",
        )
    return refused(ErrorCode.CORRUPT_BATCH, "the body's checksum is wrong")
