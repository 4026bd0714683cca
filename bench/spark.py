"""Spark reading a topic, and writing to one, beside Spark reading the same rows from Parquet.

The rows are written to a topic once and copied to Parquet. Then each query is run on both in turns,
so that other load of the machine meets both. Its first run, which compiles and opens, is not
counted. A query's seconds are what a user waits: planning, tasks and, where it writes, the commit.

Spark is started here, and not ended where it runs already. No module of it is loaded before.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from penstock.bench import sparktriggers
from penstock.bench.errors import BenchTimeout
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.progress import BenchProgress
from penstock.bench.scratch import scratch_folder
from penstock.bench.sparktopics import SCHEMA, SparkOptions, SparkTopics, contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]

QUERIES: Final = ("count", "sum", "noop", "parquet", "sink")
TABLE_BYTES: Final = 1 << 20
FLUSH_WITHIN: Final = 120.0


def run(options: SparkOptions, progress: BenchProgress) -> Result:
    """Makes the run. Raises `BenchError`."""
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
    options: SparkOptions, place: MeasuredNode, topic: str, folder: Path, spark: SparkSession,
    progress: BenchProgress,
) -> Result:  # fmt: skip
    """Measures all queries and triggers."""
    copy = str(folder / "copy")
    topics = SparkTopics(options, place, spark)
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


def fill(options: SparkOptions, place: MeasuredNode, topic: str) -> None:
    """Writes all records, each with its number and otherwise random, so that Parquet stores them
    all."""
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
    """Starts Spark for one run, and ends it unless it was there. Cancels jobs that take too
    long."""
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
    """Returns CPU seconds of Spark's processes on this host so far: the JVM, and Python workers."""
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
    """Returns whether it came out of the JVM."""
    try:
        return any(parent.name() == "java" for parent in process.parents())
    except psutil.Error:
        return False
