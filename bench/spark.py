"""Spark reading a topic, and writing to one, beside Spark reading the same rows from Parquet.

The rows are written to a topic once and copied to Parquet. Then each query is run on both in turns,
so that whatever else the machine does meets both; its first run, which compiles and opens, is not
counted. A query's seconds are what a user waits: planning, tasks and, where it writes, the commit.

Spark is started here, and left alone where it runs already. Nothing of it is loaded before.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import Ground, ground
from penstock.bench.options import Where
from penstock.bench.progress import Progress
from penstock.bench.scratch import scratch_folder
from penstock.client.admin.admin import TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = dict[str, Any]
Query = Callable[["DataFrame"], object]

QUERIES: Final = ("count", "sum", "noop", "parquet", "sink")
SCHEMA: Final = "value BINARY"
TABLE_BYTES: Final = 1 << 20
TURNS_MAX: Final = 20
FLUSH_WITHIN: Final = 120.0


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
        """Raise `BenchError` for what cannot be run."""
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
    """Why Spark cannot be started here; None: it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "this run needs PySpark: pip install 'penstock[spark]'"
    from penstock.spark.errors import JavaMissingError
    from penstock.spark.java import java_home

    try:
        java_home()
    except JavaMissingError as error:
        return str(error)
    return None


def run(options: SparkOptions, progress: Progress) -> Result:
    """Make the run. Raises `BenchError`."""
    options.check()
    with (
        ground(options, options.bytes_needed) as place,
        place.topic(options.partitions) as topic,
        scratch_folder(options.data, options.bytes_needed) as folder,
    ):
        progress.say("records")
        fill(options, place, topic)
        progress.say("start of Spark")
        with running(options) as spark:
            try:
                result = measure(options, place, topic, folder, spark, progress)
            finally:
                progress.end()
            return {**result, "filesystem": place.filesystem, "options": options.stated()}


def measure(
    options: SparkOptions, place: Ground, topic: str, folder: Path, spark: SparkSession,
    progress: Progress,
) -> Result:  # fmt: skip
    """All queries and triggers."""
    from penstock.bench import sparktriggers

    copy = str(folder / "copy")
    topics = Topics(options, place, spark)
    progress.say("copy to Parquet")
    topics.read(topic).write.parquet(copy)
    frames = {"penstock": topics.read(topic), "parquet": spark.read.schema(SCHEMA).parquet(copy)}
    found: dict[str, Result] = {}
    checks = [contents(frames[name]) for name in frames]
    for name in QUERIES:
        seconds: dict[str, list[float]] = {source: [] for source in frames}
        used: list[dict[str, float]] = []
        for turn in range(-1, options.turns):
            progress.say(f"{name}, {'warm-up' if turn < 0 else f'turn {turn + 1}'}")
            # In turns also in which of both comes first.
            for source in sorted(frames, reverse=turn % 2 == 0):
                with topics.query(name, folder, checks if turn < 0 else None) as query:
                    before, begun = cpu_of_spark(), time.perf_counter()
                    query(frames[source])
                    took = time.perf_counter() - begun
                    if turn >= 0:
                        seconds[source].append(took)
                        if source == "penstock":
                            used.append({k: v - before[k] for k, v in cpu_of_spark().items()})
        found[name] = _rates(options, seconds, used)
    progress.say("triggers")
    triggers = sparktriggers.measure(options, topics, folder)
    wanted = checks[0]
    return {
        "benchmark": "spark",
        "records_per_second": found["sum"]["records_per_second"],
        "mb_per_second": found["sum"]["mb_per_second"],
        "queries": found,
        "triggers": triggers,
        "records": options.records,
        "lost": sum(max(0, options.records - count) for count, _ in checks),
        "doubled": sum(max(0, count - options.records) for count, _ in checks),
        "foreign": sum(digest != wanted[1] for _, digest in checks),
        "spark": spark.version,
        "java": str(spark._jvm.java.lang.System.getProperty("java.version")),  # type: ignore[union-attr]
    }


def _rates(
    options: SparkOptions, seconds: dict[str, list[float]], used: list[dict[str, float]]
) -> Result:
    rates = {source: options.records / statistics.median(all_) for source, all_ in seconds.items()}
    return {
        "records_per_second": round(rates["penstock"]),
        "mb_per_second": round(rates["penstock"] * options.size / 1e6, 1),
        "parquet_records_per_second": round(rates["parquet"]),
        "parquet_mb_per_second": round(rates["parquet"] * options.size / 1e6, 1),
        "ratio": round(rates["penstock"] / rates["parquet"], 3),
        "seconds": round(statistics.median(seconds["penstock"]), 3),
        "java_cpu_seconds": round(statistics.median(each["java"] for each in used), 3),
        "python_cpu_seconds": round(statistics.median(each["python"] for each in used), 3),
    }


class Topics:
    """How Spark reaches the topics of a run."""

    def __init__(self, options: SparkOptions, place: Ground, spark: SparkSession) -> None:
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
        """A topic for one turn, deleted at once: the disk has other things to do."""
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
        """One of `QUERIES`. `checks`: where to note what it wrote, if that is to be looked at."""
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
    """How many rows, and what tells others from them."""
    from pyspark.sql import functions as F

    row = frame.agg(F.count("value"), F.bit_xor(F.xxhash64("value"))).first()
    assert row is not None
    return int(row[0]), int(row[1])


def fill(options: SparkOptions, place: Ground, topic: str) -> None:
    """All records, each with its number and otherwise random, so that Parquet stores them all."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    rows = max(1, TABLE_BYTES // options.size)
    with place.client.producer() as producer:
        for turn, first in enumerate(range(0, options.records, rows)):
            count = min(rows, options.records - first)
            data = rng.integers(0, 256, (count, options.size), np.uint8)
            data[:, :8] = np.arange(first, first + count, dtype=">u8").view(np.uint8).reshape(-1, 8)
            bounds = np.arange(0, (count + 1) * options.size, options.size, dtype=np.int32)
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
            values = pa.Array.from_buffers(pa.binary(), count, buffers)
            producer.send_arrow(
                topic, pa.table({"value": values}), partition=turn % options.partitions
            )
        producer.flush(FLUSH_WITHIN)


@contextmanager
def running(options: SparkOptions) -> Iterator[SparkSession]:
    """Spark for one run, ended with it unless it was there. What takes too long is cancelled."""
    from penstock.spark.sessions import is_running, session

    is_own = not is_running()
    conf = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2}
    spark = session("penstock bench", options.master, conf)
    late = threading.Event()

    def give_up() -> None:
        late.set()
        spark.sparkContext.cancelAllJobs()

    timer = threading.Timer(options.timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield spark
    except Exception as error:
        if late.is_set():
            raise BenchTimeout(f"not done within {options.timeout:g} s") from error
        raise
    finally:
        timer.cancel()
        if is_own:
            with suppress(Exception):  # after Ctrl-C the JVM's answers are out of step
                spark.stop()


def cpu_of_spark() -> dict[str, float]:
    """CPU seconds of Spark's processes on this host so far: the JVM, and Python workers."""
    used = {"java": 0.0, "python": 0.0}
    for child in psutil.Process().children(recursive=True):
        try:
            name, times = child.name(), child.cpu_times()
        except psutil.Error:
            continue
        if name == "java":
            used["java"] += times.user + times.system
        elif _is_worker(child):
            used["python"] += times.user + times.system + times.children_user
            used["python"] += times.children_system
    return used


def _is_worker(process: psutil.Process) -> bool:
    """Whether it came out of the JVM."""
    try:
        return any(parent.name() == "java" for parent in process.parents())
    except psutil.Error:
        return False
