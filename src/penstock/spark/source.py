"""`PenstockDataSource`: what Spark knows as the format "penstock".

Only the door: options and schema come in, the reader or writer that was asked for goes out. Each
is imported when it is asked for, because every Python worker of Spark imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.spark.errors import SparkMissingError

try:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: F401
except ImportError as error:
    raise SparkMissingError(
        "the format penstock needs PySpark 4.2 or newer: pip install 'penstock[spark]'"
    ) from error

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT: Final = "penstock"


class PenstockDataSource(DataSource):
    """Topics of Penstock as tables and streams. Registered by `penstock.spark.session`, and found
    by Spark itself through `pyspark_penstock`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from penstock.spark.columns import schema
        from penstock.spark.readoptions import includes_headers

        return schema(include_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batchreader import PenstockBatchReader

        return PenstockBatchReader(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.streamreader import PenstockStreamReader

        return PenstockStreamReader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import BatchWriter
        from penstock.spark.writeoptions import WriteOptions

        return BatchWriter(
            WriteOptions.of(self.options, schema, streaming=False, overwrite=overwrite)
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink import StreamWriter
        from penstock.spark.writeoptions import WriteOptions

        return StreamWriter(
            WriteOptions.of(self.options, schema, streaming=True, overwrite=overwrite)
        )
