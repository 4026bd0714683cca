"""Options as users of Kafka write them, and what does the same here."""

from __future__ import annotations

from typing import Final

_BYTES: Final = "bytes (encode what you send, decode what you read)"
_NO_BROKERS: Final = "the URL of connect() and App(): connect('tcp://HOST:PORT')"

KAFKA_WORDS: Final = {
    "auto_commit_interval_ms": "commit_interval= (seconds)",
    "auto_offset_reset": "start= (and on_out_of_range= where records are gone)",
    "batch_size": "batch_bytes=",
    "bootstrap_servers": _NO_BROKERS,
    "buffer_memory": "buffer_bytes_max=",
    "cleanup_policy": "cleanup=",
    "compression_type": "compression=",
    "consumer_timeout_ms": "batches(timeout=...) (seconds)",
    "delete_retention_ms": "delete_retention= (seconds)",
    "delivery_timeout_ms": "delivery_timeout= (seconds)",
    "enable_auto_commit": "guarantee= ('manual' for commits of your own)",
    "enable_idempotence": "idempotent=",
    "fetch_max_bytes": "prefetch_bytes=",
    "flush_ms": "flush_interval= (seconds)",
    "group_id": "group=",
    "group_instance_id": "instance_id=",
    "isolation_level": "isolation=",
    "key_deserializer": _BYTES,
    "key_serializer": _BYTES,
    "linger_ms": "linger= (seconds)",
    "max_block_ms": "block_timeout= (seconds)",
    "max_message_bytes": "record_bytes_max=",
    "max_poll_interval_ms": "processing_timeout= (seconds)",
    "max_poll_records": "poll(max_records=...)",
    "max_request_size": "the topic's record_bytes_max",
    "message_timestamp_type": "timestamp_type=",
    "min_cleanable_dirty_ratio": "min_dirty_ratio=",
    "min_compaction_lag_ms": "min_compaction_lag= (seconds)",
    "num_partitions": "partitions=",
    "request_timeout_ms": "timeout= (seconds)",
    "retention_ms": "retention= (seconds)",
    "retry_backoff_ms": "retry_backoff= (seconds)",
    "segment_ms": "segment_age= (seconds)",
    "session_timeout_ms": "session_timeout= (seconds)",
    "transaction_timeout_ms": "transaction_timeout= (seconds)",
    "value_deserializer": _BYTES,
    "value_serializer": _BYTES,
}
"""By the name in a properties file, with underlines for dots."""

KAFKA_FLAGS: Final = {
    "--bootstrap-server": "-b URL",
    "--broker-list": "-b URL",
    "--from-beginning": "-o start, where consume begins anyway",
    "--timeout-ms": "--timeout SECONDS",
}
"""Options of Kafka's commands that no command has here."""
