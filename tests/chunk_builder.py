"""Chunks as a consumer brings them, without a node: encoded, stamped and decoded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batch_bytes import identified, put, reseal

from penstock.client.consumer.records import Chunk
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch


def chunk_of(
    values: Sequence[bytes | None],
    topic: str = "t",
    partition: int = 0,
    start: int = 0,
    stop: int | None = None,
    base_offset: int = 0,
    **columns: Any,
) -> Chunk:
    """Rows `start` to `stop` of these records, encoded and decoded again."""
    given = {"base_timestamp": 1_000, "topic_id": bytes(16), "partition": partition, **columns}
    image = bytearray(encode_batch(values, **identified(**given)).image())
    put(image, base_offset=base_offset)
    view = memoryview(bytes(reseal(image)))
    return Chunk(topic, partition, decode(view, 0, hd.checked(view)), start, stop)
