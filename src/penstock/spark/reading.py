"""Reads a range of offsets of one partition in a task, as Arrow record batches.

A task may run long after its range was planned. So it first checks that the topic is the same, the
log too as far as leader epochs tell, and the range whole. A difference is a `DataLossError`, or
with `failOnDataLoss` false a warning, and the rest is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.records import Chunk
from penstock.core import errors as er
from penstock.spark.clients import consumer_of, describe
from penstock.spark.columns import Layout
from penstock.spark.positions import EPOCH_UNKNOWN, DataLossError, Partition, Range
from penstock.spark.readoptions import ReadOptions

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger("penstock.spark")

BATCH_BYTES: Final = 512 << 10
"""Values that become one record batch: those of one full batch of a producer, which need no copy;
smaller ones are joined. (Measured: joining up to 4 MiB cost Spark 10 to 15 % in caches.)"""
STALLED_AFTER: Final = 60.0
"""Seconds without anything of a range, all of which was there when it was planned."""
NAP: Final = 0.05


class Losses:
    """Records that were planned and are gone: an error, or (`failOnDataLoss` false) counted and
    logged."""

    def __init__(self, options: ReadOptions) -> None:
        self._is_error = options.fail_on_data_loss
        self._count = 0

    def tell(self, what: str) -> None:
        """Raises `DataLossError`, where it is one."""
        if self._is_error:
            raise DataLossError(
                f"{what}. Set failOnDataLoss to false to go on with what is there, or begin again "
                "with another checkpoint"
            )
        self._count += 1
        logger.warning(
            "data loss, going on with what is there: %s (loss number %d)", what, self._count
        )


class RangeReader:
    """The reader of one planned range."""

    def __init__(self, asked: Range, options: ReadOptions, layout: Layout) -> None:
        self._range = asked
        self._name: Partition = (asked.topic, asked.partition)
        self._options = options
        self._layout = layout
        self._end = asked.end
        self._lost = Losses(options).tell

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yields all records of the range, in order."""
        asked, options = self._range, self._options
        try:
            consumer = consumer_of(options.address, self._name, options.isolation)
        except er.UnknownTopicError as error:
            self._lost(f"{asked}: {error}")
            return
        with consumer:
            begin = self._begin(consumer)
            if begin is None:
                return
            try:
                self._seek(consumer, begin, asked.begin_epoch)
            except er.LogTruncatedError as error:
                self._lost(f"{asked}: {error}")
                self._seek(consumer, begin)
            except er.UnknownTopicError as error:
                self._lost(f"{asked}: {error}")
                return
            yield from self._joined(self._chunks(consumer))

    # --- what is there ---
    def _begin(self, consumer: Consumer) -> int | None:
        """Returns where to begin, and sets in `_end` where to end; None: nowhere."""
        asked = self._range
        topic = describe(self._options.address, asked.topic)
        if topic is None or topic.topic_id != asked.topic_id:
            self._lost(f"topic {asked.topic!r} was deleted since this batch was planned")
            return None
        found = topic.partitions[asked.partition]
        parted: int | None = None
        if asked.end_epoch not in (EPOCH_UNKNOWN, found.leader_epoch):
            parted = divergence(consumer, self._name, asked.end, asked.end_epoch)
        if parted is not None or found.log_end < asked.end:
            self._end = found.log_end if parted is None else parted
            self._lost(
                f"{asked}: offsets {self._end} to {asked.end} are not there any more: the log was "
                "cut, the host lost unsynced records"
            )
        if found.log_start > asked.begin:
            self._lost(f"{asked}: {overtaken(asked.begin, found.log_start)}")
        begin = max(asked.begin, found.log_start)
        return begin if begin < self._end else None

    # --- reading ---
    def _seek(self, consumer: Consumer, offset: int, epoch: int = EPOCH_UNKNOWN) -> None:
        consumer.seek(*self._name, Offset.exact(offset), leader_epoch=epoch)

    def _chunks(self, consumer: Consumer) -> Iterator[Chunk]:
        name, end = self._name, self._end
        at, moved, nap = consumer.position(*name), time.monotonic(), 0.0
        while at < end:
            try:
                chunks = consumer.poll(timeout=nap).chunks
            except er.OffsetOutOfRangeError:
                start = consumer.beginning_offsets()[name]
                self._lost(f"{self._range}: {overtaken(at, start)}")
                chunks = ()
                consumer.seek(*name, Offset.earliest())
            except er.LogTruncatedError as error:
                self._lost(f"{self._range}: {error}")
                chunks = ()
                self._seek(consumer, at)
                end = min(end, consumer.end_offsets()[name])
            except er.UnknownTopicError as error:
                self._lost(f"{self._range}: {error}")
                return
            for chunk in chunks:
                if chunk.next_offset > end:
                    chunk = chunk.cut(chunk.start, chunk.columns.first_at(end))
                if len(chunk):
                    yield chunk
            before, at = at, consumer.position(*name)
            nap = 0.0 if at > before else NAP
            if at > before:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALLED_AFTER:
                raise er.PenstockTimeout(
                    f"{self._range}: nothing came of offsets {at} to {end} for "
                    f"{STALLED_AFTER:.0f} s, though they were there when this batch was planned; "
                    "look at the node's log and at `penstock topic describe`"
                )

    def _joined(self, chunks: Iterator[Chunk]) -> Iterator[pyarrow.RecordBatch]:
        """Chunks as batches of a good size, at most `batchRows` rows."""
        rows_max = self._options.batch_rows
        pending: list[Chunk] = []
        rows = size = 0
        for chunk in chunks:
            while rows + len(chunk) > rows_max:
                cut = chunk.start + rows_max - rows
                yield self._layout.batch([*pending, chunk.cut(chunk.start, cut)])
                chunk = chunk.cut(cut, chunk.stop)
                pending, rows, size = [], 0, 0
            if not len(chunk):
                continue
            pending.append(chunk)
            rows += len(chunk)
            size += chunk.values.nbytes
            if size >= BATCH_BYTES or rows == rows_max:
                yield self._layout.batch(pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield self._layout.batch(pending)


def overtaken(offset: int, start: int) -> str:
    return (
        f"offset {offset} is gone, the log starts at {start}: retention overtook the query (see "
        "`penstock topic config` for retention)"
    )


def divergence(consumer: Consumer, name: Partition, offset: int, epoch: int) -> int | None:
    """Returns where the log parted from the records up to `offset` in that leader epoch; None: it
    did not. Moves the consumer, which has the partition assigned."""
    try:
        consumer.seek(*name, Offset.exact(offset), leader_epoch=epoch)
        consumer.poll(max_records=1, timeout=0.0)
    except er.LogTruncatedError as error:
        return error.divergence
    except er.OffsetOutOfRangeError:
        return None  # retention took all that could have told
    return None
