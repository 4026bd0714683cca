"""Reads spans of offsets, partitions taking turns, until all of each span is read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk, RecordBatch
from penstock.core import errors as er

POLL: Final = 0.2

Span = tuple[int, int]
"""The first offset and the one behind the last."""


def scanning(
    consumer: Consumer,
    spans: Mapping[TopicPartition, Span],
    timeout: float,
    records_max: int | None = None,
) -> Iterator[list[Chunk]]:
    """Chunks of these spans, as each poll brings them, at most so many records. The consumer reads
    nothing else. Raises `PenstockTimeout` after `timeout` seconds without any progress."""
    left = {name: span for name, span in spans.items() if span[0] < span[1]}
    consumer.assign(left)
    for name, (start, _) in left.items():
        consumer.seek(*name, start)
    deadline = time.monotonic() + timeout
    while left:
        batch = consumer.poll(records_max, timeout=POLL)
        if batch:
            yield [*_within(batch, spans)]
        done = [name for name, (_, end) in left.items() if consumer.position(*name) >= end]
        if done:
            consumer.pause(*done)
            for name in done:
                del left[name]
        if batch or done:
            deadline = time.monotonic() + timeout
        elif time.monotonic() >= deadline:
            raise er.PenstockTimeout(
                f"nothing came of {', '.join(f'{t}-{p}' for t, p in sorted(left))} within "
                f"{timeout} s, although the log goes on"
            )


def _within(batch: RecordBatch, spans: Mapping[TopicPartition, Span]) -> Iterator[Chunk]:
    """The rows of a batch below the ends."""
    for chunk in batch.chunks:
        _, end = spans[chunk.topic, chunk.partition]
        stop = chunk.columns.first_at(end)
        if chunk.start < stop:
            yield chunk if chunk.stop <= stop else chunk.cut(chunk.start, stop)
