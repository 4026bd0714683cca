"""Penstock: a distributed message queue in Python.

A partitioned, append-only log at memory speed on one host, through shared memory. Start a node with
`penstock serve`, then:

    import penstock

    with penstock.connect("shm://") as client, client.producer() as producer:
        producer.send("orders", b"42", key=b"ann")

Names are loaded when first used, so that a node or a writer process imports only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

__version__ = "0.1.0"

_HOMES = {
    "connect": "client",
    "sql": "query",
    "Client": "client",
    "Producer": "producer",
    "Consumer": "consumer",
    "GroupBatch": "group.consumed",
    "GroupConsumer": "group.consumer",
    "GroupDescription": "group.admin",
    "OffsetReset": "group.admin",
    "AccessEntry": "access",
    "LimitSetting": "access",
    "QuotaSetting": "access",
    "Admin": "admin",
    "TopicConfig": "topicconfig",
    "TopicDescription": "admin",
    "TrimResult": "trimming",
    "Offset": "offsets",
    "Record": "records",
    "RecordBatch": "records",
    "TransactionDescription": "transactions.listing",
    "TransactionalProducer": "transactions.producer",
    "Stage": "transactions.stages",
    "StagesOutcome": "transactions.stages",
    "Delivery": "delivery",
    "BatchDelivery": "delivery",
    "Receipt": "delivery",
    "BatchReceipt": "delivery",
    **dict.fromkeys(
        (
            "AccessDeniedError", "AttachRefusedError", "BufferFullError", "ClosedError",
            "ConfigError", "CorruptBatchError", "DataFolderError", "DeliveryError",
            "DeliveryTimeout", "DroppedError", "ForkedClientError", "GroupError", "LogOfflineError",
            "LogTruncatedError", "NotConnectedError", "NotLeaderError", "OffsetOutOfRangeError",
            "PenstockError", "PenstockTimeout", "ProduceError", "ProducerFencedError",
            "RecordTooLargeError", "ResourceLimitError", "StageDecidedError",
            "StaleBrokerEpochError", "StaleGenerationError", "StorageError", "TopicExistsError",
            "TransactionError", "UnknownMemberError", "UnknownTopicError",
            "UnsupportedVersionError",
        ),
        "core.errors",
    ),
}  # fmt: skip

__all__ = [
    "AccessDeniedError",
    "AccessEntry",
    "Admin",
    "AttachRefusedError",
    "BatchDelivery",
    "BatchReceipt",
    "BufferFullError",
    "Client",
    "ClosedError",
    "ConfigError",
    "Consumer",
    "CorruptBatchError",
    "DataFolderError",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeout",
    "DroppedError",
    "ForkedClientError",
    "GroupBatch",
    "GroupConsumer",
    "GroupDescription",
    "GroupError",
    "LimitSetting",
    "LogOfflineError",
    "LogTruncatedError",
    "NotConnectedError",
    "NotLeaderError",
    "Offset",
    "OffsetOutOfRangeError",
    "OffsetReset",
    "PenstockError",
    "PenstockTimeout",
    "ProduceError",
    "Producer",
    "ProducerFencedError",
    "QuotaSetting",
    "Receipt",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "ResourceLimitError",
    "Stage",
    "StageDecidedError",
    "StagesOutcome",
    "StaleGenerationError",
    "StorageError",
    "TopicConfig",
    "TopicDescription",
    "TopicExistsError",
    "TransactionDescription",
    "TransactionError",
    "TransactionalProducer",
    "TrimResult",
    "UnknownMemberError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "__version__",
    "connect",
    "sql",
]

if TYPE_CHECKING:
    from penstock.access import AccessEntry, LimitSetting, QuotaSetting
    from penstock.admin import Admin, TopicDescription
    from penstock.client import Client, connect
    from penstock.consumer import Consumer
    from penstock.core.errors import (
        AccessDeniedError,
        AttachRefusedError,
        BufferFullError,
        ClosedError,
        ConfigError,
        CorruptBatchError,
        DataFolderError,
        DeliveryError,
        DeliveryTimeout,
        DroppedError,
        ForkedClientError,
        GroupError,
        LogOfflineError,
        LogTruncatedError,
        NotConnectedError,
        OffsetOutOfRangeError,
        PenstockError,
        PenstockTimeout,
        ProduceError,
        ProducerFencedError,
        RecordTooLargeError,
        ResourceLimitError,
        StageDecidedError,
        StaleGenerationError,
        StorageError,
        TopicExistsError,
        TransactionError,
        UnknownMemberError,
        UnknownTopicError,
        UnsupportedVersionError,
    )
    from penstock.delivery import BatchDelivery, BatchReceipt, Delivery, Receipt
    from penstock.group.admin import GroupDescription, OffsetReset
    from penstock.group.consumed import GroupBatch
    from penstock.group.consumer import GroupConsumer
    from penstock.offsets import Offset
    from penstock.producer import Producer
    from penstock.query import sql
    from penstock.records import Record, RecordBatch
    from penstock.topicconfig import TopicConfig
    from penstock.transactions.listing import TransactionDescription
    from penstock.transactions.producer import TransactionalProducer
    from penstock.transactions.stages import Stage, StagesOutcome
    from penstock.trimming import TrimResult

__getattr__, __dir__ = loaded(__name__, _HOMES)
