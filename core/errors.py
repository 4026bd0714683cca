"""The tree of errors that a caller can act on, and the numbers they travel as in acknowledgements.

Owns the names and the one bit that matters to a caller, `retriable`. A producer itself sends
batches with an error of `SENT_BACK` again. Knows nothing of where errors arise. A message says what
was tried, on which topic, partition and node, and what to do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """The result in an acknowledgement (i32). Frozen: numbers are never reused."""

    NONE = 0
    CORRUPT_BATCH = 1
    BATCH_TOO_LARGE = 2
    UNKNOWN_PARTITION = 3
    WRONG_TOPIC_ID = 4
    OUT_OF_ORDER_SEQUENCE = 5
    STALE_PRODUCER_EPOCH = 6
    UNKNOWN_PRODUCER = 7
    POISONED = 8
    STORAGE_FULL = 9
    STORAGE_FAILED = 10
    PARTITION_OFFLINE = 11
    NOT_LEADER = 12
    UNSUPPORTED_VERSION = 13
    INVALID_TIMESTAMP = 14
    DUPLICATE_TOO_OLD = 15
    TRANSACTION_NOT_OPEN = 16
    ACCESS_DENIED = 17
    STALE_LEADER_EPOCH = 18
    BEYOND_LOG_END = 19
    NOT_COMMITTED = 20
    NAMESPACE_FULL = 21


SENT_BACK: Final = frozenset({ErrorCode.NOT_LEADER, ErrorCode.NOT_COMMITTED})
"""Answers after which a batch goes again in a while: the partition lacks something, and not it."""


class PenstockError(Exception):
    """Root of everything this package raises on purpose."""

    retriable: bool = False


class PenstockTimeout(PenstockError, TimeoutError):
    """A bounded wait ran out. The awaited event may still happen."""

    retriable = True


class ConfigError(PenstockError, ValueError):
    """An option, name, URL or file does not have an allowed value."""


class NotConnectedError(PenstockError, ConnectionError):
    """No node answers at the address that was tried."""

    retriable = True


class AttachRefusedError(PenstockError):
    """The node answered and refused: wrong user, invisible process, limits, or version."""


class AccessDeniedError(PenstockError):
    """The caller's principal may not do this. Says the same whether what it names is there or
    not."""


class NotLeaderError(PenstockError):
    """This node does not lead what was asked of it; the message names who does, if known."""

    retriable = True


class StaleBrokerEpochError(PenstockError):
    """A later life of this broker is registered, or none: this one has to stop, or register."""


class ForkedClientError(PenstockError):
    """An object made before `fork()` was used in the child."""


class ClosedError(PenstockError):
    """The object was closed before this call."""


class ResourceLimitError(PenstockError):
    """A named bound was hit; the message names it and says how to raise it."""

    retriable = True


class BufferFullError(ResourceLimitError):
    """The producer's memory bound is reached and `on_full="error"` was chosen."""


class DroppedError(ResourceLimitError):
    """The producer gave records up, as its `on_full` told it to. They never left the process."""


class RecordTooLargeError(PenstockError, ValueError):
    """A record, or a batch made of it, can never fit its bound."""


class UnknownTopicError(PenstockError, LookupError):
    """No such topic or partition on this node."""


class TopicExistsError(PenstockError):
    """A topic of that name is there already."""


class OffsetOutOfRangeError(PenstockError, LookupError):
    """The wanted offset lies below the log start or above the high watermark."""


class LogTruncatedError(PenstockError):
    """The log diverged below the wanted position (another leader epoch); carries the point."""

    def __init__(self, message: str, *, divergence: int | None = None) -> None:
        super().__init__(message)
        self.divergence = divergence


class CorruptBatchError(PenstockError):
    """Bytes that should be a batch are not: wrong magic, length, checksum or columns."""


class UnsupportedVersionError(PenstockError):
    """The bytes were written by a version that this one does not read."""


class StorageError(PenstockError):
    """The file system refused. `retriable` on the instance tells whether room may come back."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class LogOfflineError(StorageError):
    """This partition's log is offline until it is recovered (failed fsync, corruption)."""


class DataFolderError(PenstockError):
    """The data folder cannot be used: held by another node, unreadable, or of a wrong version."""


class ProduceError(PenstockError):
    """A batch was refused for good. `code` is what the writer answered."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NONE) -> None:
        super().__init__(message)
        self.code = code


class DeliveryTimeout(PenstockTimeout):
    """No acknowledgement within the delivery timeout; the records may still be written."""


class DeliveryError(PenstockError):
    """Deliveries failed that nobody looked at. `failed` holds (topic, partition, error, count)."""

    def __init__(self, message: str, failed: list[tuple[str, int, Exception, int]]) -> None:
        super().__init__(message)
        self.failed = failed


class StaleGenerationError(PenstockError):
    """The group gave the partition to another member, or a new grant to this one. The new owner may
    process the same records again, and this member commits nothing."""


class UnknownMemberError(PenstockError):
    """The group does not know this member any more: it was away for too long, or replaced."""


class GroupError(PenstockError):
    """A group does not allow what was asked: members are there, or its guarantee forbids it."""


class TransactionError(PenstockError):
    """A transaction cannot go on, or the call does not fit its state. It can only be aborted."""


class ProducerFencedError(TransactionError):
    """Another producer took the transactional id over: this one is to end."""


class StageDecidedError(TransactionError):
    """The epoch of this stage is decided already, so the caller leaves its records out. An earlier
    try did the work, or gave it up."""


def named(name: str, message: str) -> PenstockError:
    """The error that another process raised; a plain one where it is not known here."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        try:
            return kind(message)
        except TypeError:
            pass  # it wants more than a message
    return PenstockError(f"{name}: {message}")
