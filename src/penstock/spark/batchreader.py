"""`spark.read.format("penstock")`: ranges are planned on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.columns import Layout
from penstock.spark.planning import Planner
from penstock.spark.positions import Range
from penstock.spark.reading import RangeReader
from penstock.spark.readoptions import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, asked: Range) -> None:
        super().__init__(asked)
        self.asked = asked


def read(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[Any]:
    """Yields the record batches of a task. Where nothing was planned Spark makes a partition of its
    own that asks for nothing."""
    if isinstance(partition, RangePartition):
        yield from RangeReader(partition.asked, options, Layout(schema)).batches()


class PenstockBatchReader(DataSourceReader):
    """The batch reader of the source. Holds no connection: it is sent to the tasks as well."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        Layout(schema)  # a wrong column is told at once
        self._schema = schema
        self._options = ReadOptions.of(options, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(asked) for asked in Planner(self._options).batch()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition, self._options, self._schema)
