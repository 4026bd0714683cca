"""Penstock: a distributed message queue in Python.

A partitioned, append-only log at memory speed on one host, through shared memory. Start a node with
`penstock serve`, then:

    import penstock

    with penstock.connect("shm://") as client, client.producer() as producer:
        producer.send("orders", b"42", key=b"ann")

Names are loaded when first used, so that a node or a writer process imports only what it needs.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING

from penstock.lazily import loaded
from penstock.version import __version__

_HOMES = {
    "connect": "client.client",
    "sql": "client.sql",
    "App": "client.app.app",
    "DecodeError": "serializers.serializer",
    "EncodeError": "serializers.serializer",
    "Client": "client.client",
    "Producer": "client.producer.producer",
    "Consumer": "client.consumer.consumer",
    "GroupBatch": "client.consumer.group.consumed",
    "GroupConsumer": "client.consumer.group.consumer",
    "GroupDescription": "client.admin.groups",
    "OffsetReset": "client.admin.groups",
    "AccessEntry": "client.admin.access",
    "LimitSetting": "client.admin.access",
    "LimitUse": "client.admin.access",
    "QuotaSetting": "client.admin.access",
    "Admin": "client.admin.admin",
    "TopicConfig": "client.admin.topic_config",
    "TopicDescription": "client.admin.admin",
    "TrimResult": "client.admin.trim",
    "Offset": "client.consumer.offsets",
    "Record": "client.consumer.records",
    "RecordBatch": "client.consumer.records",
    "TransactionDescription": "client.transactions.listing",
    "TransactionalProducer": "client.transactions.producer",
    "DeadLetter": "client.deadletters.story",
    "DeadLetterQueue": "client.deadletters.queue",
    "DeadLetterStats": "client.deadletters.stats",
    "ReplayResult": "client.deadletters.replay",
    "Job": "client.share.jobs",
    "Retry": "client.retry.policy",
    "ShareConsumer": "client.share.consumer",
    "Stage": "client.transactions.stages",
    "StagesOutcome": "client.transactions.stages",
    "Delivery": "client.producer.delivery",
    "BatchDelivery": "client.producer.delivery",
    "Receipt": "client.producer.delivery",
    "BatchReceipt": "client.producer.delivery",
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
    "App",
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
    "DeadLetter",
    "DeadLetterQueue",
    "DeadLetterStats",
    "DecodeError",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeout",
    "DroppedError",
    "EncodeError",
    "ForkedClientError",
    "GroupBatch",
    "GroupConsumer",
    "GroupDescription",
    "GroupError",
    "Job",
    "LimitSetting",
    "LimitUse",
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
    "ReplayResult",
    "ResourceLimitError",
    "Retry",
    "ShareConsumer",
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
    from penstock.client.admin.access import AccessEntry, LimitSetting, LimitUse, QuotaSetting
    from penstock.client.admin.admin import Admin, TopicDescription
    from penstock.client.admin.groups import GroupDescription, OffsetReset
    from penstock.client.admin.topic_config import TopicConfig
    from penstock.client.admin.trim import TrimResult
    from penstock.client.app.app import App
    from penstock.client.client import Client, connect
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.group.consumed import GroupBatch
    from penstock.client.consumer.group.consumer import GroupConsumer
    from penstock.client.consumer.offsets import Offset
    from penstock.client.consumer.records import Record, RecordBatch
    from penstock.client.deadletters.queue import DeadLetterQueue
    from penstock.client.deadletters.replay import ReplayResult
    from penstock.client.deadletters.stats import DeadLetterStats
    from penstock.client.deadletters.story import DeadLetter
    from penstock.client.producer.delivery import BatchDelivery, BatchReceipt, Delivery, Receipt
    from penstock.client.producer.producer import Producer
    from penstock.client.retry.policy import Retry
    from penstock.client.share.consumer import ShareConsumer
    from penstock.client.share.jobs import Job
    from penstock.client.sql import sql
    from penstock.client.transactions.listing import TransactionDescription
    from penstock.client.transactions.producer import TransactionalProducer
    from penstock.client.transactions.stages import Stage, StagesOutcome
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
    from penstock.serializers.serializer import DecodeError, EncodeError


@atexit.register
def _end() -> None:
    """Registered here and now: what a program registers after its import of Penstock runs before
    this, and may still send."""
    if exits := sys.modules.get("penstock.client.process_exit"):
        exits.end()


__getattr__, __dir__ = loaded(__name__, _HOMES)
