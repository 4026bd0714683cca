"""The options of runs with Spark, and Spark's access to the topics of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.bench.errors import BenchError
from penstock.bench.ground import MeasuredNode
from penstock.bench.options import Where
from penstock.client.admin.admin import TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query = Callable[["DataFrame"], object]

SCHEMA: Final = "value BINARY"
TURNS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions(Where):
    """records: of the topic. size: bytes of a value. turns: counted runs of each query, of which
    the median counts. master: where Spark runs. triggers: small batches of a stream, of which the
    median counts. rows: records of each of these. timeout: seconds until it is given up."""

    records: int = 3_000_000
    size: int = 100
    partitions: int = 2
    turns: int = 3
    triggers: int = 20
    rows: int = 100
    master: str = "local[2]"
    timeout: float = 600.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        self.check_place()
        if (why := missing()) is not None:
            raise BenchError(why)
        if self.size < 8:
            raise BenchError(f"--size {self.size}: a value carries its number, so 8 bytes at least")
        if self.records < 1 or self.partitions < 1:
            raise BenchError("--records and --partitions: at least one")
        if not 1 <= self.turns <= TURNS_MAX:
            raise BenchError(f"--turns {self.turns}: from 1 to {TURNS_MAX}")
        if not 1 <= self.triggers <= 100 or self.rows < 1:  # as many as Spark tells of
            raise BenchError(f"--triggers {self.triggers} --rows {self.rows}: 1 to 100, and some")

    @property
    def bytes_needed(self) -> int:
        """The topic, its copies in Parquet, and a topic that is written again in each turn."""
        return 6 * self.records * (self.size + 24) + (256 << 20)


def missing() -> str | None:
    """Returns why Spark cannot be started here; None: it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "this run needs PySpark: pip install 'penstock[spark]'"
    from penstock.spark.errors import JavaMissingError
    from penstock.spark.java import java_home

    try:
        java_home()
    except JavaMissingError as error:
        return str(error)
    return None


class SparkTopics:
    """Spark's access to the topics of a run."""

    def __init__(self, options: SparkOptions, place: MeasuredNode, spark: SparkSession) -> None:
        self.spark = spark
        self.place = place
        self._partitions = options.partitions
        door = place.door
        self.options = {"bootstrap": door.url}
        if door.url.startswith("tcp://"):  # taken at its word on the node's own host too
            self.options["transport"] = "tcp"
        if door.key is not None:
            self.options["keys"] = door.key

    def read(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("penstock").options(**self.options, subscribe=topic)
        return reader.schema(SCHEMA).load()

    @contextmanager
    def new(self) -> Iterator[str]:
        """Makes a topic for one turn, deleted at once: the disk has other things to do."""
        name = f"bench-{os.getpid()}-{os.urandom(3).hex()}"
        with self.place.client.admin() as admin:
            admin.create_topic(name, TopicConfig(partitions=self._partitions))
            try:
                yield name
            finally:
                admin.delete_topic(name)

    @contextmanager
    def query(
        self, name: str, folder: Path, checks: list[tuple[int, int]] | None
    ) -> Iterator[Query]:
        """Yields one of `QUERIES`. `checks`: the list for checks of what it wrote, if there are
        any."""
        from pyspark.sql import functions as F

        if name == "count":
            yield lambda frame: frame.count()
        elif name == "sum":
            yield lambda frame: frame.agg(F.sum(F.length("value"))).first()
        elif name == "noop":
            yield lambda frame: frame.write.format("noop").mode("overwrite").save()
        elif name == "parquet":
            out = str(folder / "out")
            yield lambda frame: frame.write.mode("overwrite").parquet(out)
            if checks is not None:
                checks.append(contents(self.spark.read.schema(SCHEMA).parquet(out)))
        else:
            with self.new() as topic:
                yield lambda frame: (
                    frame.write.format("penstock").options(**self.options, topic=topic)
                    .mode("append").save()
                )  # fmt: skip
                if checks is not None:
                    checks.append(contents(self.read(topic)))


def contents(frame: DataFrame) -> tuple[int, int]:
    """Returns the number of rows, and a checksum that differs for other rows."""
    from pyspark.sql import functions as F

    row = frame.agg(F.count("value"), F.bit_xor(F.xxhash64("value"))).first()
    assert row is not None
    return int(row[0]), int(row[1])
