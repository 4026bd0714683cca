"""`spark.readStream.format("penstock")`: the offsets that each trigger reads.

Spark keeps these offsets in the query's checkpoint and goes on there; a group (`groupId`) is only
told how far the query is. Spark calls `initialOffset` twice in a run, and again in the next one if
the first batch was not finished. The meaning of "latest" is kept here for a run. The end of the
first batch, which is in the checkpoint before the batch is read, keeps it for good
(`penstock.spark.positions`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.core.errors import PenstockError
from penstock.spark.batchreader import RangePartition, read
from penstock.spark.clients import admin_of
from penstock.spark.columns import Layout
from penstock.spark.planning import Planner
from penstock.spark.positions import Partition, Place, StreamPositions, lag, ranges
from penstock.spark.readoptions import ReadOptions
from penstock.spark.triggers import View, advance, capped, split

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("penstock.spark")

REPORT_PAUSE: Final = 10.0
"""Seconds before a group that could not be told is told again: triggers may follow at once."""


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of the source. It connects at its first request; tasks get a copy that
    never does."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        Layout(schema)  # a wrong column is told at once
        self._schema = schema
        self._options = ReadOptions.of(options, streaming=True)
        self._planner = Planner(self._options)
        self._initial: dict[str, Any] | None = None
        self._target: View | None = None
        self._latest: dict[str, Any] | None = None
        self._taken_at: float | None = None
        self._reported: dict[Partition, Place] = {}
        self._report_after = 0.0

    # --- offsets ---
    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._planner.initial().to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit that Spark is told. Spark knows no limit of two sides: with both it is
        told the larger one, and the smaller one is kept here."""
        options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.view(must_be=False)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = StreamPositions.from_json(start)
        if not begun.is_initial:
            self._report(begun)  # batches follow one another: what ends there was done
        now: View = self._planner.view(must_be=False)
        everything = StreamPositions(
            {topic: view.id for topic, view in now.items()},
            {
                (topic, number): Place(span.end, span.epoch)
                for topic, view in now.items()
                for number, span in view.spans.items()
            },
        )
        at = self._planner.goes_on(begun, now)
        if self._target is not None:
            now = capped(now, self._target)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        least = None if isinstance(limit, ReadAllAvailable) else self._options.offsets_min
        if least is not None and self._target is None:
            there = sum(
                max(0, now[topic].spans[number].end - begin)
                for (topic, number), begin in at.begins.items()
            )
            if there < least and not self._is_overdue():
                most = 0
        end = advance(begun, now, at, most)
        if most != 0:
            self._taken_at = time.monotonic()
        self._latest = {**everything.to_json(), "lag": lag(end, everything)}
        return end.to_json()

    def _is_overdue(self) -> bool:
        """Returns whether even few records are taken now: as in Spark's Kafka connector the first
        trigger of a run always takes them."""
        taken_at, delay = self._taken_at, self._options.trigger_delay
        return taken_at is None or time.monotonic() - taken_at >= delay

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the last seen ends, and how many offsets the query is behind them once this batch
        is done. Spark shows it in `lastProgress`, beside what was taken."""
        return self._latest

    # --- batches ---
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans by the checkpoint alone, so that a batch is the same when it is run again."""
        planned = ranges(StreamPositions.from_json(start), StreamPositions.from_json(end))
        return [RangePartition(asked) for asked in split(planned, self._options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition, self._options, self._schema)

    # --- progress ---
    def commit(self, end: dict[str, Any]) -> None:
        """Reports a finished batch; Spark calls it only when it prepares the next one."""
        self._report(StreamPositions.from_json(end))

    def _report(self, done: StreamPositions) -> None:
        """Tells the group how far the query is. Nothing depends on it, so that no error matters."""
        group = self._options.group
        if group is None or time.monotonic() < self._report_after:
            return
        by_topic: dict[str, dict[int, tuple[int, int]]] = {}
        for name, place in done.places.items():
            if self._reported.get(name) != place:
                by_topic.setdefault(name[0], {})[name[1]] = (place.offset, place.epoch)
        for topic, offsets in by_topic.items():
            try:
                admin_of(self._options.address).report_offsets(group, topic, offsets)
            except PenstockError as error:
                self._report_after = time.monotonic() + REPORT_PAUSE
                logger.warning("group %r was not told how far the query is: %s", group, error)
            else:
                self._reported |= {(topic, n): done.places[topic, n] for n in offsets}
